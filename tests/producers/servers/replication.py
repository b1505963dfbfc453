"""Replicas of both families for tests, and the server that a producer follows."""

from databases.sql import rows
from event_token import Flavor
from producers.settings import ShardProducerSettings
from tests.database_servers import DatabaseFixture, StartServer
from tests.waiting import wait_for
from topics.kafka.partition_reader import read_tail
from topics.names import ShardTopics
from topics.progress.codec import decode_progress
from topics.schemas import open_schema_ids

# How each family names a replica in its statements.
REPLICA = {Flavor.MYSQL: "REPLICA", Flavor.MARIADB: "SLAVE"}


def statements(database: DatabaseFixture, *texts: str) -> None:
    """Run statements as root."""
    with database.connect() as connection, connection.cursor() as cursor:
        for text in texts:
            cursor.execute(text)


def follow(replica: DatabaseFixture, primary: DatabaseFixture) -> None:
    """Make one server the replica of the other."""
    if primary.flavor is Flavor.MARIADB:
        statements(
            replica,
            "SET GLOBAL read_only = ON",
            f"CHANGE MASTER TO MASTER_HOST = '{primary.host}', MASTER_PORT = {primary.port}, "
            f"MASTER_USER = '{primary.user}', MASTER_PASSWORD = '{primary.password}', "
            "MASTER_CONNECT_RETRY = 1, MASTER_USE_GTID = slave_pos, MASTER_SSL = 0, "
            "MASTER_SSL_VERIFY_SERVER_CERT = 0",
            "START SLAVE",
        )
        return
    statements(
        replica,
        f"CHANGE REPLICATION SOURCE TO SOURCE_HOST = '{primary.host}', "
        f"SOURCE_PORT = {primary.port}, SOURCE_USER = '{primary.user}', "
        f"SOURCE_PASSWORD = '{primary.password}', SOURCE_AUTO_POSITION = 1, "
        "SOURCE_CONNECT_RETRY = 1, SOURCE_RETRY_COUNT = 1000, "
        "GET_SOURCE_PUBLIC_KEY = 1",
        "START REPLICA",
    )


def start_pair(
    start_server: StartServer, extra_args: tuple[str, ...] = ()
) -> tuple[DatabaseFixture, DatabaseFixture]:
    """A primary and its replica."""
    primary, replica = start_server.together(2, extra_args)
    follow(replica, primary)
    return primary, replica


def start_pair_with_table(
    start_server: StartServer, extra_args: tuple[str, ...] = ()
) -> tuple[DatabaseFixture, DatabaseFixture, str]:
    """A primary, its replica, and a schema that both have, with the table `t (id)`."""
    primary, replica = start_pair(start_server, extra_args)
    with primary.one_table() as (name, _):
        wait_same(replica, primary)
    return primary, replica, name


def purge_to(database: DatabaseFixture, binlog: str) -> None:
    """Purge the binlogs before this one, as soon as no dump thread reads them any more."""

    def is_oldest() -> bool:
        statements(database, f"PURGE BINARY LOGS TO '{binlog}'")
        with database.connect() as connection:
            return bool(rows(connection, "SHOW BINARY LOGS")[0][0] == binlog)

    wait_for(f"{binlog} is the oldest binlog", is_oldest)


def promote(replica: DatabaseFixture) -> None:
    """Make a replica a primary."""
    if replica.flavor is Flavor.MARIADB:
        statements(replica, "STOP SLAVE", "RESET SLAVE ALL", "SET GLOBAL read_only = OFF")
    else:
        statements(replica, "STOP REPLICA", "RESET REPLICA ALL")


def executed(database: DatabaseFixture) -> str:
    """The server's executed set."""
    variable = "gtid_executed" if database.flavor is Flavor.MYSQL else "gtid_binlog_pos"
    with database.connect() as connection:
        return str(rows(connection, f"SELECT @@GLOBAL.{variable}")[0][0]).replace("\n", "")


def wait_same(replica: DatabaseFixture, primary: DatabaseFixture) -> None:
    """Wait until the replica has applied everything the primary has executed by now."""
    wanted = executed(primary)
    function = (
        "WAIT_FOR_EXECUTED_GTID_SET" if primary.flavor is Flavor.MYSQL else "MASTER_GTID_WAIT"
    )
    with replica.connect() as connection:
        [(late,)] = rows(connection, f"SELECT {function}(%s, 120)", (wanted,))
    assert late == 0


def followed(settings: ShardProducerSettings) -> str:
    """Return the server that the last progress record names."""
    topics = ShardTopics(settings.keyspace, settings.shard)
    last = read_tail(settings.kafka, topics.progress).last
    if last is None:
        return ""
    return decode_progress(last.value, open_schema_ids(settings.kafka, None)).server


def wait_followed(settings: ShardProducerSettings, database: DatabaseFixture) -> None:
    """Wait until the producer commits what it reads from this server."""
    name = f"{database.host}:{database.port}"
    wait_for(f"{name} is followed", lambda: followed(settings) == name)
