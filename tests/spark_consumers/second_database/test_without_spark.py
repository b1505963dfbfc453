"""A second database that a `Subscriber` keeps up to date, without Spark."""

from contextlib import closing
from typing import Literal

import pytest

from event_token.errors import UsageError
from spark_consumers.applying.task_changes import Following
from spark_consumers.decoding.key_scope import KeyScope
from spark_consumers.second_database.database import SqlDatabase, TargetOptions
from spark_consumers.sink_query.subscriber_batches import Batches
from tests.spark_consumers.second_database.followed import (
    EVERYWHERE,
    Followed,
    Item,
    TargetServer,
)
from tests.spark_consumers.shop import SHARDS, Change, Shop
from tests.topics.shard_writer import CELL_US
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
            following = Following(known=database.known())
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


@EVERYWHERE
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
        SqlDatabase(followed.url, TargetOptions("commerce")).prepare()


@EVERYWHERE
@pytest.mark.parametrize("deletes", ["hard", "soft"])
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
