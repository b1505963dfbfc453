"""Statements on tables that the log leaves out, and what the decoder makes of them."""

import secrets
from dataclasses import dataclass, field

from databases.connection import open_connection
from databases.server import OUTAGE_S
from databases.server_facts import facts_of
from producers.decoder import BatchSummary, StatementInRowStream
from producers.filters.binding import TableFilters
from producers.filters.rules import FilterSettings, TablePattern
from producers.servers.definitions_ahead import DefinitionsAhead, Looked, Wait
from producers.servers.server_list import OpenServer
from producers.servers.statement_checks import StatementCatalog
from producers.settings import ServerSettings
from tests.database_servers import DatabaseFixture
from tests.producers.decoder.capture import capture
from tests.producers.decoder.decoding import ALL_ROWS, SHARD, Sink, new_decoder
from topics.names import ShardTopics

# What the docs name for tables that are changed by statements, on all databases.
GRANTS = "REPLICATION SLAVE, REPLICATION CLIENT, PROCESS, SELECT, TRIGGER ON *.*"


def new_account(database: DatabaseFixture, grants: str = GRANTS) -> str:
    """Make an account whose password is its name."""
    user = f"catalog_{secrets.token_hex(4)}"
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE USER {user}@'%' IDENTIFIED BY '{user}'")
        cursor.execute(f"GRANT {grants} TO {user}@'%'")
    return user


def server_as(database: DatabaseFixture, user: str) -> OpenServer:
    """The server as a producer with this account has it open."""
    settings = ServerSettings(database.host, database.port, user, user)
    topics, family = ShardTopics("ks", SHARD), facts_of(database.flavor)
    return OpenServer(settings, topics, family, open_connection(settings))


def ahead_of(
    server: OpenServer,
    looked: Looked | None = None,
    wait: Wait = lambda _what, _since_s: True,
    outage_s: float = OUTAGE_S,
) -> DefinitionsAhead:
    """What is ahead of a stream that nobody stops and that can wait."""
    return DefinitionsAhead(server, looked or Looked(), wait, outage_s)


def statement_catalog(database: DatabaseFixture, user: str) -> StatementCatalog:
    """The server's catalog as a producer with this account asks it."""
    server = server_as(database, user)
    return StatementCatalog(server, ahead_of(server), has_cascades=True)


def leaving_out(*patterns: str) -> TableFilters:
    """Filter rules that exclude these tables."""
    exclude = tuple(TablePattern(pattern) for pattern in patterns)
    return TableFilters(FilterSettings(exclude=exclude), {})


@dataclass
class Followed:
    """A stream that is decoded on behind each statement that stops it."""

    database: DatabaseFixture
    position: str
    rules: TableFilters | None
    catalog: StatementCatalog
    sink: Sink = field(default_factory=Sink)
    passed: int = 0
    summary: BatchSummary | None = None

    def follow(self) -> dict[str, str]:
        """Decode up to the end; return why transactions stop, by GTID."""
        stops: dict[str, str] = {}
        while True:
            stream = capture(self.database, self.position)
            decoder = new_decoder(
                self.sink,
                self.database.flavor,
                self.position,
                rules=self.rules,
                statement_checks=self.catalog,
            )
            try:
                decoder.feed(stream, 0, len(stream), ALL_ROWS)
            except StatementInRowStream as error:
                stops[decoder.gtid] = str(error)
                self.passed += int(decoder._transaction.statements_passed)
                self.position = str(decoder._position.to_set())
                continue
            self.summary = decoder.take_batch()
            self.passed += self.summary.statements_passed
            self.position = self.summary.position
            return stops
