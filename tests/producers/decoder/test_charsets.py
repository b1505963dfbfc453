"""Every code of every character set, against what both server families make of it."""

import pytest

from producers.decoder.values.charset import UnmappedText, decode_text
from tests.database_servers import DatabaseFixture
from tests.producers.decoder.capture import capture, executed_set, run_statements
from tests.producers.decoder.decoding import decode
from topics.records.table_shape import ValueKind

UNICODE = {"binary", "utf8mb3", "utf8mb4", "ucs2", "utf16", "utf16le", "utf32"}
THREE_BYTES = {"ujis", "eucjpms"}
CODES_A_STATEMENT = 10_000


def shipped_charsets(database: DatabaseFixture) -> list[tuple[str, int]]:
    """The server's character sets but for Unicode's, each with its longest character's bytes."""
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT character_set_name, maxlen FROM information_schema.character_sets")
        return [(str(name), int(size)) for name, size in cursor.fetchall() if name not in UNICODE]


def codes_of(charset: str, bytes_max: int) -> list[bytes]:
    """Every code of one and two bytes; EUC's of three; every 50th of gb18030's long ones."""
    codes = [bytes([byte]) for byte in range(256)]
    if bytes_max > 1:
        codes += [bytes([lead, byte]) for lead in range(0x80, 256) for byte in range(256)]
    if charset in THREE_BYTES:
        codes += [bytes([0x8F, a, b]) for a in range(0xA1, 0xFF) for b in range(0xA1, 0xFF)]
    if charset == "gb18030":
        codes += [chr(point).encode("gb18030") for point in range(0x10000, 0x110000, 50)]
        codes.append(bytes.fromhex("8135f437"))
    return codes


def read_by_server(
    database: DatabaseFixture, charset: str, codes: list[bytes]
) -> dict[bytes, str | None]:
    """The character of each code that stands for one; None where it shows `?` or U+FFFD."""
    found: dict[bytes, str | None] = {}
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = '', sql_log_bin = 0, names utf8mb4")
        cursor.execute("CREATE TEMPORARY TABLE mysql.codes (code VARBINARY(4))")
        for begin in range(0, len(codes), CODES_A_STATEMENT):
            chunk = codes[begin : begin + CODES_A_STATEMENT]
            values = ",".join(f"(x'{code.hex()}')" for code in chunk)
            cursor.execute(f"INSERT INTO mysql.codes VALUES {values}")
        cursor.execute(
            f"SELECT code, CONVERT(code USING {charset}), "
            f"HEX(CONVERT(CONVERT(code USING {charset}) USING utf8mb4)) FROM mysql.codes "
            f"WHERE CHAR_LENGTH(CONVERT(code USING {charset})) = 1 "
            f"AND CONVERT(CONVERT(code USING {charset}) USING binary) = code"
        )
        for code, _, text_hex in cursor.fetchall():
            text = bytes.fromhex(text_hex).decode("utf-8")
            is_unmapped = text in ("", "\ufffd") or (text == "?" and code != b"?")
            found[bytes(code)] = None if is_unmapped else text
        cursor.execute("DROP TEMPORARY TABLE mysql.codes")
    return found


def read_here(code: bytes, charset: str) -> str | None:
    try:
        return decode_text(code, charset)
    except (UnmappedText, UnicodeDecodeError):
        return None


@pytest.mark.parametrize("server", ["mysql_a", "mariadb_a"])
def test_every_code_is_read_as_the_server_reads_it(
    real_servers: None, server: str, request: pytest.FixtureRequest
) -> None:
    """All character sets that a server ships: the same character, or none in both."""
    database = request.getfixturevalue(server)
    charsets = shipped_charsets(database)

    assert len(charsets) >= 33
    for charset, bytes_max in charsets:
        expected = read_by_server(database, charset, codes_of(charset, bytes_max))
        got = {code: read_here(code, charset) for code in expected}

        assert len(expected) >= 128
        assert {code: got[code] for code in got if got[code] != expected[code]} == {}, charset


def test_text_that_is_none_can_be_kept_as_bytes(database: DatabaseFixture) -> None:
    """A column listed in text_as_bytes is logged as the server's bytes, in its key too."""
    name = database.new_database()
    before = executed_set(database)
    run_statements(
        database,
        name,
        (
            "CREATE TABLE t(a VARCHAR(9) CHARSET cp1251 PRIMARY KEY, b TEXT CHARSET sjis)",
            "INSERT INTO t VALUES (_cp1251 x'C098C0', '表')",
        ),
    )
    listed = frozenset({f"{name}.t.a", f"{name}.t.none"})
    sink, _ = decode(capture(database, before), database.flavor, before, text_as_bytes=listed)
    row = sink.events()[-1]

    assert row.after == {"a": b"\xc0\x98\xc0", "b": "表"}
    assert row.shape is not None
    assert row.shape.columns[0].kind is ValueKind.BYTES
    assert sink.messages[-1].key.endswith(b"\x06\xc0\x98\xc0")
