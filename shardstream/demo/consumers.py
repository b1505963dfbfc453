"""What follows the demo's stream: a change log, current state and a second database, on Spark."""

import secrets
from pathlib import Path
from typing import Final

import psycopg
from psycopg.sql import SQL, Identifier, Literal

from event_token import UsageError
from shardstream.demo import spark_job
from shardstream.demo.spark_job import (
    CHANGE_LOG,
    CHANGE_LOG_FOLDER,
    CURRENT_STATE,
    SECOND_DATABASE,
    STATE_FOLDER,
    URL_VARIABLE,
)
from shardstream.demo.story import Story, Worker
from shardstream.local.fetching import Report
from shardstream.local.postgres_server import NOT_DURABLE, PostgresServer, find_postgres

DATABASE: Final = "reports"
FOLLOWER: Final = "follower"


def start_second_database(folder: Path, report: Report) -> PostgresServer | None:
    """Start PostgreSQL with a database to follow; None, with a note, where it is not available."""
    try:
        find_postgres(report)
    except UsageError as missing:
        report(f"the demo has no second database: {missing}")
        return None
    server = PostgresServer(
        folder,
        password=secrets.token_hex(8),
        extra_args=NOT_DURABLE,
        die_with_parent=True,
        report=report,
    )
    try:
        server.start()
        _make_account(server)
    except BaseException:
        server.kill()
        raise
    return server


def database_url(server: PostgresServer) -> str:
    """Return the URL of the second database, with the account's password: the server's own."""
    return f"postgresql://{FOLLOWER}:{server.password}@{server.host}:{server.port}/{DATABASE}"


def _make_account(server: PostgresServer) -> None:
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
        for statement in (
            SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(follower, Literal(server.password)),
            SQL("CREATE DATABASE {}").format(database),
            SQL("GRANT CONNECT, CREATE ON DATABASE {} TO {}").format(database, follower),
        ):
            connection.execute(statement)


class Consumers:
    """The Spark application of all consumers, which read the stream from its beginning."""

    def __init__(self, story: Story, second: PostgresServer | None) -> None:
        """Start nothing yet. `second`: the server of the second database."""
        self.changelog = story.folder / CHANGE_LOG_FOLDER
        self.state = story.folder / STATE_FOLDER
        self.names = [CHANGE_LOG, CURRENT_STATE, *([SECOND_DATABASE] if second else [])]
        self._story = story
        self._second = second
        self._job: Worker | None = None

    def start(self) -> None:
        """Start the application."""
        story = self._story
        servers = story.stack.kafka.bootstrap_servers
        secrets = {} if self._second is None else {URL_VARIABLE: database_url(self._second)}
        command = (spark_job.__name__, story.keyspace, servers, str(story.folder))
        self._job = story.workers.start_job("spark", command, secrets)

    @property
    def rows(self) -> dict[str, int]:
        """What each holds: changes in the log, rows in the state, changes that were applied."""
        held = self._held()
        return {name: held.get(name, {}).get("rows", 0) for name in self.names}

    @property
    def frontier_us(self) -> int:
        """The time up to which all of them have everything."""
        held = self._held()
        return min(held.get(name, {}).get("frontier_us", 0) for name in self.names)

    def _held(self) -> dict[str, dict[str, int]]:
        return {} if self._job is None else self._job.last_output()
