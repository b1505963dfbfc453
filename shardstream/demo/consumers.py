"""What follows the demo's stream: a change log, current state and a second database, on Spark."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg
from psycopg.sql import SQL, Identifier, Literal

from event_token import UsageError
from shardstream.demo.workers import Worker, Workers
from shardstream.local.fetching.cache import Report
from shardstream.local.fetching.postgres_binaries import find_postgres
from shardstream.local.postgres_server import NOT_DURABLE, PostgresServer

CHANGE_LOG: Final = "change log"
CURRENT_STATE: Final = "current state"
SECOND_DATABASE: Final = "second database"

# As docs/second-database.md names it.
PASSWORD_VARIABLE: Final = "SHARDSTREAM_DATABASE_PASSWORD"  # noqa: S105 - the name of a variable
DATABASE: Final = "reports"
FOLLOWER: Final = "follower"


@dataclass(frozen=True, slots=True)
class SecondDatabase:
    """A PostgreSQL database, and the account that the docs name for it."""

    server: PostgresServer
    password: str

    @property
    def url(self) -> str:
        """Without the password."""
        return f"postgresql://{FOLLOWER}@{self.server.host}:{self.server.port}/{DATABASE}"


def start_second_database(folder: Path, password: str, report: Report) -> SecondDatabase | None:
    """Start PostgreSQL with a database to follow; None, with a note, where it is not available."""
    try:
        find_postgres(report)
    except UsageError as missing:
        report(f"the demo has no second database: {missing}")
        return None
    server = PostgresServer(
        folder, password=password, extra_args=NOT_DURABLE, die_with_parent=True, report=report
    )
    try:
        server.start()
        _make_account(server, password)
    except BaseException:
        server.kill()
        raise
    return SecondDatabase(server, password)


def _make_account(server: PostgresServer, password: str) -> None:
    """Create the database, and the account with the rights that docs/second-database.md names."""
    follower, database = Identifier(FOLLOWER), Identifier(DATABASE)
    with psycopg.connect(
        host=server.host,
        port=server.port,
        dbname="postgres",
        user=server.user,
        password=server.password,
        autocommit=True,
    ) as connection:
        connection.execute(
            SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(follower, Literal(password))
        )
        connection.execute(SQL("CREATE DATABASE {}").format(database))
        connection.execute(
            SQL("GRANT CONNECT, CREATE ON DATABASE {} TO {}").format(database, follower)
        )


class Consumers:
    """The consumers' commands, all from the beginning of the stream."""

    def __init__(self, folder: Path, keyspace: str, workers: Workers) -> None:
        """Start nothing yet."""
        self.changelog = folder / "changelog"
        self.state = folder / "state"
        self._checkpoint = folder / "second_database.checkpoint"
        self._keyspace = keyspace
        self._workers = workers
        self._started: dict[str, Worker] = {}

    def start(self, second: SecondDatabase | None) -> None:
        """Start the commands that a user would run."""
        self._start(CHANGE_LOG, "changelog", "--target", str(self.changelog))
        self._start(CURRENT_STATE, "state", "--target", str(self.state))
        if second is not None:
            to = ("--to", second.url, "--checkpoint", str(self._checkpoint))
            secrets = {PASSWORD_VARIABLE: second.password}
            self._start(SECOND_DATABASE, "database", *to, secrets=secrets)

    def _start(
        self, name: str, command: str, *options: str, secrets: Mapping[str, str] | None = None
    ) -> None:
        every = ("--from", "earliest", "--every", "1")
        self._started[name] = self._workers.start(
            command, command, self._keyspace, *options, *every, secrets=secrets
        )

    @property
    def rows(self) -> dict[str, int]:
        """What each holds: changes in the log, rows in the state, changes that were applied."""
        return {
            name: int(worker.last_output().get("rows", 0)) for name, worker in self._started.items()
        }

    @property
    def frontier_us(self) -> int:
        """The time up to which all of them have everything."""
        outputs = (worker.last_output() for worker in self._started.values())
        return min(int(output.get("frontier_us") or 0) for output in outputs)
