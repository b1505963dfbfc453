"""Connections to real servers: TLS, credentials, and the replication stream as bytes."""

from collections.abc import Callable, Iterator

import pytest

from databases.connection import open_connection
from databases.errors import ServerLost, ServerRefused
from databases.server import TlsSettings
from databases.server_facts import facts_of, is_on
from databases.sql import rows
from event_token import Flavor, GtidSet, MysqlGtidSet
from producers.copy.definition import read_definition
from producers.errors import BinlogPurged, SameServerId, StreamFailed
from producers.replication.stream import (
    BUFFER_BYTES,
    RANDOM_SERVER_ID_MIN,
    ReplicationStream,
    random_server_id,
    server_error,
)
from producers.settings import ServerSettings
from tests.certificates import Certificates
from tests.database_servers import DatabaseFixture
from tests.producers.session.producing import settings_alone

WAIT_S = 120.0
QUIET_S = 0.5
MARKER = "s3cret-marker"

PACKET_HEADER = 4
XID = 16
EVENT_TYPE_AT = PACKET_HEADER + 1 + 4


def settings_of(database: DatabaseFixture, tls: TlsSettings | None = None) -> ServerSettings:
    """The server with its replication account."""
    return ServerSettings(database.host, database.port, database.user, database.password, tls)


def executed(database: DatabaseFixture) -> GtidSet:
    """The server's executed set."""
    connection = open_connection(settings_of(database))
    try:
        return facts_of(Flavor(database.flavor.value)).history(connection).executed
    finally:
        connection.close()


def event_types(stream: ReplicationStream, commits: int) -> Iterator[int]:
    """Return the types of the events up to the pause that follows this number of commits."""
    while stream.wait(WAIT_S if commits > 0 else QUIET_S):
        stream.fill()
        while stream.end - stream.start >= PACKET_HEADER:
            header = stream.buffer[stream.start : stream.start + PACKET_HEADER]
            end = stream.start + PACKET_HEADER + int.from_bytes(header[:3], "little")
            if end > stream.end:
                break
            event_type = stream.buffer[stream.start + EVENT_TYPE_AT]
            commits -= event_type == XID
            yield event_type
            stream.start = end


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Create a CA and a certificate for the loopback address."""
    return Certificates(tmp_path_factory.mktemp("certificates"), "127.0.0.1")


def test_stream_after_a_position_holds_what_came_later(database: DatabaseFixture) -> None:
    """Both families send only the transaction that is not in the position."""
    flavor = Flavor(database.flavor.value)
    with database.one_table() as (_name, cursor):
        position = executed(database)
        cursor.execute("INSERT INTO t VALUES (1)")
    stream = ReplicationStream.open(
        settings_of(database), facts_of(flavor), position, random_server_id()
    )
    try:
        types = list(event_types(stream, 1))
    finally:
        stream.close()

    table_map, write_rows = 19, {Flavor.MYSQL: 30, Flavor.MARIADB: 23}[flavor]
    assert types.count(XID) == 1
    assert types[types.index(table_map) :][:3] == [table_map, write_rows, XID]


def test_an_address_that_leads_to_another_server_is_noticed(database: DatabaseFixture) -> None:
    """What the catalog of one server shows must not be applied to the rows of another."""
    family = facts_of(Flavor(database.flavor.value))

    with pytest.raises(ServerLost, match="by now, and no more to another"):
        ReplicationStream.open_rest(settings_of(database), family, executed(database), "another")


def test_position_with_tags_is_understood(mysql_a: DatabaseFixture) -> None:
    """With a tagged GTID in the set, the server sends exactly the transactions missing from it."""
    with mysql_a.one_table() as (_name, cursor):
        cursor.execute("SET SESSION gtid_next = 'AUTOMATIC:tagged'")
        cursor.execute("INSERT INTO t VALUES (1)")
        position = executed(mysql_a)
        cursor.execute("INSERT INTO t VALUES (2)")
    assert isinstance(position, MysqlGtidSet)
    assert "tagged" in str(position)
    stream = ReplicationStream.open(
        settings_of(mysql_a), facts_of(Flavor.MYSQL), position, random_server_id()
    )
    try:
        types = list(event_types(stream, 1))
    finally:
        stream.close()

    gtid_tagged = 42
    assert (types.count(gtid_tagged), types.count(XID)) == (1, 1)


def test_buffer_grows_for_a_large_event_and_shrinks_again(mysql_a: DatabaseFixture) -> None:
    """An event larger than the buffer is kept whole; its memory is released afterwards."""
    name = mysql_a.new_database()
    with mysql_a.connect(database=name) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, b LONGBLOB)")
        position = executed(mysql_a)
        cursor.execute("INSERT INTO t VALUES (1, REPEAT('x', 5000000))")
        cursor.execute("INSERT INTO t VALUES (2, 'y')")
    stream = ReplicationStream.open(
        settings_of(mysql_a), facts_of(Flavor.MYSQL), position, random_server_id()
    )
    sizes = set()
    try:
        for _ in event_types(stream, 2):
            sizes.add(len(stream.buffer))
        stream.fill()
        last = len(stream.buffer)
    finally:
        stream.close()

    assert max(sizes) > 5_000_000
    assert last == BUFFER_BYTES


def test_query_connection_speaks_utc(database: DatabaseFixture) -> None:
    """Clocks are read in UTC, whatever the server's time zone."""
    connection = open_connection(settings_of(database))
    try:
        assert rows(connection, "SELECT @@SESSION.time_zone") == [("+00:00",)]
    finally:
        connection.close()


def test_query_connection_is_shown_all_rows_and_keys(database: DatabaseFixture) -> None:
    """The server's row limit and its hiding of generated keys do not apply to our sessions."""
    name = database.new_database()
    limit = "SET GLOBAL sql_select_limit = {}"
    hide = "SET GLOBAL show_gipk_in_create_table_and_information_schema = {}"
    is_mysql = database.flavor is Flavor.MYSQL
    with database.connect(database=name) as root, root.cursor() as cursor:
        if is_mysql:
            cursor.execute("SET sql_generate_invisible_primary_key = ON")
            cursor.execute(hide.format("OFF"))
        cursor.execute("CREATE TABLE t (v INT)")
        cursor.execute("INSERT INTO t VALUES (1), (2)")
        try:
            cursor.execute(limit.format(1))
            connection = open_connection(settings_of(database))
            found = rows(connection, f"SELECT v FROM {name}.t")
            shown = rows(connection, f"SHOW CREATE TABLE {name}.t")[0][1]
            if is_mysql:
                definition = read_definition(connection, settings_alone(database), name, "t")
                assert [column.name for column in definition.key] == ["my_row_id"]
        finally:
            cursor.execute(limit.format("DEFAULT"))
            if is_mysql:
                cursor.execute(hide.format("ON"))
    connection.close()

    assert sorted(found) == [(1,), (2,)]
    assert ("my_row_id" in shown) is is_mysql


@pytest.mark.parametrize(
    ("value", "on"), [(0, False), ("OFF", False), (1, True), ("ON", True), ("NO_LOCK", True)]
)
def test_read_only_is_a_number_or_a_word(value: object, on: bool) -> None:
    """MariaDB 12 reports read_only as a word."""
    assert is_on(value) is on


def test_other_authority_is_refused(mysql_a: DatabaseFixture, certificates: Certificates) -> None:
    """F36: A certificate not signed by the configured CA is refused."""
    with pytest.raises(ServerRefused, match="TLS failed"):
        open_connection(settings_of(mysql_a, TlsSettings(certificates.ca)))


def test_other_host_name_is_refused(mysql_a: DatabaseFixture) -> None:
    """F36: A certificate of the right CA for another host name is refused."""
    own_authority = str(mysql_a.server.datadir / "ca.pem")

    with pytest.raises(ServerRefused, match="TLS failed"):
        open_connection(settings_of(mysql_a, TlsSettings(own_authority)))


def test_server_without_tls_is_refused_when_tls_is_set(
    start_mariadb: Callable[..., DatabaseFixture], certificates: Certificates
) -> None:
    """F36: There is no fallback to clear text."""
    database = start_mariadb(("--skip-ssl",))

    with pytest.raises(ServerRefused):
        open_connection(settings_of(database, TlsSettings(certificates.ca)))


def test_wrong_password_is_refused_without_showing_it(database: DatabaseFixture) -> None:
    """F35: Refused credentials are not retried, and not repeated in the message."""
    server = ServerSettings(database.host, database.port, database.user, MARKER)

    with pytest.raises(ServerRefused, match="Access denied") as raised:
        open_connection(server)

    assert MARKER not in str(raised.value) + repr(server)


def test_nobody_listening_is_a_lost_server() -> None:
    """An unreachable server is a transient fault."""
    with pytest.raises(ServerLost, match=r"127\.0\.0\.1:1"):
        open_connection(ServerSettings("127.0.0.1", 1, "nobody", MARKER))


def test_server_errors_have_their_names() -> None:
    """Errors that end a stream are distinguished by what an operator must do."""
    same = "A replica with the same server_uuid/server_id as this replica has connected"
    purged = "the source has purged binary logs containing GTIDs that the replica requires"
    reset = "I/O error reading log event; the first event '' at 4, the last event read from"

    assert isinstance(server_error(1236, same, "stream"), SameServerId)
    assert "server_id" in str(server_error(1236, same, "stream"))
    assert isinstance(server_error(1236, purged, "stream"), BinlogPurged)
    hole = "The binlog on the master is missing the GTID 0-1-8 requested by the slave (even though"
    assert isinstance(server_error(1236, hole, "stream"), BinlogPurged)
    assert isinstance(server_error(1236, reset, "stream"), StreamFailed)
    assert isinstance(server_error(1045, "Access denied", "stream"), ServerRefused)
    assert isinstance(server_error(1053, "Server shutdown in progress", "stream"), ServerLost)


def test_random_server_ids_stay_in_their_range() -> None:
    """Producers' server ids are above those that people choose, and differ."""
    ids = {random_server_id() for _ in range(100)}

    assert min(ids) >= RANDOM_SERVER_ID_MIN
    assert max(ids) < 2**32
    assert len(ids) > 90
