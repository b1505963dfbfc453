"""`verify` on real servers: clean under live writes, and it names every row that differs."""

from contextlib import ExitStack
from dataclasses import replace

import pytest
from confluent_kafka import Producer

from event_token.errors import Retry
from resharding.errors import DefinitionChanged
from resharding.verification import VerifiedTarget, VerifySettings, verify_target
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
from tests.resharding.accounts import resharder_of
from tests.resharding.shards import (
    ONE_TARGET,
    TWO_SOURCES,
    applier_settings,
    applying,
    begin_with_tables,
    checkpoint_seqs,
    sources_of,
    wait_applied,
)
from tests.resharding.writers import USERS, shard_of, writing
from tests.waiting import WAIT_S, wait_for
from topics.names import ShardTopics
from topics.progress.copy_topic import (
    CopyAction,
    CopyRequest,
    CopyState,
    ask_and_wait,
    encode,
    read_copies,
    record_key,
)

# The rows written at first, and some hundred of the writers'.
SEQS_MIN = 2_800


class Reshard:
    """Sources with rows, targets with tables, and their appliers."""

    def __init__(
        self,
        stack: ExitStack,
        source_databases: dict[str, DatabaseFixture],
        targets: dict[str, DatabaseFixture],
        kafka: KafkaCluster,
        keyspace: str,
    ) -> None:
        self.targets = targets
        self.source_databases = source_databases
        self.sources = stack.enter_context(sources_of(source_databases, kafka, keyspace))
        self.schema, self.plan = begin_with_tables(self.sources, targets)
        # More rows than a chunk holds.
        for shard, database in source_databases.items():
            users = [u for u in range(USERS) if shard_of(u, list(source_databases)) == shard]
            with (
                database.connect(database=self.schema) as connection,
                connection.cursor() as cursor,
            ):
                cursor.executemany(
                    "INSERT INTO sessions VALUES (%s, %s, 0)",
                    [(user, f"s{n}") for user in users for n in range(5)],
                )
        self.appliers = [
            stack.enter_context(
                applying(applier_settings(self.plan, shard, database, self.sources))
            )
            for shard, database in targets.items()
        ]

    def verified(self, shard: str) -> VerifiedTarget:
        """Verify one target."""
        sources = {s: resharder_of(d, s) for s, d in self.source_databases.items()}
        target = resharder_of(self.targets[shard], shard)
        return verify_target(VerifySettings(self.plan, target, sources, self.sources.kafka))

    def follow(self) -> bool:
        """Whether the targets have the first rows, and some of the writers'."""
        found = (checkpoint_seqs(d, self.plan.reshard_id) for d in self.targets.values())
        return all(sum(seqs.values()) > SEQS_MIN for seqs in found)


def test_verify_under_live_writes(
    clean_servers: list[DatabaseFixture], kafka: KafkaCluster, keyspace: str
) -> None:
    """A target that follows is clean while four writers write; rows that differ are named."""
    *source_servers, database = clean_servers
    source_databases = dict(zip(TWO_SOURCES, source_servers, strict=True))
    targets = {ONE_TARGET: database}
    with ExitStack() as stack:
        reshard = Reshard(stack, source_databases, targets, kafka, keyspace)
        schema = reshard.schema
        with writing(source_databases, schema):
            wait_for("the targets follow", reshard.follow)
            for _ in range(2):
                found = reshard.verified(ONE_TARGET)
                assert found.named == ()
                assert found.rows > 1_000
        wait_applied(reshard.sources, reshard.plan.reshard_id, targets, reshard.appliers)

        user = next(u for u in range(USERS) if shard_of(u, ("-40", ONE_TARGET)) == ONE_TARGET)
        with database.connect(database=schema) as connection, connection.cursor() as cursor:
            where = f"WHERE user_id = {user} AND name"
            cursor.execute(f"UPDATE sessions SET hits = 77 {where} = 's1'")
            cursor.execute(f"DELETE FROM sessions {where} = 's2'")
            cursor.execute(f"INSERT INTO sessions VALUES ({user}, 'S2', 0)")
        broken = reshard.verified(ONE_TARGET)

        assert {(d.table, d.key, d.what) for d in broken.named} == {
            (f"{schema}.sessions", f"user_id={user}, name=s1", "it differs in hits"),
            (f"{schema}.sessions", f"user_id={user}, name=s2", "it is missing in the target"),
            (f"{schema}.sessions", f"user_id={user}, name=S2", "it is in the target alone"),
        }
        with database.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT differing FROM _shardstream.verified")
            assert cursor.fetchall() == ((3,),)


def _check_keys_of_one_collation(
    settings: VerifySettings, source: DatabaseFixture, schema: str
) -> None:
    """A key that is turned into an equal one and back while the target is behind is one change."""
    turned = ("INSERT INTO sessions VALUES (7, 'n1', 0)", "N1", "n1")
    with source.connect(database=schema) as connection, connection.cursor() as cursor:
        cursor.execute(turned[0])
        for name in turned[1:]:
            cursor.execute("UPDATE sessions SET name = %s WHERE user_id = 7", (name,))

    assert verify_target(settings).named == ()


def _check_another_definition(
    settings: VerifySettings, source: DatabaseFixture, schema: str
) -> None:
    """A column that a source alone has is not left out of the comparison."""
    with source.connect(database=schema) as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_log_bin = 0")
        cursor.execute("ALTER TABLE sessions ADD COLUMN extra INT")
        try:
            with pytest.raises(DefinitionChanged, match=rf"{schema}.sessions is not defined as on"):
                verify_target(settings)
        finally:
            cursor.execute("ALTER TABLE sessions DROP COLUMN extra")


@pytest.mark.full
def test_verify_waits_for_copies(
    mysql_a: DatabaseFixture, mysql_b: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """C8: rows that are not copied, or copied and not applied, are no differences."""
    with ExitStack() as stack:
        sources = stack.enter_context(sources_of({"-": mysql_a}, kafka, keyspace))
        schema, plan = begin_with_tables(sources, {"-.2": mysql_b})
        topics, table = ShardTopics(keyspace, "-"), f"{schema}.sessions"
        targets = {"-.2": mysql_b}
        with applying(applier_settings(plan, "-.2", mysql_b, sources)) as applier:
            wait_applied(sources, plan.reshard_id, targets, [applier])
        with mysql_a.connect(database=schema) as connection, connection.cursor() as cursor:
            cursor.execute("INSERT INTO sessions VALUES (1, 's', 0)")
        request = CopyRequest(CopyAction.START, (table,))
        assert not ask_and_wait(sources.kafka, topics, request, WAIT_S).problems

        def copied() -> bool:
            [copy] = read_copies(sources.kafka, topics).values()
            return copy.state is CopyState.COMPLETED

        wait_for("the copy", copied)
        settings = VerifySettings(
            plan, resharder_of(mysql_b, "-.2"), {"-": resharder_of(mysql_a, "-")}, sources.kafka
        )
        with pytest.raises(Retry, match="rows that were copied from - are not applied yet"):
            verify_target(settings)
        with applying(applier_settings(plan, "-.2", mysql_b, sources)) as applier:
            wait_applied(sources, plan.reshard_id, targets, [applier])
        assert verify_target(settings).named == ()

        _check_keys_of_one_collation(settings, mysql_a, schema)
        _check_another_definition(settings, mysql_a, schema)

        [copy] = read_copies(sources.kafka, topics).values()
        paused = replace(copy, state=CopyState.PAUSED)
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        producer.produce(topics.copy, encode(paused), record_key(paused), partition=0)
        assert producer.flush(WAIT_S) == 0
        with pytest.raises(Retry, match=rf"{table} \(paused, 1 rows so far\)"):
            verify_target(settings)
