"""Packets with binlog events, made by hand, and the types of real ones."""

import struct
import zlib

XID = 16
QUERY = 2
MYSQL_GTID = 33


def event(kind: int, body: bytes) -> bytes:
    """A packet with one event that has a checksum."""
    head = struct.pack("<IBIIIH", 1_700_000_000, kind, 1, 19 + len(body) + 4, 0, 0)
    whole = head + body
    whole += struct.pack("<I", zlib.crc32(whole))
    return struct.pack("<I", len(whole) + 1)[:3] + b"\0\0" + whole


def query(statement: bytes) -> bytes:
    """A packet with a query event without status variables."""
    return event(QUERY, struct.pack("<IIBHH", 1, 0, 0, 0, 0) + b"\0" + statement)


def kind_of(packet: bytes) -> int:
    """The type of the event in a packet."""
    return packet[9]
