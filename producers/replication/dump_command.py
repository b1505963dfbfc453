"""Encodes the commands that start a replication stream. Pure."""

import struct
from typing import Final

from event_token import MysqlGtidSet

COM_BINLOG_DUMP: Final = 0x12
COM_REGISTER_SLAVE: Final = 0x15
COM_BINLOG_DUMP_GTID: Final = 0x1E

# The stream ends with an EOF packet instead of waiting for more.
_BINLOG_DUMP_NON_BLOCK: Final = 0x01
_BINLOG_THROUGH_GTID: Final = 0x04
# Every binlog begins with 4 magic bytes; with GTIDs the server finds the place itself.
FIRST_EVENT_POSITION: Final = 4
_REPORTED_HOST: Final = b"shardstream"
# 1 in the top and the lowest byte of the first word: the format with tags (MySQL 8.3+).
_TAGGED_FORMAT: Final = (1 << 56) | 1


def register_command(server_id: int) -> bytes:
    """COM_REGISTER_SLAVE: makes the connection visible in SHOW REPLICAS."""
    host = bytes([len(_REPORTED_HOST)]) + _REPORTED_HOST
    no_user_no_password_no_port = b"\0\0\0\0"
    rank_and_source_id = bytes(8)
    return (
        struct.pack("<BI", COM_REGISTER_SLAVE, server_id)
        + host
        + no_user_no_password_no_port
        + rank_and_source_id
    )


def mysql_dump_command(server_id: int, position: MysqlGtidSet, *, to_end: bool = False) -> bytes:
    """COM_BINLOG_DUMP_GTID: all transactions that are not in `position`.

    `to_end`: the stream ends at the present end of the binlogs.
    """
    encoded = encode_mysql_gtid_set(position)
    name_length = 0
    flags = _BINLOG_THROUGH_GTID | (_BINLOG_DUMP_NON_BLOCK if to_end else 0)
    return (
        struct.pack("<BHI", COM_BINLOG_DUMP_GTID, flags, server_id)
        + struct.pack("<IQ", name_length, FIRST_EVENT_POSITION)
        + struct.pack("<I", len(encoded))
        + encoded
    )


def mariadb_dump_command(server_id: int) -> bytes:
    """COM_BINLOG_DUMP without a file: the server starts at @slave_connect_state."""
    flags = 0
    return struct.pack("<BIHI", COM_BINLOG_DUMP, FIRST_EVENT_POSITION, flags, server_id)


def file_dump_command(server_id: int, name: str, position: int) -> bytes:
    """COM_BINLOG_DUMP from a position of a binlog file to the present end of the binlogs."""
    return (
        struct.pack("<BIHI", COM_BINLOG_DUMP, position, _BINLOG_DUMP_NON_BLOCK, server_id)
        + name.encode()
    )


def encode_mysql_gtid_set(position: MysqlGtidSet) -> bytes:
    """The server's binary form; without tags the older format, which all versions read.

    An interval is (first, last + 1), both 64 bits; a tag is its length times two and its text.
    """
    tagged = any(tag for (_, tag), _ in position.servers)
    count = len(position.servers)
    parts = [struct.pack("<Q", (count << 8) | _TAGGED_FORMAT if tagged else count)]
    for (sid, tag), intervals in position.servers:
        parts.append(sid)
        if tagged:
            text = tag.encode("ascii")
            parts.append(bytes([len(text) << 1]) + text)
        parts.append(struct.pack("<Q", len(intervals)))
        parts.extend(struct.pack("<QQ", first, last + 1) for first, last in intervals)
    return b"".join(parts)
