"""A second database of two shards of both families that a subscriber feeds, and its verify."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import Any

from event_token.errors import Retry
from producers.settings import ShardProducerSettings
from shardstream.commands.sinks.verify import ShardReader
from sinks.database.database import SqlDatabase
from sinks.database.verification import (
    VerifiedTable,
    VerifyTarget,
    verify_database,
)
from sinks.rule.policy import OnTypeChange, RowPolicy
from sinks.rule.task_changes import FollowedTables
from sinks.subscriber_batches import Batches, StreamBatch
from tests.postgres_servers import PostgresFixture
from tests.sinks.database.followed import Followed
from tests.sinks.rule.batches import no_copies
from tests.waiting import wait_for
from topics.kafka.client import ClientConfig
from topics.schemas import open_schema_ids
from topics.stream.subscriber import StreamSubscriber

QUERY = "without Spark"
WAIT_S_MAX = 120.0
# A target that falls behind gets larger batches, as of the query.
ROWS_MAX = 10_000
TRIES_MAX = 10


def take(database: SqlDatabase, batch: StreamBatch, number: int) -> None:
    """Apply a batch; again where that is asked for, as by one that brings a new column."""
    for tries in range(1, TRIES_MAX + 1):
        # A table whose copy is under way is not compared.
        following = FollowedTables(
            database.known(),
            RowPolicy(on_type_change=OnTypeChange.NEW_COLUMN),
            on_unlogged=no_copies,
        )
        try:
            database.apply_arrow(batch.planned(QUERY, number), batch.changes(following))
        except Retry:
            if tries == TRIES_MAX:
                raise
        else:
            return


@contextmanager
def feeding(database: SqlDatabase, keyspace: str, config: ClientConfig) -> Iterator[None]:
    """Apply the stream of a keyspace in a thread."""
    errors: list[BaseException] = []
    with closing(StreamSubscriber(keyspace, "-", "earliest", config=config)) as reader:

        def follow() -> None:
            try:
                for number, batch in enumerate(Batches(reader, rows=ROWS_MAX, ms=100)):
                    take(database, batch, number)
            except BaseException as error:  # noqa: BLE001 - the test checks it
                errors.append(error)

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        yield
    thread.join(WAIT_S_MAX)
    assert errors == []
    assert not thread.is_alive()


@dataclass
class Verify:
    """Compares a second database with its sources."""

    followed: Followed
    settings: Sequence[ShardProducerSettings]

    def __call__(self, **options: Any) -> dict[str, VerifiedTable]:
        """Return what was found, by table without its database."""
        config = self.settings[0].kafka
        target = VerifyTarget(self.followed.url, self.followed.options.follower, **options)
        with ExitStack() as opened:
            schema_ids = open_schema_ids(config, None)
            sources = [
                opened.enter_context(closing(ShardReader(each, schema_ids)))
                for each in self.settings
            ]
            found = {each.table: each for each in verify_database(target, sources)}
        return {name.partition(".")[2]: each for name, each in found.items()}

    def damage(self, schema: str, statement: str) -> None:
        """Change the target by hand."""
        server, name = self.followed.server, self.followed.name
        if isinstance(server, PostgresFixture):
            with server.connect(name) as connection:
                connection.execute(f"SET search_path = {schema}; {statement}".encode())
        else:
            server.ask(name, statement)

    def homes(self, name: str) -> str:
        """The name of the table of hidden rows of a table."""
        database = self.followed.database
        with database._transaction() as connection:
            tables = database._catalog.tables(connection)
        return next(each.table.homes for (_, table), each in tables.items() if table == name)

    @property
    def leftovers(self) -> list[str]:
        """The staging tables of comparisons that are there."""
        database = self.followed.database
        with database._transaction() as connection:
            return database._dialect.stages(connection, "verify")

    def until_table(self, name: str) -> None:
        """Wait until the target has a table."""
        wait_for(
            f"a table {name}",
            lambda: any(table == name for _, table in self.followed.database.known()),
        )
