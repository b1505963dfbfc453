"""Passwords and tokens that end every twenty seconds, for longer than other tests can wait."""

import json
import os
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from caching.protocol import CacheLayout
from caching.protocol.freshness import holds
from caching.stores.on_redis.store import RedisStore
from shardstream.local.cache_server import RedisServer
from shardstream.local.local_server import free_ports
from tests.caching.cache_servers import set_password, started
from tests.caching.invalidating.invalidating import Client
from tests.caching.protocol.tokens import TRUSTED
from tests.caching.stores.opened import BUCKETS, OPTIONS, Opened
from tests.database_servers import DatabaseFixture, StartServer
from tests.faults.listeners import ListeningCluster
from tests.faults.sessions import PASSWORD, end_sessions, new_account
from tests.faults.tokens import runs, with_tokens
from tests.postgres_servers import PostgresFixture
from tests.producers.servers.replication import statements
from tests.producers.session.producing import (
    Running,
    WrittenLog,
    check_log,
    check_progress,
    read_log,
    replay,
    settings_of,
    table_rows,
    wait_caught_up,
)
from tests.producers.session.workload import KEYS, Workload
from tests.resharding.flow import reading
from tests.resharding.stream_checks import check_order
from tests.shardstream.command_line import (
    Background,
    background,
    publishing,
    run,
    streaming,
    write_cache,
)
from tests.shardstream.streams.process_clients import curl
from tests.waiting import wait_for
from topics.kafka.client import OAUTH_COMMAND, ClientConfig
from topics.records.vevent import EventType, VEvent

pytestmark = pytest.mark.full

# An hour of a service: LIFE_S=60 LIVES=60.
LIFE_S = int(os.environ.get("LIFE_S", "20"))
# Each is like the others.
LIVES = int(os.environ.get("LIVES", "5"))
PAUSE_S = 0.2


@pytest.fixture
def listening(real_servers: None, tmp_path: Path) -> Iterator[ListeningCluster]:
    """A broker that takes tokens."""
    cluster = ListeningCluster(tmp_path / "kafka")
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()
        cluster.proxy.close()


class ChangingPassword:
    """An account whose password is another one after each life, when its connections end, too."""

    def __init__(self, database: DatabaseFixture, file: Path) -> None:
        """Create the account; the file has its password."""
        self.database, self.file = database, file
        self.user, self._account, created = new_account(database)
        statements(database, *created)
        file.write_text(PASSWORD)

    def change(self) -> None:
        """Change it as a vault does: who logs in from now on needs the one in the file."""
        password = f"{PASSWORD}-{secrets.token_hex(4)}"
        statements(self.database, f"ALTER USER {self._account} IDENTIFIED BY '{password}'")
        self.file.write_text(password)
        end_sessions(self.database, self.user)


class ChangingRole:
    """An account of a second database, whose password changes likewise."""

    def __init__(self, server: PostgresFixture, file: Path) -> None:
        """Create the database and the account; the file has its password."""
        self._server, self._file = server, file
        self.database = server.new_database()
        self._user, password = server.new_login(self.database)
        file.write_text(password)
        place = f"{server.host}:{server.port}/{self.database}"
        self.url = f"postgresql://{self._user}@{place}?password_file={file}"

    def change(self) -> None:
        """Change it, and end the account's connections."""
        password = secrets.token_hex(8)
        self._server.ask("postgres", f"ALTER ROLE {self._user} PASSWORD '{password}'")
        self._file.write_text(password)
        sessions = f"FROM pg_stat_activity WHERE usename = '{self._user}'"
        self._server.ask("postgres", f"SELECT pg_terminate_backend(pid) {sessions}")


class ChangingUser:
    """A user of the store of a cache, likewise."""

    def __init__(self, server: RedisServer, file: Path) -> None:
        """Create the user; the file has its password."""
        self._server, self.file = server, file
        self.change()

    def change(self) -> None:
        """Change it, and end the user's connections."""
        password = secrets.token_hex(8)
        set_password(self._server, password)
        self.file.write_text(password)


def write_settings(
    path: Path, client: ClientConfig, keyspace: str, accounts: Mapping[str, ChangingPassword]
) -> str:
    """Write the settings of shards whose passwords, and tokens, commands print."""
    lines = ["[producer]", "accept_loss_at_server_crash = true", "[kafka]"]
    lines += [f"bootstrap_servers = {json.dumps(client.brokers)}"]
    lines += [f"oauth = {{command = {client[OAUTH_COMMAND]}}}"]
    lines += [f'client = {{"security.protocol" = "{client["security.protocol"]}"}}']
    for shard, account in accounts.items():
        database = account.database
        lines += [f'[keyspaces.{keyspace}.shards."{shard}"]', f'flavor = "{database.flavor}"']
        lines += [f'[[keyspaces.{keyspace}.shards."{shard}".servers]]']
        lines += [f'host = "{database.host}"', f"port = {database.port}"]
        lines += [f'user = "{account.user}"', f"password_valid_s = {LIFE_S}"]
        lines += [f'password_command = ["cat", {json.dumps(str(account.file))}]']
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def _has_more(statuses: Sequence[str], number: int) -> bool:
    return len(statuses) > number


def test_passwords_and_tokens_that_end_soon_stop_nobody(
    start_mysql: StartServer,
    postgres: PostgresFixture,
    listening: ListeningCluster,
    keyspace: str,
    tmp_path: Path,
) -> None:
    """All that follows a keyspace goes on over all lives, and is asked for its status.

    Producers, sinks with and without Spark, an invalidator, streams over HTTP and a reader: no row
    is lost or repeated. Services end passwords and tokens after a quarter of an hour, and
    connections at times.
    """
    shards = ("-80", "80-")
    databases = dict(zip(shards, start_mysql.together(len(shards)), strict=True))
    names = {shard: database.new_database() for shard, database in databases.items()}
    accounts = {s: ChangingPassword(d, tmp_path / f"password{s}") for s, d in databases.items()}
    role = ChangingRole(postgres, tmp_path / "password-role")
    client = with_tokens(listening, tmp_path, LIFE_S)
    config = write_settings(tmp_path / "shardstream.toml", client, keyspace, accounts)
    cached, other = shards
    cache = f"pages-{keyspace}"
    looking = {s: settings_of(d, listening, keyspace, shard=s) for s, d in databases.items()}
    lake, address = str(tmp_path / "lake"), f"127.0.0.1:{free_ports(1)[0]}"
    sinks = {
        "changelog": ("run", keyspace, "--target", lake, "--every", "1"),
        "database": ("run", keyspace, "--to", role.url, "--local", "--every", "1"),
    }
    statuses: list[str] = []

    with ExitStack() as stack:
        [redis] = stack.enter_context(
            started([RedisServer(tmp_path / "redis", die_with_parent=True)])
        )
        user = ChangingUser(redis, tmp_path / "password-user")
        cache_settings = write_cache(
            tmp_path, keyspace, cache, f"app@{redis.address}", f"{names[cached]}.t"
        )
        with cache_settings.open("a") as settings_file:
            settings_file.write(f'password_file = "{user.file.name}"\n')
        store = RedisStore(CacheLayout(cache, BUCKETS), f"redis://{redis.address}", OPTIONS)
        opened = Opened(store, None, None, None, None)  # type: ignore[arg-type]  # a client's side
        stack.callback(opened.store.close)
        pages = Client(opened)

        changed: list[ChangingPassword | ChangingRole | ChangingUser]
        changed = [*accounts.values(), role, user]

        def end_lives(stop: threading.Event) -> None:
            while not stop.wait(LIFE_S):
                for account in changed:
                    account.change()
                statuses.append(run("status", "--config", config).stderr)

        def start(name: str, *arguments: str) -> Background:
            options = (*arguments, "--config", config, "--json")
            return stack.enter_context(background(tmp_path, name, *options))

        commands = [start(shard, "produce", keyspace, shard) for shard in shards]
        for producer in commands:
            producer.wait_for("streaming", streaming)
        loads = [Workload(d, names[s], pause_s=PAUSE_S) for s, d in databases.items()]
        # The KeyMap's table has to be on each shard.
        statements(
            databases[other],
            f"CREATE DATABASE {names[cached]}",
            f"CREATE TABLE {names[cached]}.t LIKE {names[other]}.t",
        )
        following = [start(name, name, *arguments) for name, arguments in sinks.items()]
        serve = start("serve", "serve", "--streams", "--http", address)
        serve.wait_for("its address", lambda found: bool(found.lines))
        invalidator = start("invalidator", "invalidate", keyspace, "--cache", cache)
        commands += [*following, serve, invalidator]
        by_curl = curl(tmp_path / "curl", f"http://{address}/v1/streams/{keyspace}?start=earliest")
        reader = stack.enter_context(reading(client, keyspace))
        changing = Running("the vault", end_lives)
        with ExitStack() as writing:
            for load in loads:
                writing.enter_context(load)
            invalidator.wait_for("a position", publishing)
            pages.make_floors(*(f"t:{key}" for key in range(KEYS)))
            # Each life is waited for by itself, so that there may be any number of them.
            for life in range(LIVES):
                wait_for(f"life {life} is over", partial(_has_more, statuses, life))
        changing.end()
        for settings in looking.values():
            wait_caught_up(settings)
        logs = {shard: read_log(settings) for shard, settings in looking.items()}
        ends = {(shard, log.events[-1].seq) for shard, log in logs.items()}
        reader.wait_for("all of the reader", lambda: ends <= set(places(reader.events)))
        reader.wait_for("all of curl", lambda: ends <= {each.place for each in by_curl.events})
        for key, change in last_changes(logs[cached]).items():
            wait_for(f"{key} is invalidated", partial(is_invalidated, pages, key, change))
        last_us = max(log.events[-1].timestamp_us for log in logs.values())
        for sink in following:
            sink.wait_for("all changes", lambda found: has_all(found, last_us))
        over_http = [each.place for each in by_curl.kill() if each.place is not None]
        ended = [each.errors for each in commands if each.process.poll() is not None]
        checks = [
            run("changelog", "check", lake),
            run("database", "verify", keyspace, "--to", role.url, "--config", config),
        ]

    assert ended == []
    assert statuses == [""] * len(statuses)
    assert [(check.returncode, check.stderr) for check in checks] == [(0, "")] * len(checks)
    check_order(reader.events, logs)
    expected = places(reader.events)
    assert over_http[: len(expected)] == expected[: len(over_http)]
    for shard, log in logs.items():
        check_log(log)
        check_progress(log)
        found = replay(log, names[shard], "t")
        assert found == table_rows(databases[shard], names[shard], "t")
    # Six processes, and the reader in this one, asked in each life.
    assert runs(tmp_path) >= 7 * LIVES


def places(events: Sequence[VEvent]) -> list[tuple[str, int]]:
    """Where the events of logs stand."""
    return [(event.shard, event.seq) for event in list(events)]


def last_changes(log: WrittenLog) -> dict[str, VEvent]:
    """The last change of each row, by the row's key in a cache."""
    rows = (event for event in log.events if event.type is EventType.ROW and event.table == "t")
    keys = ((event, (event.after or event.before or {})["id"]) for event in rows)
    return {f"t:{key!s}": event for event, key in keys}


def is_invalidated(pages: Client, key: str, change: VEvent) -> bool:
    """Whether no value from before a change can be read."""
    return holds(pages.floor(key).tokens, change.token, TRUSTED)


def has_all(sink: Background, last_us: int) -> bool:
    """Whether a sink has all changes up to a time."""
    return any((line["frontier_us"] or 0) > last_us for line in sink.lines)
