"""A reshard of one table from one source to one target, for tests of an applier."""

from contextlib import ExitStack

from resharding.apply.applier import ApplierSettings
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
from tests.resharding.shards import (
    RunningApplier,
    applier_settings,
    begin,
    fresh_schema,
    sources_of,
    wait_applied,
)
from topics.keyspace.topology import TableVindex

SCHEMA_ONE = (
    "CREATE TABLE {db}.orders (id BIGINT PRIMARY KEY, user_id BIGINT, code VARCHAR(40) UNIQUE)"
)


class OneTable:
    """A source `-` with one table, and one target for all of its rows."""

    def __init__(
        self,
        stack: ExitStack,
        source: DatabaseFixture,
        target: DatabaseFixture,
        kafka: KafkaCluster,
        keyspace: str,
        *,
        table: str = "orders",
    ) -> None:
        self.source, self.target = source, target
        self.schema = fresh_schema()
        self.sources = stack.enter_context(sources_of({"-": source}, kafka, keyspace))
        for database in (source, target):
            self.run(
                database, f"CREATE DATABASE {self.schema}", SCHEMA_ONE.replace("orders", table)
            )
        self.plan = self.sources.plan(
            ("-.2",),
            (TableVindex(self.schema, table, ("user_id",), "hash"),),
            agreed_seqs=self.sources.last_seqs(),
        )
        begin(self.plan, {"-.2": target})

    def run(self, database: DatabaseFixture, *statements: str) -> None:
        """Run statements as root."""
        with database.connect() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement.replace("{db}", self.schema))

    def settings(self, *accepted: str) -> ApplierSettings:
        """Its applier."""
        return applier_settings(self.plan, "-.2", self.target, self.sources, *accepted)

    def wait(self, applier: RunningApplier) -> None:
        """Wait until the target has all."""
        wait_applied(self.sources, self.plan.reshard_id, {"-.2": self.target}, [applier])

    def verified(self) -> None:
        """Leave the result of a comparison on the target."""
        self.run(
            self.target,
            f"REPLACE INTO _shardstream.verified VALUES ('{self.plan.reshard_id}', '', 1, 0)",
        )

    def verified_rows(self) -> int:
        """Number of such results."""
        with self.target.connect() as connection, connection.cursor() as cursor:
            cursor.execute(
                "SELECT COUNT(*) FROM _shardstream.verified WHERE reshard_id = %s",
                (self.plan.reshard_id,),
            )
            [(count,)] = cursor.fetchall()
        return int(count)

    def orders(self, database: DatabaseFixture) -> list[tuple[object, ...]]:
        """The rows."""
        with database.connect(database=self.schema) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT * FROM orders ORDER BY id")
            return list(cursor.fetchall())
