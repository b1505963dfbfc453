"""Sessions of a reshard on real servers."""

from pathlib import Path

import pytest

from databases.errors import ServerLost, ServerSilent
from databases.sql import rows
from event_token.errors import UsageError
from resharding.definitions import read_definitions
from resharding.errors import ShardNotListed
from resharding.servers import find_primary, open_session
from resharding.switch.shard_writes import ShardWrites
from shardstream.settings.model import load_settings
from shardstream.settings.reshard_settings import reshard_server
from tests.database_servers import DatabaseFixture, StartServer
from tests.producers.servers.replication import follow, promote, statements
from tests.resharding.accounts import RESHARDER, RESHARDER_PASSWORD, resharder_of
from tests.shardstream.command_line import write_settings


def test_a_session_is_shown_all_rows(database: DatabaseFixture) -> None:
    """A limit of rows that the server has for all sessions would make verify and reads wrong."""
    server = resharder_of(database, "-80")
    with database.connect() as root, root.cursor() as cursor:
        cursor.execute("SET GLOBAL sql_select_limit = 1")
        try:
            session = open_session(server)
        finally:
            cursor.execute("SET GLOBAL sql_select_limit = DEFAULT")
    with session, session.cursor() as cursor:
        cursor.execute("SELECT 1 UNION ALL SELECT 2")
        assert len(cursor.fetchall()) == 2


def test_what_a_session_prints_does_not_depend_on_the_server(database: DatabaseFixture) -> None:
    """Under the server's own sql_mode names would have quotes that other servers do not take."""
    server = resharder_of(database, "-80")
    schema = database.new_database()
    with database.connect(database=schema) as root, root.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id CHAR(9) PRIMARY KEY)")
        cursor.execute("INSERT INTO t VALUES ('x')")
        cursor.execute("SELECT @@GLOBAL.sql_mode")
        [(before,)] = cursor.fetchall()
        cursor.execute("SET GLOBAL sql_mode = 'ANSI_QUOTES,PAD_CHAR_TO_FULL_LENGTH'")
        try:
            session = open_session(server)
        finally:
            cursor.execute("SET GLOBAL sql_mode = %s", (before,))
        with session:
            [table] = read_definitions(session, [schema])
            assert table.statement.startswith("CREATE TABLE `t` (")
            assert rows(session, f"SELECT CONCAT(id, '|') FROM {schema}.t") == [("x|",)]
        cursor.execute(f"DROP DATABASE {schema}")


def test_a_session_may_wait_and_read_for_long(database: DatabaseFixture) -> None:
    """Limits against forgotten sessions and slow queries would end a claim or a comparison."""
    limit = {"mysql": "max_execution_time", "mariadb": "max_statement_time"}[database.flavor.value]
    with database.connect() as root, root.cursor() as cursor:
        cursor.execute(f"SET GLOBAL wait_timeout = 30, GLOBAL {limit} = 1000")
        try:
            session = open_session(resharder_of(database, "-80"))
        finally:
            cursor.execute(f"SET GLOBAL wait_timeout = DEFAULT, GLOBAL {limit} = DEFAULT")
    with session:
        [(idle_s, limited)] = rows(session, f"SELECT @@wait_timeout, @@{limit}")
    assert (idle_s, limited) == (28_800, 0)


Pair = tuple[DatabaseFixture, DatabaseFixture]


@pytest.fixture(params=["start_mysql", "start_mariadb"])
def pair(real_servers: None, request: pytest.FixtureRequest) -> Pair:
    """A server and its replica, of each family in turn."""
    start: StartServer = request.getfixturevalue(request.param)
    primary, replica = start.together(2)
    for database in (primary, replica):
        resharder_of(database, "-")  # before they replicate: each has its own account
        statements(database, "RESET MASTER" if is_mariadb(database) else RESET_MYSQL)
    follow(replica, primary)
    return primary, replica


RESET_MYSQL = "RESET BINARY LOGS AND GTIDS"


def is_mariadb(database: DatabaseFixture) -> bool:
    """Whether it is of that family."""
    return database.flavor.value == "mariadb"


def test_the_servers_say_which_is_the_primary(pair: Pair, tmp_path: Path) -> None:
    """A5: after a planned failover the second server of the settings is the one that is used."""
    first, second = pair
    servers = [resharder_of(database, "-") for database in pair]
    assert find_primary(servers) == servers[0]
    with pytest.raises(ServerLost, match="replica or read-only by now"):
        ShardWrites(servers[1], "ks", "r", ("shop@%",))

    promote(second)
    with pytest.raises(UsageError, match="take writes: a reshard needs one primary per shard"):
        find_primary(servers)
    statements(first, "SET GLOBAL read_only = ON")
    assert find_primary(servers) == servers[1]
    path = settings_file(tmp_path, pair)
    assert reshard_server(load_settings(path), "shop", "-").port == second.port
    with pytest.raises(ShardNotListed, match="no shard '-80'; the settings name: -"):
        reshard_server(load_settings(path), "shop", "-80")

    statements(second, "SET GLOBAL read_only = ON")
    with pytest.raises(UsageError, match=r"no primary among .*each is a replica or read-only"):
        find_primary(servers)
    statements(second, "SET GLOBAL read_only = OFF")
    first.server.kill()
    assert find_primary(servers) == servers[1]
    # Its replica still answers: the shard is not lost.
    statements(second, "SET GLOBAL read_only = ON")
    with pytest.raises(
        ServerLost, match="answers and is a replica or read-only: promote it"
    ) as lost:
        find_primary(servers)
    assert not isinstance(lost.value, ServerSilent)
    second.server.kill()
    with pytest.raises(ServerSilent, match="connecting to"):
        find_primary(servers)


def settings_file(folder: Path, databases: Pair) -> Path:
    """Settings that list both servers of one shard, in this order."""
    path = write_settings(folder, "127.0.0.1:1", "shop", {"-": databases[0]})
    (folder / "password_resharder").write_text(RESHARDER_PASSWORD)
    second = databases[1]
    lines = [
        '[[keyspaces.shop.shards."-".servers]]',
        f'host = "{second.host}"',
        f"port = {second.port}",
        f'user = "{second.user}"',
        'password_file = "password_-"',
        "[keyspaces.shop.reshard]",
        f'user = "{RESHARDER}"',
        'password_file = "password_resharder"',
        'application_accounts = ["shop@%"]',
    ]
    path.write_text(path.read_text() + "\n".join(lines) + "\n")
    return path
