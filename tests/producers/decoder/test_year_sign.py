"""YEAR columns among the signs of a table map, which MySQL 8.0 logged in two ways."""

import struct
import zlib

import pytest

from event_token import Flavor
from producers.decoder import UnsupportedColumn
from producers.decoder.events.event_types import FORMAT_DESCRIPTION
from producers.decoder.events.format_event import year_sign
from producers.decoder.tables.column_types import YEAR_HAS_NO_SIGN, YEAR_HAS_SIGN, YEAR_SIGN_UNKNOWN
from tests.database_servers import DatabaseFixture
from tests.producers.decoder.binlog_events import kind_of
from tests.producers.decoder.capture import capture, executed_set, packets_of, run_statements
from tests.producers.decoder.decoding import decode

# Within a packet: its own header and OK byte, the event's header, the binlog's version.
VERSION_AT, VERSION_BYTES = 4 + 1 + 19 + 2, 50


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("8.0.14", YEAR_HAS_NO_SIGN),
        ("8.0.20-11-log", YEAR_HAS_NO_SIGN),
        ("8.0.21", YEAR_SIGN_UNKNOWN),
        ("8.0.22-debug", YEAR_SIGN_UNKNOWN),
        ("8.0.23", YEAR_HAS_SIGN),
        ("8.4.3", YEAR_HAS_SIGN),
        ("9.7.4", YEAR_HAS_SIGN),
        ("8.0.mysql_aurora", YEAR_SIGN_UNKNOWN),
    ],
)
def test_versions(version: str, expected: int) -> None:
    """The server's version in a format description says how its files are."""
    body = struct.pack(f"<H{VERSION_BYTES}s", 4, version.encode())

    assert year_sign(body, is_mariadb=False) == expected
    assert year_sign(body, is_mariadb=True) == YEAR_HAS_SIGN


def as_version(packet: bytes, version: str) -> bytes:
    """A format description as another server would have written it."""
    assert kind_of(packet) == FORMAT_DESCRIPTION
    event = bytearray(packet[:-4])
    event[VERSION_AT : VERSION_AT + VERSION_BYTES] = version.encode().ljust(VERSION_BYTES, b"\0")
    return bytes(event) + struct.pack("<I", zlib.crc32(event[5:]))


def packets_as_version(server: DatabaseFixture, before: str, version: str) -> list[bytes]:
    """The server's stream since then as that of another version."""
    packets = packets_of(capture(server, before))
    return [as_version(p, version) if kind_of(p) == FORMAT_DESCRIPTION else p for p in packets]


def test_version_of_which_it_is_not_known(mysql_a: DatabaseFixture) -> None:
    """A YEAR behind all numbers does no harm; one before a number stops the shard by name."""
    name = mysql_a.new_database()
    before = executed_set(mysql_a)
    numbers = ", ".join(f"n{i} TINYINT UNSIGNED" for i in range(8))
    run_statements(
        mysql_a,
        name,
        (f"CREATE TABLE t({numbers}, y YEAR)", f"INSERT INTO t VALUES ({'200, ' * 8} 2024)"),
    )
    sink, _ = decode(b"".join(packets_as_version(mysql_a, before, "8.0.21")), Flavor.MYSQL, before)
    [row] = [event.after for event in sink.events() if event.shape is not None]
    assert row == {**{f"n{i}": 200 for i in range(8)}, "y": 2024}

    run_statements(
        mysql_a, name, ("ALTER TABLE t ADD z INT", "INSERT INTO t(y, z) VALUES (2024, -1)")
    )
    with pytest.raises(UnsupportedColumn, match=r"'y' is a YEAR before other numbers.* upgrade"):
        decode(b"".join(packets_as_version(mysql_a, before, "8.0.21")), Flavor.MYSQL, before)


def test_upgrade_between_prepare_and_commit(mysql_a: DatabaseFixture) -> None:
    """Each row is read as its own file says: what was prepared before a change of versions too."""
    name = mysql_a.new_database()
    before = executed_set(mysql_a)
    row = "INSERT INTO t VALUES (2024, -1, 200)"
    run_statements(
        mysql_a,
        name,
        (
            "CREATE TABLE t(y YEAR, b TINYINT, c TINYINT UNSIGNED)",
            *("XA START 'year'", row, "XA END 'year'", "XA PREPARE 'year'"),
        ),
    )
    first = packets_of(capture(mysql_a, before))
    middle = executed_set(mysql_a)
    run_statements(mysql_a, name, ("XA COMMIT 'year'", row))
    rest = packets_as_version(mysql_a, middle, "8.0.20")
    sink, _ = decode(b"".join([*first, *rest]), Flavor.MYSQL, before)

    rows = [event.after for event in sink.events() if event.shape is not None]
    assert rows == [
        {"y": 2024, "b": -1, "c": 200},
        # The server that wrote this one gives a YEAR its bit, and says here that it does not.
        {"y": 2024, "b": 255, "c": -56},
    ]
