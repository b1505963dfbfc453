"""A second database that a `Subscriber` keeps up to date, without Spark."""

import threading
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Literal
from unittest.mock import Mock

import pyarrow as pa
import pytest

from event_token import StreamPosition
from event_token.errors import UsageError
from sinks.database.database import SqlDatabase
from sinks.database.options import DatabaseOptions
from sinks.rule.task_changes import FollowedTables
from sinks.subscriber_batches import Batches, StreamBatch
from spark_consumers import database as local
from spark_consumers.database import run_database_locally
from spark_consumers.source.options import SourceOptions
from tests.postgres_servers import PostgresFixture
from tests.shardstream.command_line import Background, background, run, write_settings
from tests.sinks.database.followed import (
    ON_MYSQL_TOO,
    Followed,
    Item,
    TargetServer,
)
from tests.spark_consumers.shop import ORDERS, SHARDS, Change, Shop
from tests.topics.shard_writer import CELL_US
from topics.arrow.decoders import TableDecoder
from topics.arrow.key_scope import KeyScope
from topics.kafka.provisioning import provision_readers
from topics.named_readers import read_readers
from topics.records.vevent import Row
from topics.stream.subscriber import StreamSubscriber

QUERY = "without Spark"


def follow(shop: Shop, followed: Followed, changes: int) -> None:
    """Apply as many changes as were written, from where the database ends."""
    database = followed.database
    held = database.held()
    start = "earliest" if held is None else held.position
    number = 0 if held is None else held.batch_id + 1
    with closing(StreamSubscriber(shop.keyspace, "-", start, config=shop.config)) as reader:
        scope = followed.options.key_scope
        for batch in Batches(reader, rows=3, ms=200, key_scope=scope):
            following = FollowedTables(known=database.known())
            assert database.apply_arrow(batch.planned(QUERY, number), batch.changes(following))
            number += 1
            changes -= batch.rows.num_rows
            if changes == 0:
                return


def write(shop: Shop, *images: tuple[Row | None, Row | None]) -> None:
    """Write changes from one image to another, alternately to the one shard and the other."""
    for i, (before, after) in enumerate(images):
        home = (b"\x10", b"\x90")[i % 2]
        ids = (home if before else None, home if after else None)
        change = Change(shop.now_us, before, after, ids=ids)
        shop.writers[SHARDS[i % 2]].write([change])
        shop.now_us += CELL_US
    for writer in shop.writers.values():
        writer.promise(shop.now_us)


def order(number: int, note: str) -> Row:
    return {"id": number, "note": note, "price": None}


def test_a_subscriber_keeps_a_database_up_to_date(shop: Shop, followed: Followed) -> None:
    """F30: the rows are those of the shards, also after a restart from the database's position."""
    write(shop, *((None, order(number, "new")) for number in range(5)))
    follow(shop, followed, 5)
    write(shop, (order(0, "new"), order(0, "changed")), (order(1, "new"), None))

    follow(shop, followed, 2)

    assert sorted(followed.rows("SELECT id, note FROM shop.orders")) == [
        (0, "changed"),
        (2, "new"),
        (3, "new"),
        (4, "new"),
    ]


@pytest.mark.full
@ON_MYSQL_TOO
def test_the_same_key_on_two_shards_stays_two_rows(shop: Shop, target_server: TargetServer) -> None:
    """With scope `shard` the keyspace id is a part of the key; another scope is refused later."""
    followed = Followed(target_server, key_scope=KeyScope.SHARD)
    followed.database.prepare()
    write(shop, (None, order(1, "left")), (None, order(1, "right")), (None, order(2, "left")))
    follow(shop, followed, 3)
    write(shop, (order(1, "left"), order(1, "changed")), (order(1, "right"), None))

    follow(shop, followed, 2)

    found = followed.rows("SELECT id, note, _keyspace_id FROM shop.orders")
    assert sorted(found) == [(1, "changed", "10"), (2, "left", "10")]
    with pytest.raises(UsageError, match="cannot go on with"):
        SqlDatabase(followed.url, DatabaseOptions("commerce")).prepare()


@pytest.mark.full
def test_a_command_follows_in_one_process(
    shop: Shop, postgres: PostgresFixture, tmp_path: Path
) -> None:
    """`--local` starts no JVM, needs no checkpoint, and goes on where the database ends.

    It survives the loss of its connections. The frontier moves without any rows, and tables of
    online schema changes are left out.
    """
    followed = Followed(postgres, shop.keyspace)
    followed.database.prepare()
    provision_readers(shop.config, shop.keyspace)
    config = write_settings(tmp_path, shop.bootstrap_servers, shop.keyspace, {})
    options = ("--to", followed.url, "--local", "--refresh", "200ms", "--config", str(config))

    def has_applied(_command: Background) -> bool:
        return followed.rows("SELECT frontier_us FROM _shardstream.position") == [(shop.now_us,)]

    def follow_by_command(name: str, *more: str) -> None:
        with background(tmp_path, name, "database", shop.keyspace, *options, *more) as command:
            command.wait_for("all changes applied", has_applied)
            own = command.process.pid
            assert Path(f"/proc/{own}/task/{own}/children").read_text() == ""
            followed.rows(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                f"WHERE usename = '{followed.login[0]}'"
            )
            shop.now_us += CELL_US
            for writer in shop.writers.values():
                writer.promise(shop.now_us)
            command.wait_for("all changes applied", has_applied)
            command.process.terminate()
            assert command.wait_end() == 0

    write(shop, *((None, order(number, "new")) for number in range(5)))
    shadow = replace(ORDERS, table="_orders_gho")
    change = Change(shop.now_us, None, order(9, "shadow"), ids=(None, b"\x10"), shape=shadow)
    shop.writers[SHARDS[0]].write([change])
    write(shop, (None, order(5, "new")))
    follow_by_command("first", "--name", "reports")
    [report] = read_readers(shop.config, shop.keyspace)
    held = followed.database.held()
    assert held is not None
    assert (report.last.name, report.last.position) == ("reports", held.position)
    write(shop, (order(0, "new"), order(0, "changed")), (order(1, "new"), None))
    write(shop, (order(2, "new"), order(20, "new")))
    follow_by_command("second", "--table", "shop.orders")

    rows = followed.rows("SELECT id, note FROM shop.orders")
    assert sorted(rows) == [(0, "changed"), *((i, "new") for i in (3, 4, 5, 20))]
    assert list(followed.database.known()) == [("shop", "orders")]


def test_only_what_is_applied_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that fails is not in the position under the name, so no source is retired early."""
    ends = [StreamPosition(0, frontier_us) for frontier_us in (1, 2, 3)]
    reported: list[StreamPosition] = []
    stop = threading.Event()
    applied = Mock(side_effect=[True, UsageError("the second one fails")])
    target = Mock(
        held=Mock(return_value=None),
        known=Mock(return_value={}),
        apply_arrow=applied,
        same_keys=Mock(return_value=(0, ())),
        applied=Mock(return_value=(0, None, 0)),
    )
    rows = pa.table({name: pa.array([], pa.string()) for name in ("type", "database", "table")})
    batches = [StreamBatch(rows, begin, end, TableDecoder(str)) for begin, end in pairwise(ends)]
    for name, stand_in in {
        "StreamSubscriber": Mock(return_value=Mock(waiting=None)),
        "Batches": Mock(return_value=batches),
        "ReaderReporter": Mock(return_value=Mock(note=lambda end: reported.append(end()))),
        "UnloggedCopies": Mock(),
    }.items():
        monkeypatch.setattr(local, name, stand_in)
    monkeypatch.setattr(StreamBatch, "changes", Mock())
    source = SourceOptions.parse(
        {"keyspace": "commerce", "kafka.bootstrap.servers": "127.0.0.1:1", "name": "reports"}
    )
    run = local._LocalRun(target, DatabaseOptions(), source, "earliest", {"stop": stop})

    with pytest.raises(UsageError, match="the second one fails"):
        run.follow()

    assert reported == [ends[1]]


@pytest.mark.parametrize("more", [("--checkpoint", "c", "--local"), ()])
def test_either_spark_or_one_process(more: tuple[str, ...]) -> None:
    """Without --local a checkpoint is needed, with it refused, as is an end that is not known."""
    found = run("database", "commerce", "--to", "postgresql://a@127.0.0.1:1/b", *more)

    assert (found.returncode, "--local, which needs none" in found.stderr) == (2, True)
    with pytest.raises(UsageError, match="leave --available-now out"):
        run_database_locally("commerce", "postgresql://", {}, trigger="availableNow")


@pytest.mark.parametrize(
    ("target_server", "deletes"),
    [("postgres", "soft"), ("mysql_a", "hard"), ("mariadb_a", "soft")],
    indirect=["target_server"],
)
def test_a_key_with_rows_on_two_shards_is_known_until_one_is_gone(
    target_server: TargetServer, deletes: Literal["hard", "soft"]
) -> None:
    """It is kept beside the position of the same transaction; other changes leave it known."""
    followed = Followed(target_server, deletes=deletes)
    followed.database.prepare()
    found = []
    for number, items in enumerate(
        (
            [Item(1, 1, 100), Item(2, 2, 100)],
            [Item(1, 1, 200, "80-", b"\x90")],
            [Item(2, 3, 300)],
            [Item(1, 2, 400, "80-", b"\x90", deleted=True)],
        )
    ):
        followed.apply(items)
        frontier_us, keys = followed.database.same_keys()
        assert frontier_us == 1000 * (number + 1)
        found.append([(each.table, each.key, each.shards) for each in keys])

    assert found == [
        [],
        [both := ("shop.items", Item(1, 0, 0).key_text, ("-80", "80-"))],
        [both],
        [],
    ]
