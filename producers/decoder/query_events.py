"""Query events: what a statement in the binlog is, judged by its first words (an allow-list)."""

import re
from enum import IntEnum
from typing import Final

from mypy_extensions import i64

from producers.decoder.charset import OTHER, charset_kind, charset_of, decode_text
from producers.decoder.wire import read_u16, take


class Statement(IntEnum):
    """What a query event means to the stream."""

    BEGIN = 0
    COMMIT = 1
    SAVEPOINT = 2
    ROLLBACK_TO = 3
    ROLLBACK = 4
    DDL = 5  # definitions and administration: a DDL record
    NOTHING = 6  # a place holder of the server's
    XA = 7
    CHANGE = 8  # rows were changed by it, and are in no binlog
    UNKNOWN = 9


_POST_HEADER_BYTES: Final = 13
_SHOWN_BYTES_MAX: Final = 200
# Status variables up to the client's character set, and their bytes; for the others a count byte
# comes first: (bytes each, bytes behind them). 131: MariaDB's pairs of character set and collation.
_STATUS_BYTES: Final = {0: 4, 1: 8, 3: 4}
_STATUS_COUNTED: Final = {2: (1, 1), 6: (1, 0), 131: (4, 0)}
_STATUS_CHARSET: Final = 4

_DEFINITIONS: Final = frozenset(
    (
        *("ALTER", "ANALYZE", "CHECK", "CREATE", "DROP", "FLUSH", "GRANT", "IMPORT", "INSTALL"),
        *("OPTIMIZE", "RENAME", "REPAIR", "REVOKE", "SET", "TRUNCATE", "UNINSTALL"),
    )
)
_CHANGES: Final = frozenset(
    (
        *("CALL", "DELETE", "DO", "EXECUTE", "HANDLER", "INSERT", "LOAD", "REPLACE", "SELECT"),
        *("UPDATE", "VALUES", "WITH"),
    )
)
# A comment that runs, `/*!40000 ... */` or `/*M! ... */`, counts by what stands in it.
_SPACE: Final = re.compile(
    rb"(?:\s+|--[ \t][^\n]*(?:\n|$)|#[^\n]*(?:\n|$)|/\*(?!!|M!).*?\*/|/\*M?!\d*|\*/|\()", re.DOTALL
)
# What may hold any word without meaning it: strings, quoted names, comments.
_QUOTED: Final = re.compile(
    rb"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`"
    rb"|/\*(?!!|M!).*?\*/|#[^\n]*|--[ \t][^\n]*",
    re.DOTALL,
)
# Logged as a statement, CREATE TABLE ... SELECT fills a table with rows that are in no binlog; row
# format logs it without its SELECT and the rows behind it.
_FILLS_TABLE: Final = re.compile(
    rb"\bCREATE\s+(?:OR\s+REPLACE\s+)?TABLE\b.*(?:\bSELECT\b|\bAS\s*\(?\s*(?:TABLE|VALUES)\b)",
    re.DOTALL | re.IGNORECASE,
)
_SET_STATEMENT: Final = re.compile(rb"\bSET\s+STATEMENT\b.*?\bFOR\b", re.DOTALL | re.IGNORECASE)
# ANALYZE and SET stand before changes, too, unless one of these follows.
_ANALYZE_TABLE: Final = frozenset(("TABLE", "LOCAL", "NO_WRITE_TO_BINLOG"))
_SET_ACCOUNT: Final = frozenset(("PASSWORD", "DEFAULT", "ROLE", "RESOURCE"))
_WORD: Final = re.compile(rb"[A-Za-z_]+")
_DUMMY: Final = b"# Dummy event"


def query_begin(body: bytes) -> int:
    """Offset of the statement in a query event's body."""
    return int(_POST_HEADER_BYTES + body[8] + 1 + read_u16(body, 11))


def query_database(body: bytes) -> str:
    """The default database of a query event, "" for none."""
    begin = query_begin(body) - 1 - body[8]
    return take(body, begin, body[8]).decode("utf-8")


def query_text(body: bytes) -> str:
    """The statement as text; ValueError when its character set is not known."""
    raw = body[query_begin(body) :]
    if raw.isascii():
        return raw.decode("ascii")
    charset = _client_charset(body)
    if charset_kind(charset) == OTHER:
        raise ValueError(f"a statement is in character set {charset}")
    return decode_text(raw, charset)


def _client_charset(body: bytes) -> str:
    pos = _POST_HEADER_BYTES
    end = pos + read_u16(body, 11)
    while pos < end:
        code = body[pos]
        if code == _STATUS_CHARSET:
            return charset_of(read_u16(body, pos + 1))
        if code in _STATUS_BYTES:
            pos += 1 + _STATUS_BYTES[code]
        elif code in _STATUS_COUNTED:
            each, behind = _STATUS_COUNTED[code]
            pos += 2 + body[pos + 1] * each + behind
        else:
            break
    raise ValueError("a statement does not say its character set")


def classify(statement: bytes) -> Statement:
    """Say what a statement means to the stream."""
    if statement.startswith(_DUMMY):
        return Statement.NOTHING
    words = _first_words(statement)
    first = words[0] if words else ""
    if first == "BEGIN" or words == ["START", "TRANSACTION"]:
        return Statement.BEGIN
    if first == "COMMIT":
        return Statement.COMMIT
    if first in ("SAVEPOINT", "RELEASE"):
        return Statement.SAVEPOINT
    if first == "ROLLBACK":
        return Statement.ROLLBACK_TO if len(words) > 1 else Statement.ROLLBACK
    if first == "XA":
        return Statement.XA
    if first in _DEFINITIONS:
        return _classify_definition(statement, first, words[1] if len(words) > 1 else "")
    if first in _CHANGES:
        return Statement.CHANGE
    return Statement.UNKNOWN


def _classify_definition(statement: bytes, first: str, second: str) -> Statement:
    """Tell definitions from changes that begin with the same word."""
    if first == "SET" and second == "STATEMENT":
        plain = _QUOTED.sub(b" x ", statement)
        setting = _SET_STATEMENT.search(plain)
        return Statement.UNKNOWN if setting is None else classify(plain[setting.end() :])
    if first == "SET":
        return Statement.DDL if second in _SET_ACCOUNT else Statement.UNKNOWN
    if first == "ANALYZE" and second not in _ANALYZE_TABLE:
        return Statement.CHANGE
    if first == "CREATE" and _FILLS_TABLE.search(_QUOTED.sub(b" x ", statement)):
        return Statement.CHANGE
    return Statement.DDL


def _first_words(statement: bytes) -> list[str]:
    """The first two words, in upper case, behind white space and comments."""
    words: list[str] = []
    pos: i64 = 0
    while len(words) < 2:
        space = _SPACE.match(statement, pos)
        if space is not None:
            pos = space.end()
            continue
        word = _WORD.match(statement, pos)
        if word is None:
            break
        words.append(word.group().decode("ascii").upper())
        pos = word.end()
    return words


def shown(statement: bytes) -> str:
    """The beginning of a statement; its values stay out of messages and logs."""
    words = statement[:_SHOWN_BYTES_MAX].decode("utf-8", "replace").split()
    return " ".join(words[:3])
