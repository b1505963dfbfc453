"""Filtered replication on real servers: splits and merges under load, kills, and errors."""

import random
import time
from contextlib import ExitStack
from dataclasses import replace

import pytest

from event_token import MysqlGtidSet, ShardName
from producers.skip.one_transaction import skip_transaction
from resharding.errors import (
    CheckpointMoved,
    DefinitionChanged,
    DoesNotApply,
    TransactionSkipped,
)
from resharding.servers import ReshardServer, find_primary
from resharding.verification import VerifySettings, verify_target
from shardstream.commands.app import EXIT_FENCED, exit_status
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
from tests.producers.servers.replication import executed
from tests.producers.session.producing import producing
from tests.resharding.accounts import resharder_of
from tests.resharding.apply.one_table import OneTable
from tests.resharding.shards import (
    ONE_TARGET,
    TWO_SOURCES,
    ApplierProcess,
    RunningApplier,
    applier_settings,
    applying,
    begin_with_tables,
    checkpoint_seqs,
    sources_of,
    wait_applied,
    waits_for_lock,
)
from tests.resharding.writers import rows_of, writing
from tests.waiting import wait_for

KILLS = 2


def test_reshard_under_load_with_kills(
    servers: list[DatabaseFixture], kafka: KafkaCluster, keyspace: str
) -> None:
    """F24, F25: A target ends with exactly the rows of its range, across kill -9."""
    *source_servers, target = servers
    source_databases = dict(zip(TWO_SOURCES, source_servers, strict=True))
    targets = {ONE_TARGET: target}
    dice = random.Random(7)
    with ExitStack() as stack:
        sources = stack.enter_context(sources_of(source_databases, kafka, keyspace))
        schema, plan = begin_with_tables(sources, targets)
        with writing(source_databases, schema):
            for _ in range(KILLS):
                before = [checkpoint_seqs(d, plan.reshard_id) for d in targets.values()]
                processes = [
                    ApplierProcess(applier_settings(plan, shard, database, sources))
                    for shard, database in targets.items()
                ]
                wait_for(
                    "they apply",
                    lambda before=before: all(  # type: ignore[misc]
                        checkpoint_seqs(d, plan.reshard_id) != then
                        for d, then in zip(targets.values(), before, strict=True)
                    ),
                )
                time.sleep(dice.uniform(0, 0.5))  # when they are killed is left to chance
                for process in processes:
                    assert process.runs
                    process.kill()
        appliers = [
            stack.enter_context(applying(applier_settings(plan, shard, database, sources)))
            for shard, database in targets.items()
        ]
        wait_applied(sources, plan.reshard_id, targets, appliers)

    for shard, database in targets.items():
        within = ShardName.parse(shard).key_range
        wanted = rows_of(source_databases, schema, within=within)
        assert all(wanted.values())
        assert rows_of({shard: database}, schema) == wanted


def test_what_stops_the_applier(
    mysql_a: DatabaseFixture, mysql_b: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """A8: a row that does not fit and DDL stop the applier by name; a clean verify is void then."""
    with ExitStack() as stack:
        one = OneTable(stack, mysql_a, mysql_b, kafka, keyspace)
        one.run(mysql_b, "ALTER TABLE {db}.orders MODIFY code VARCHAR(4)")
        one.run(
            mysql_a,
            "INSERT INTO {db}.orders VALUES (1, 1, 'a'), (2, 2, 'b')",
            "INSERT INTO {db}.orders VALUES (3, 3, 'c'), (4, 4, 'too long'), (5, 5, 'e')",
            "CREATE TABLE {db}.other (id INT PRIMARY KEY)",
        )
        refused = RunningApplier(one.settings()).wait_error()
        assert isinstance(refused, DoesNotApply)
        for text in ("shard -, ", "seq ", "offset ", f"{one.schema}.orders", "Data too long"):
            assert text in str(refused)
        assert " to seq" not in str(refused)  # the very row, not a statement of many
        # Whole source transactions, however many of them a target transaction held.
        assert one.orders(mysql_b) in ([], [(1, 1, "a"), (2, 2, "b")])

        one.run(mysql_b, "ALTER TABLE {db}.orders MODIFY code VARCHAR(40)")
        one.run(
            mysql_a,
            "ALTER TABLE {db}.orders ADD extra INT",
            "UPDATE {db}.orders SET extra = id * 10",
        )
        one.verified()
        changed = RunningApplier(one.settings()).wait_error()
        assert isinstance(changed, DefinitionChanged)
        assert one.verified_rows() == 0  # A8: what was compared has changed
        assert "ADD extra INT" in str(changed)
        assert [row[0] for row in one.orders(mysql_b)] == [1, 2, 3, 4, 5]

        gtid = str(changed).rpartition(" ")[2]
        one.run(mysql_b, "ALTER TABLE {db}.orders ADD extra INT")
        one.verified()
        with applying(one.settings(gtid)) as applier:
            one.wait(applier)
        assert one.verified_rows() == 0  # A8: likewise where the operator accepts the statement
        assert one.orders(mysql_b) == one.orders(mysql_a)


@pytest.mark.full
def test_a_skip_on_the_source_stops_the_applier_until_it_is_accepted(
    mysql_a: DatabaseFixture, mysql_b: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """B3: a skipped transaction makes verify void, and the operator says when targets agree."""
    with ExitStack() as stack:
        one = OneTable(stack, mysql_a, mysql_b, kafka, keyspace)
        one.run(mysql_a, "INSERT INTO {db}.orders VALUES (1, 1, 'a')")
        one.sources.last_seqs()
        producer = one.sources.producers["-"]
        producer.end()
        before = MysqlGtidSet.parse(executed(mysql_a))
        one.run(mysql_a, "INSERT INTO {db}.orders VALUES (2, 2, 'b')")
        gtid = str(MysqlGtidSet.parse(executed(mysql_a)).subtract(before))
        skip_transaction(producer.settings, gtid, "ticket 17")
        one.run(mysql_a, "INSERT INTO {db}.orders VALUES (3, 3, 'c')")
        # It goes on to the end: without its heartbeats nothing tells that the last cell is over.
        stack.enter_context(producing(producer.settings))
        one.sources.last_seqs()
        one.verified()

        stopped = RunningApplier(one.settings()).wait_error()

        assert isinstance(stopped, TransactionSkipped)
        assert f"an operator skipped {gtid} on the source (ticket 17)" in str(stopped)
        assert f"--accept-skip {gtid} and verify" in str(stopped)
        assert "--accept-skip 'reason:ticket 17' for all of this reason" in str(stopped)
        assert one.verified_rows() == 0
        assert one.orders(mysql_b) == [(1, 1, "a")]
        # What was skipped cannot be undone, so nothing can be compared across it.
        comparison = VerifySettings(
            one.plan,
            resharder_of(mysql_b, "-.2"),
            {"-": resharder_of(mysql_a, "-")},
            one.sources.kafka,
        )
        with pytest.raises(TransactionSkipped, match="an operator skipped"):
            verify_target(comparison)
        one.run(mysql_b, "INSERT INTO {db}.orders VALUES (2, 2, 'b')")
        one.verified()
        accepted = frozenset(["reason:ticket 17"])
        with applying(replace(one.settings(), accepted_skips=accepted)) as applier:
            one.wait(applier)
        assert one.verified_rows() == 0
        assert one.orders(mysql_b) == one.orders(mysql_a)
        assert verify_target(comparison).named == ()


def test_one_applier_a_target(
    mysql_a: DatabaseFixture, mysql_b: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """A second applier, or any other change of the checkpoint, ends the applier that is behind.

    Its exit status is that of a producer that was replaced, so that no supervisor starts it again.
    """
    with ExitStack() as stack:
        one = OneTable(stack, mysql_a, mysql_b, kafka, keyspace)
        applier = RunningApplier(one.settings())
        one.run(mysql_a, "INSERT INTO {db}.orders VALUES (1, 1, 'a')")
        one.wait(applier)
        before = checkpoint_seqs(mysql_b, one.plan.reshard_id)
        one.run(mysql_b, "UPDATE _shardstream.checkpoint SET seq = seq + 1")
        one.run(mysql_a, "INSERT INTO {db}.orders VALUES (2, 2, 'b')")

        error = applier.wait_error()

        assert isinstance(error, CheckpointMoved)
        assert "another applier" in str(error)
        assert exit_status(error) == EXIT_FENCED
        assert [row[0] for row in one.orders(mysql_b)] == [1]
        assert checkpoint_seqs(mysql_b, one.plan.reshard_id) == {"-": before["-"] + 1}


@pytest.mark.full
def test_a_killed_appliers_last_commit_may_come_late(
    servers: list[DatabaseFixture], kafka: KafkaCluster, keyspace: str
) -> None:
    """A COMMIT that ends after the next applier has read the checkpoint does not end that one.

    It would end as if replaced, and no supervisor would start it again.
    """
    source, target, _ = servers
    columns = "seq, position, timestamp_us, token"
    with ExitStack() as stack:
        one = OneTable(stack, source, target, kafka, keyspace)
        which = f"WHERE reshard_id = '{one.plan.reshard_id}'"
        places = []
        for number in (1, 2):
            one.run(source, f"INSERT INTO {{db}}.orders VALUES ({number}, {number}, '{number}')")
            with applying(one.settings()) as applier:
                one.wait(applier)
            with target.connect() as connection, connection.cursor() as cursor:
                cursor.execute(f"SELECT {columns} FROM _shardstream.checkpoint {which}")
                places += cursor.fetchall()
        sets = columns.replace(",", " = %s,")
        move = f"UPDATE _shardstream.checkpoint SET {sets} = %s {which}"
        killed = stack.enter_context(target.connect(database=one.schema))
        with killed.cursor() as cursor:
            cursor.execute("DELETE FROM orders WHERE id = 2")
            cursor.execute(move, places[0])
            killed.commit()
            killed.begin()
            cursor.execute(move, places[1])
            cursor.execute("INSERT INTO orders VALUES (2, 2, '2')")
            applier = stack.enter_context(applying(one.settings()))
            wait_for("it waits for the lock", lambda: waits_for_lock(target))
            killed.commit()
        one.run(source, "INSERT INTO {db}.orders VALUES (3, 3, '3')")
        one.wait(applier)

        assert any("reading it again" in status.note for status in applier.statuses)
        assert one.orders(target) == one.orders(source)


@pytest.mark.full
def test_a_target_that_is_a_primary_no_more_gets_no_rows(
    mariadb_servers: list[DatabaseFixture], kafka: KafkaCluster, keyspace: str
) -> None:
    """A5: the account may write to a read-only server; the applier looks for the primary."""
    source, target, _ = mariadb_servers
    with ExitStack() as stack:
        one = OneTable(stack, source, target, kafka, keyspace)
        looked: list[ReshardServer] = []

        def find() -> ReshardServer:
            looked.append(find_primary([resharder_of(target, "-.2")]))
            return looked[-1]

        applier = stack.enter_context(applying(replace(one.settings(), find_target=find)))
        one.run(source, "INSERT INTO {db}.orders VALUES (1, 1, 'a')")
        one.wait(applier)
        one.run(target, "SET GLOBAL read_only = ON")
        stack.callback(one.run, target, "SET GLOBAL read_only = OFF")
        one.run(source, "INSERT INTO {db}.orders VALUES (2, 2, 'b')")

        wait_for("it looks", lambda: any("no primary among" in s.note for s in applier.statuses))
        assert [row[0] for row in one.orders(target)] == [1]
        one.run(target, "SET GLOBAL read_only = OFF")
        one.wait(applier)
        assert one.orders(target) == one.orders(source)
        assert looked


@pytest.mark.full
def test_an_applier_without_rows_outlives_faults_far_apart(
    servers: list[DatabaseFixture], kafka: KafkaCluster, keyspace: str
) -> None:
    """How long the target has been away counts from the fault at hand: it had all in between."""
    source, target, _ = servers
    with ExitStack() as stack:
        one = OneTable(stack, source, target, kafka, keyspace)
        _, cursor = stack.enter_context(source.one_table())  # of which the target gets nothing
        settings = replace(one.settings(), outage_s=0.5)  # shorter than the pause after a fault
        applier = stack.enter_context(applying(settings))
        one.wait(applier)
        for fault in range(2):
            kill_sessions(target, settings.target.user)
            cursor.execute(f"INSERT INTO t VALUES ({fault})")
            wait_for("it retries", lambda: _retries(applier) > fault)  # noqa: B023 - called here
            one.wait(applier)


def kill_sessions(database: DatabaseFixture, user: str) -> None:
    """End the connections of an account."""
    query = "SELECT id FROM information_schema.processlist WHERE user = %s"
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute(query, (user,))
        for (session,) in cursor.fetchall():
            cursor.execute(f"KILL {session}")


def _retries(applier: RunningApplier) -> int:
    return sum("retrying" in status.note for status in applier.statuses)


@pytest.mark.parametrize(
    ("source", "table", "truncate"),
    [
        ("mysql_a", "user", "TRUNCATE {db}.user"),
        ("mariadb_a", "a$b", 'TRUNCATE/* all */{db}."a$b"'),
    ],
)
def test_an_emptied_table_stops_the_applier(
    *,
    source: str,
    table: str,
    truncate: str,
    mysql_b: DatabaseFixture,
    kafka: KafkaCluster,
    keyspace: str,
    request: pytest.FixtureRequest,
) -> None:
    """A7: TRUNCATE stops the applier whatever the table is called and however it is written."""
    database: DatabaseFixture = request.getfixturevalue(source)
    with ExitStack() as stack:
        one = OneTable(stack, database, mysql_b, kafka, keyspace, table=table)
        one.run(
            database,
            f"INSERT INTO {{db}}.`{table}` VALUES (1, 1, 'a')",
            "SET SESSION sql_mode = 'ANSI_QUOTES'",
            truncate,
        )

        error = RunningApplier(one.settings()).wait_error()

        assert isinstance(error, DefinitionChanged)
        assert f"a statement changes {one.schema}.{table}" in str(error)
