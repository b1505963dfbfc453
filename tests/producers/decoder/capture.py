"""Statements on a real server, and its replication stream as bytes, up to its end."""

import itertools
import struct
from typing import Any

from event_token import Flavor, MysqlGtidSet
from producers.replication.stream import encode_mysql_gtid_set
from tests.database_servers import DatabaseFixture

# A dump that ends with an EOF packet instead of waiting for more.
_NON_BLOCKING = 1
_THROUGH_GTID = 4
_FIRST_EVENT_POSITION = 4
# Two dumps with one server id would end each other.
_SERVER_IDS = itertools.count(60_000)


def run_statements(server: DatabaseFixture, database: str, statements: tuple[str, ...]) -> None:
    """Run statements in one session in UTC; `{db}` stands for the database."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone='+00:00'")
        cursor.execute(f"USE {database}")
        for statement in statements:
            cursor.execute(statement.replace("{db}", database))


def executed_set(database: DatabaseFixture) -> str:
    """The GTID set that the server has executed."""
    variable = "gtid_executed" if database.flavor is Flavor.MYSQL else "gtid_binlog_pos"
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT @@GLOBAL.{variable}")
        row = cursor.fetchone()
        assert row is not None
        return str(row[0]).replace("\n", "")


def capture(database: DatabaseFixture, after: str, checksum: str = "CRC32") -> bytes:
    """All packets behind the position `after`, headers included, without the EOF at their end."""
    connection: Any = database.connect()
    try:
        with connection.cursor() as cursor:
            cursor.execute(f"SET @master_binlog_checksum='{checksum}'")
            cursor.execute(f"SET @source_binlog_checksum='{checksum}'")
            if database.flavor is Flavor.MARIADB:
                cursor.execute("SET @mariadb_slave_capability=4")
                cursor.execute("SET @slave_connect_state=%s", (after,))
        command = _dump_command(database, after)
        connection._write_bytes(struct.pack("<I", len(command))[:3] + b"\0" + command)
        return _read_packets(connection._rfile)
    finally:
        connection._force_close()


def _dump_command(database: DatabaseFixture, after: str) -> bytes:
    server_id = next(_SERVER_IDS)
    if database.flavor is Flavor.MARIADB:
        return struct.pack("<BIHI", 0x12, _FIRST_EVENT_POSITION, _NON_BLOCKING, server_id)
    encoded = encode_mysql_gtid_set(MysqlGtidSet.parse(after))
    return (
        struct.pack("<BHII", 0x1E, _NON_BLOCKING | _THROUGH_GTID, server_id, 0)
        + struct.pack("<QI", _FIRST_EVENT_POSITION, len(encoded))
        + encoded
    )


def _read_packets(stream: Any) -> bytes:
    packets = bytearray()
    while True:
        header = stream.read(4)
        length = int.from_bytes(header[:3], "little")
        packet = stream.read(length)
        assert len(packet) == length, "the server closed the connection"
        if packet[:1] == b"\xfe" and length < 9:
            return bytes(packets)
        assert packet[:1] != b"\xff", packet
        packets += header + packet


def packets_of(stream: bytes) -> list[bytes]:
    """The packets of a stream, headers included."""
    packets = []
    pos = 0
    while pos < len(stream):
        stop = pos + 4 + int.from_bytes(stream[pos : pos + 3], "little")
        packets.append(stream[pos:stop])
        pos = stop
    return packets
