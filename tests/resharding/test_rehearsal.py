"""An operator's rehearsal: docs/operations.md as written, from a failover to the merge back."""

import json
from pathlib import Path
from typing import Any

import pytest

from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture, StartServer
from tests.producers.servers.replication import (
    follow as replicate_from,
)
from tests.producers.servers.replication import (
    promote,
    start_pair,
    statements,
    wait_same,
)
from tests.producers.session.producing import wait_caught_up
from tests.resharding.accounts import grant_internal_tables
from tests.resharding.application import write_old_rows
from tests.resharding.flow import VINDEXES, Flow, Reader, flow, reading
from tests.resharding.operating import Application, complete, create_arguments, switch_over
from tests.resharding.scripts import printed_scripts, run_script
from tests.resharding.shards import fresh_schema
from tests.resharding.stream_checks import check_order, replayed, served_part
from tests.resharding.switchable import APP, make_account
from tests.resharding.writers import at_work, make_tables, rows_of
from topics.records.vevent import Op, VEvent

pytestmark = pytest.mark.full

HALVES = ("-80", "80-")
MERGED = "-.2"
# Written by a trigger: AUTO_INCREMENT inside the sharding key, and a sequence.
VISITS = (
    "CREATE TABLE visits (user_id BIGINT NOT NULL, id BIGINT NOT NULL AUTO_INCREMENT, "
    "number BIGINT NULL, PRIMARY KEY (user_id, id), KEY (id))"
)
# Named so that they fire in another order than that of their names.
NOTES = (
    "z_first BEFORE INSERT ON orders FOR EACH ROW SET NEW.note = 'first'",
    "a_second BEFORE INSERT ON orders FOR EACH ROW SET NEW.note = CONCAT(NEW.note, ', second')",
)
VIEW = "CREATE VIEW totals AS SELECT user_id, COUNT(*) AS orders FROM orders GROUP BY user_id"
ROUTINE = "CREATE FUNCTION doubled(x BIGINT) RETURNS BIGINT DETERMINISTIC RETURN x * 2"
SEQUENCE = "CREATE SEQUENCE numbers CACHE 5"


class Scene:
    """MariaDB servers, which have sequences too, and the schema."""

    def __init__(self, start: StartServer) -> None:
        self.old, self.new = start_pair(start)
        self.halves = tuple(start.together(2))
        self.schema = fresh_schema()
        for database in (self.old, self.new, *self.halves):
            grant_internal_tables(database)
            # As the page says, for triggers that are made by an account without SUPER.
            statements(database, "SET GLOBAL log_bin_trust_function_creators = ON")
        make_tables(self.old, self.schema)
        write_old_rows(self.old, self.schema)
        visit = (
            f"visit AFTER INSERT ON orders FOR EACH ROW INSERT INTO {self.schema}.visits "
            f"(user_id, number) VALUES (NEW.user_id, NEXTVAL({self.schema}.numbers))"
        )
        make_account(self.old, locked=False)
        statements(
            self.old,
            f"USE {self.schema}",
            VISITS,
            SEQUENCE,
            *(f"CREATE DEFINER = {APP}@'%' TRIGGER {trigger}" for trigger in (*NOTES, visit)),
            VIEW,
            ROUTINE,
        )
        wait_same(self.new, self.old)

    def servers(self) -> dict[str, DatabaseFixture]:
        """The servers of the split, by shard."""
        return {"-": self.old, **dict(zip(HALVES, self.halves, strict=True))}

    def fail_over(self, played: Flow) -> None:
        """A planned failover of the source, by the book: nothing in the settings changes."""
        statements(self.old, "SET GLOBAL read_only = ON")
        wait_same(self.new, self.old)
        promote(self.new)
        statements(self.old, "SET GLOBAL gtid_slave_pos = @@GLOBAL.gtid_binlog_pos")
        replicate_from(self.old, self.new)
        played.servers["-"] = self.new

    def empty_for_the_merge(self) -> None:
        """The former source becomes the server of a new shard."""
        self.old.server.kill()
        statements(self.new, f"DROP DATABASE {self.schema}", "DROP DATABASE _shardstream")

    def create_on(self, scripts: list[str], *targets: DatabaseFixture) -> None:
        """Run what `create` has printed; of several targets each takes turns in a sequence."""
        for number, target in enumerate(targets, 1):
            with target.connect() as connection, connection.cursor() as cursor:
                for script in scripts:
                    if "CREATE SEQUENCE" in script and len(targets) > 1:
                        turns = script.replace("start with 1", f"start with {number}")
                        run_script(cursor, turns.replace("increment by 1", "increment by 2"))
                    else:
                        run_script(cursor, script)


def test_failover_split_and_merge_as_the_page_says(
    start_mariadb: StartServer, kafka: KafkaCluster, keyspace: str, tmp_path: Path
) -> None:
    """A11, B18: with triggers, counters, a view, a routine and a sequence, no change is lost.

    A planned failover of the source during the split, the switch, and the merge back, while an
    application writes and a subscriber reads; all accounts have the documented privileges.
    """
    scene = Scene(start_mariadb)
    world = {"schema": scene.schema, "servers": scene.servers(), "first": ("-",)}
    tables = (*VINDEXES, "visits")
    with flow(tmp_path, kafka, keyspace, **world, tables=tables) as played:
        played.write_settings(("-",), HALVES, {"-": scene.new})
        wait_same(scene.new, scene.old)  # has the accounts, too
        played.produce("-")
        # Times are whole seconds here: moves between shards would have no order.
        application = Application(played, has_moves=False)
        with reading(played.client, keyspace) as reader:
            with at_work(application.writers):
                application.wait_writes("-")
                split(scene, played, application)
                merge(scene, played, application)
            wait_read(played, reader)

        logs = {shard: played.log(shard) for shard in ("-", *HALVES, MERGED)}
        check_order(reader.events, logs)
        assert replayed(reader.events) == rows_of({MERGED: scene.new}, scene.schema)
        check_visits(scene, {shard: served_part(log) for shard, log in logs.items()})
        assert all(writer.refusals for writer in application.writers)


def split(scene: Scene, played: Flow, application: Application) -> None:
    """`-` becomes two, and its primary changes in the middle of it."""
    done = played.reshard("create", *create_arguments("split", ["-"], HALVES))
    for name in ("visit", "z_first", "a_second"):
        assert f"trigger {scene.schema}.{name} (" in done.stdout
    scripts = printed_scripts(done.stdout)
    assert len(scripts) == 3
    follow(played, "split", ("-",), HALVES)
    said = played.refused("switch", "split")
    assert "numbers is on" in said
    assert f"function {scene.schema}.doubled is on" in said
    scene.create_on(scripts, *scene.halves)

    scene.fail_over(played)
    application.wait_writes("-")
    switch_over(played, application, "split", HALVES)
    complete(played, "split", ("-",), HALVES)


def merge(scene: Scene, played: Flow, application: Application) -> None:
    """The halves become one again, on the server that was the source."""
    scene.empty_for_the_merge()
    played.add_server(MERGED, scene.new)
    played.write_settings(HALVES, (MERGED,))
    done = played.reshard("create", *create_arguments("merge", HALVES, [MERGED]))
    scene.create_on(printed_scripts(done.stdout), scene.new)
    follow(played, "merge", HALVES, (MERGED,))
    switch_over(played, application, "merge", (MERGED,))
    complete(played, "merge", HALVES, (MERGED,))


def follow(
    played: Flow, reshard_id: str, sources: tuple[str, ...], targets: tuple[str, ...]
) -> None:
    """Run the targets' producers and appliers until they have caught up."""
    played.produce(*targets)
    played.apply(reshard_id, *targets)
    played.wait_copied(reshard_id, sources, targets)
    found = [json.loads(line) for line in played.reshard("status", "--json").stdout.splitlines()]
    assert found[-1]["reshard_id"] == reshard_id


def wait_read(played: Flow, reader: Reader) -> None:
    """Wait until the reader has everything that the last shard has executed."""
    wait_caught_up(played.logs[MERGED])
    seq = played.last_seq(MERGED)
    reader.wait_for(
        "the reader has everything",
        lambda: any((e.shard, e.seq) == (MERGED, seq) for e in reader.events[-1:]),
    )


def check_visits(scene: Scene, parts: dict[str, list[VEvent]]) -> None:
    """Ids and numbers go on above what the sources gave out, and no number comes twice."""
    inserted = {shard: visits(events) for shard, events in parts.items()}
    highest = 0
    numbers: list[Any] = []
    for shards in (("-",), HALVES, (MERGED,)):
        rows = [row for shard in shards for row in inserted[shard]]
        assert rows, shards
        assert min(row["id"] for row in rows) > highest, shards
        highest = max(row["id"] for row in rows)
        numbers += [row["number"] for row in rows]
    with scene.new.connect(database=scene.schema) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT user_id, id, number FROM visits ORDER BY user_id, id")
        wanted = [tuple(row.values()) for rows in inserted.values() for row in rows]
        assert list(cursor.fetchall()) == sorted(wanted)
        cursor.execute("SELECT SUM(orders), doubled(21) FROM totals")
        [(orders, doubled)] = cursor.fetchall()
        cursor.execute("SELECT COUNT(*) FROM orders WHERE note = 'first, second'")
        [(noted,)] = cursor.fetchall()
    assert (noted > 0, orders >= noted, doubled) == (True, True, 42)
    assert len(set(numbers)) == len(numbers)


def visits(events: list[VEvent]) -> list[dict[str, Any]]:
    """The visits that a shard's own application made."""
    found = [e for e in events if e.table == "visits" and e.op is Op.INSERT]
    return [dict(event.after or {}) for event in found]
