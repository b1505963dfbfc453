"""A backlog on real servers: many transactions of a source become few of the target."""

import random
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pymysql
import pytest

from event_token import KeyRange
from resharding.apply.last_changes import LastChanges
from resharding.apply.statements import StatementBuilder
from resharding.apply.target_session import TargetSession
from resharding.routing import Routes
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture, StartServer
from tests.faults.proxy import Proxy
from tests.resharding.accounts import resharder_of
from tests.resharding.apply.one_table import OneTable
from tests.resharding.apply.records import event
from tests.resharding.shards import applying, checkpoint_seqs, fresh_schema, waits_for_lock
from tests.waiting import wait_for
from topics.keyspace.topology import TableVindex
from topics.records.table_shape import Column, TableShape, ValueKind
from topics.records.vevent import Op, Row, VEvent

ORDERS = 100
COLUMNS = ("id", "user", "code")


def commits(database: DatabaseFixture) -> int:
    """Count the COMMIT statements of a server."""
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW GLOBAL STATUS LIKE 'Com_commit'")
        [(_, count)] = cursor.fetchall()
    return int(count)


@pytest.mark.full
def test_a_backlog_is_applied_in_few_transactions(
    mariadb_servers: list[DatabaseFixture], kafka: KafkaCluster, keyspace: str
) -> None:
    """Swapped unique values, moved keys and rows that come back are the same, in few commits."""
    source, target, _ = mariadb_servers
    with ExitStack() as stack:
        one = OneTable(stack, source, target, kafka, keyspace)
        one.run(
            source,
            *(f"INSERT INTO {{db}}.orders VALUES ({n}, {n}, 'c{n}')" for n in range(ORDERS)),
        )
        with applying(one.settings()) as applier:
            one.wait(applier)
        one.run(
            source,
            # Each takes the value of the next one, the last that of the first.
            "UPDATE {db}.orders SET code = NULL WHERE id = 0",
            *(f"UPDATE {{db}}.orders SET code = 'c{n - 1}' WHERE id = {n}" for n in range(1, 50)),
            "UPDATE {db}.orders SET code = 'c49' WHERE id = 0",
            "UPDATE {db}.orders SET id = id + 1000 WHERE id BETWEEN 50 AND 59",
            *(f"UPDATE {{db}}.orders SET user_id = 7 WHERE id = {n}" for n in range(60, 70)),
            "DELETE FROM {db}.orders WHERE id BETWEEN 65 AND 79",
            *(f"INSERT INTO {{db}}.orders VALUES ({n}, 8, 'c{n}')" for n in range(70, 75)),
        )
        one.sources.last_seqs()
        before = commits(target)
        with applying(one.settings()) as applier:
            one.wait(applier)
        assert commits(target) - before <= ORDERS // 5
        assert one.orders(target) == one.orders(source)
        assert len(one.orders(target)) == ORDERS - 10


class OneServer:
    """Changes a table of a server, and applies them from their images to another one of it."""

    def __init__(self, stack: ExitStack, database: DatabaseFixture, id_type: str) -> None:
        """Create both tables, empty, with keys of the type."""
        self.schema = fresh_schema()
        connection = stack.enter_context(database.connect())
        self.cursor = connection.cursor()
        self.cursor.execute(f"CREATE DATABASE {self.schema} CHARACTER SET utf8mb4")
        self.cursor.execute(f"USE {self.schema}")
        for table in ("source", "target"):
            self.cursor.execute(
                f"CREATE TABLE {table} (id {id_type} PRIMARY KEY, user BIGINT, code INT UNIQUE)"
            )
        is_text = id_type.startswith("VARCHAR")
        key = Column("id", ValueKind.STRING if is_text else ValueKind.DOUBLE, id_type.lower())
        numbers = [Column(name, ValueKind.LONG, "bigint") for name in COLUMNS[1:]]
        self.shape = TableShape(self.schema, "target", (key, *numbers), (0,))
        self.routes = Routes([TableVindex(self.schema, "target", ("user",), "hash")])
        self.session = TargetSession(resharder_of(database, "-"))
        stack.callback(self.session.close)
        self.builder = StatementBuilder(
            lambda schema, table: self.session.table(schema, table, "user"),
            packet_bytes_max=self.session.packet_bytes_max,
        )
        self.changes = LastChanges(lambda _event: "user", is_merge=False)
        self.records: list[VEvent] = []

    def rows(self, table: str) -> dict[str, tuple[Any, ...]]:
        """The rows, by themselves: `-0.0` and `0.0` are not the same."""
        self.cursor.execute(f"SELECT id, user, code FROM {table}")
        return {repr(row): row for row in self.cursor.fetchall()}

    def write(self, statement: str, values: tuple[Any, ...]) -> None:
        """Change a row of the source, unless another one is in its way; keep the record."""
        old = self.rows("source")
        try:
            self.cursor.execute(statement, values)
        except pymysql.err.IntegrityError:
            return
        new = self.rows("source")
        before, after = (
            next((dict(zip(COLUMNS, a[row], strict=True)) for row in a.keys() - b.keys()), None)
            for a, b in ((old, new), (new, old))
        )
        if before != after or repr(before) != repr(after):
            self._keep(before, after)

    def _keep(self, before: Row | None, after: Row | None) -> None:
        op = Op.UPDATE if before and after else Op.INSERT if after else Op.DELETE
        names = {"database": self.schema, "table": "target", "shape": self.shape}
        self.records.append(event(op, before, after, **names))

    def apply(self) -> None:
        """Apply what is left of the records to the target."""
        for record in self.records:
            for change in self.routes.changes(record, KeyRange.parse("-")):
                self.changes.add(change, record)
        self.records = []
        for section in self.changes.take():
            for change, record in section.changes:
                self.builder.add(change, record)
        self.session.run(self.builder.take())
        self.session.commit()


@pytest.mark.parametrize("family", ["mysql_a", "mariadb_a"])
@pytest.mark.usefixtures("real_servers")
@pytest.mark.parametrize(
    ("id_type", "ids"),
    [
        ("VARCHAR(9)", ("a", "A", "a ", "ä", "b", "B ", "ss", "ß")),
        ("DOUBLE", (0.0, -0.0, 0.1, 1e300)),
    ],
)
def test_keys_that_the_server_takes_for_the_same(
    family: str, id_type: str, ids: tuple[Any, ...], request: pytest.FixtureRequest
) -> None:
    """What is left of changes that a server has made leaves its rows on a target, in any cut."""
    dice = random.Random(11)
    with ExitStack() as stack:
        one = OneServer(stack, request.getfixturevalue(family), id_type)
        for _ in range(40):
            for _ in range(dice.randrange(1, 8)):
                key, other = dice.choice(ids), dice.choice(ids)
                user, code = dice.randrange(3), dice.choice((None, 0, 1, 2))
                statement, values = dice.choice(
                    (
                        ("INSERT INTO source VALUES (%s, %s, %s)", (key, user, code)),
                        ("UPDATE source SET id = %s, user = %s WHERE id = %s", (key, user, other)),
                        ("UPDATE source SET code = %s WHERE id = %s", (code, key)),
                        ("DELETE FROM source WHERE id = %s", (key,)),
                    )
                )
                one.write(statement, values)
            one.apply()
            assert one.rows("target").keys() == one.rows("source").keys()


def test_the_answer_to_a_commit_is_lost(
    mysql_a: DatabaseFixture, mysql_b: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """The applier finds at its checkpoint that the target has everything, and goes on."""
    with ExitStack() as stack:
        one = OneTable(stack, mysql_a, mysql_b, kafka, keyspace)
        proxy = stack.enter_context(Proxy(mysql_b.port))
        settings = one.settings()
        target = replace(settings.target, port=proxy.port)
        before = checkpoint_seqs(mysql_b, one.plan.reshard_id)
        proxy.hold = lambda piece: piece.endswith(b"COMMIT")
        applier = stack.enter_context(applying(replace(settings, target=target)))
        one.run(mysql_a, "INSERT INTO {db}.orders VALUES (1, 1, 'a')")
        wait_for("it commits", lambda: bool(proxy.held))
        proxy.freeze()
        proxy.release()
        wait_for("it is committed", lambda: checkpoint_seqs(mysql_b, one.plan.reshard_id) != before)
        proxy.reset()
        proxy.heal()
        one.run(
            mysql_a,
            "UPDATE {db}.orders SET code = 'b' WHERE id = 1",
            "INSERT INTO {db}.orders VALUES (2, 2, 'a')",
        )
        one.wait(applier)

        notes = [status.note for status in applier.statuses]
        assert any("retrying" in note for note in notes)
        assert not any("reading it again" in note for note in notes)
        assert one.orders(mysql_b) == one.orders(mysql_a) == [(1, 1, "b"), (2, 2, "a")]


def test_a_target_server_killed_within_a_transaction(
    mariadb_a: DatabaseFixture, start_mariadb: StartServer, kafka: KafkaCluster, keyspace: str
) -> None:
    """F43: What was not committed is sent again, from the checkpoint that is left."""
    target = start_mariadb()
    with ExitStack() as stack:
        one = OneTable(stack, mariadb_a, target, kafka, keyspace)
        applier = stack.enter_context(applying(one.settings()))
        one.run(mariadb_a, "INSERT INTO {db}.orders VALUES (1, 1, NULL)")
        one.wait(applier)
        with target.connect(database=one.schema) as connection, connection.cursor() as cursor:
            connection.begin()
            cursor.execute("UPDATE orders SET code = 'held' WHERE id = 1")
            one.run(
                mariadb_a,
                "INSERT INTO {db}.orders VALUES (100, 1, NULL)",
                "UPDATE {db}.orders SET id = id + 1000 WHERE id = 1",
            )
            wait_for("the applier waits within a transaction", lambda: waits_for_lock(target))
            target.server.kill()
        target.server.start()
        one.wait(applier)

        assert one.orders(target) == one.orders(mariadb_a)
        assert any("retrying" in status.note for status in applier.statuses)
