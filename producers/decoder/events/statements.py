"""Query events: what a statement in the binlog means, by its first words (an allow-list)."""

import re
from enum import IntEnum
from typing import Final

from mypy_extensions import i64

from producers.decoder.values.charset import charset_of, readable_text
from producers.decoder.values.wire import read_u16, take


class Statement(IntEnum):
    """What a query event means to the stream."""

    BEGIN = 0
    COMMIT = 1
    SAVEPOINT = 2
    ROLLBACK_TO = 3
    ROLLBACK = 4
    DDL = 5  # definitions and administration: a DDL record
    NOTHING = 6  # a placeholder of the server
    XA = 7
    CHANGE = 8  # it changes rows, which are in no binlog
    UNKNOWN = 9
    ACCOUNT = 10  # accounts, privileges and passwords, which are not logged


_POST_HEADER_BYTES: Final = 13
_SHOWN_BYTES_MAX: Final = 200
# Status variables up to the client's character set, and their bytes. Counted ones begin with a
# count byte: (bytes each, bytes after them). 131: MariaDB's pairs of character set and collation.
_STATUS_BYTES: Final = {0: 4, 1: 8, 3: 4}
_STATUS_COUNTED: Final = {2: (1, 1), 6: (1, 0), 131: (4, 0)}
_STATUS_SQL_MODE: Final = 1
_STATUS_CHARSET: Final = 4
ANSI_QUOTES: Final = 1 << 2
NO_BACKSLASH_ESCAPES: Final = 1 << 20

_DEFINITIONS: Final = frozenset(
    (
        *("ALTER", "ANALYZE", "CHECK", "CREATE", "DROP", "FLUSH", "GRANT", "IMPORT", "INSTALL"),
        *("OPTIMIZE", "RENAME", "REPAIR", "REVOKE", "SET", "TRUNCATE", "UNINSTALL"),
    )
)
_DEFINED: Final = re.compile(
    rb"(?<![\w@=.])"
    rb"(?:DATABASE|EVENT|FUNCTION|INDEX|PROCEDURE|SCHEMA|SEQUENCE|TABLES?|TRIGGER|VIEW)"
    rb"(?![\w@=.])",
    re.IGNORECASE,
)
_CHANGES: Final = frozenset(
    (
        *("CALL", "DELETE", "DO", "EXECUTE", "HANDLER", "INSERT", "LOAD", "REPLACE", "SELECT"),
        *("UPDATE", "VALUES", "WITH"),
    )
)
# The content of an executed comment, `/*!40000 ... */` or `/*M! ... */`, is part of the statement.
_SPACE: Final = re.compile(
    rb"(?:\s+|--[ \t][^\n]*(?:\n|$)|#[^\n]*(?:\n|$)|/\*(?!!|M!).*?\*/|/\*M?!\d*|\*/|\()", re.DOTALL
)
# Text that may contain any word without meaning it: comments, strings and quoted names. Depending
# on the SQL mode a backslash escapes a quote or does not.
_COMMENT: Final = rb"(?P<comment>/\*(?!!|M!).*?\*/|#[^\n]*|--(?=[\x00-\x20]|$)[^\n]*|/\*M?!\d*|\*/)"
_DOUBLE: Final = rb'"(?:[^"\\]|\\.)*"'
_DOUBLE_PLAIN: Final = rb'"[^"]*"'
_SINGLE: Final = rb"'(?:[^'\\]|\\.)*'"
_SINGLE_PLAIN: Final = rb"'[^']*'"
_NAME: Final = rb"`[^`]*`"


def _quoted(*kinds: bytes) -> re.Pattern[bytes]:
    return re.compile(b"|".join((_COMMENT, *kinds)), re.DOTALL)


_QUOTED: Final = _quoted(_SINGLE, _DOUBLE, _NAME)
_QUOTED_ANSI: Final = _quoted(_SINGLE, _DOUBLE_PLAIN, _NAME)
_QUOTED_PLAIN: Final = _quoted(_SINGLE_PLAIN, _DOUBLE_PLAIN, _NAME)
_QUOTES: Final = re.compile(rb"['\"`]")
_CREATES_TABLE: Final = re.compile(rb"\s*CREATE\s+(?:OR\s+REPLACE\s+)?TABLE\b", re.IGNORECASE)
# A CREATE TABLE ... SELECT that is logged as a statement fills a table with rows that are in no
# binlog; row format logs it without its SELECT, and the rows after it. VALUES also defines
# partitions. After a full stop any word is a name.
_ROWS_OF_TABLE: Final = re.compile(
    rb"(?<![\w$\x80-\xff.])(?:SELECT|TABLE|VALUES(?!\s+LESS\s+THAN\b|\s+IN\b))(?![\w$\x80-\xff])",
    re.IGNORECASE,
)
_DEFINES_TABLE: Final = re.compile(
    rb"\s*(?:CREATE|ALTER)\s+(?:OR\s+REPLACE\s+|ONLINE\s+|IGNORE\s+)*TABLE\b", re.IGNORECASE
)
_CASCADES: Final = re.compile(
    rb"\bON\s+(?:DELETE|UPDATE)\s+(?:CASCADE|SET\s+NULL)\b", re.IGNORECASE
)
# Definitions that bring rows into a table, or take them away, without a row event.
_MOVES_ROWS: Final = re.compile(
    rb"\b(?:(?:IMPORT|DISCARD)\s+(?:PARTITION\b[^;]*?\b)?TABLESPACE|EXCHANGE\s+PARTITION|CONVERT\s+(?:TABLE|PARTITION))\b",
    re.IGNORECASE,
)
_TEXTS: Final = _quoted(_SINGLE, _DOUBLE)
_IDENTIFIER: Final = rb"(`(?:[^`]|``)+`|[\w$\x80-\xff]+)"
_TABLE_NAME: Final = re.compile(
    rb"\bTABLE\s+(?:IF\s+EXISTS\s+)?" + _IDENTIFIER + rb"(?:\s*\.\s*" + _IDENTIFIER + rb")?",
    re.IGNORECASE,
)
_SET_STATEMENT: Final = re.compile(rb"\bSET\s+STATEMENT\b.*?\bFOR\b", re.DOTALL | re.IGNORECASE)
# ANALYZE and SET may also precede changes, unless one of these words follows.
_ANALYZE_TABLE: Final = frozenset(("TABLE", "LOCAL", "NO_WRITE_TO_BINLOG"))
_SET_ACCOUNT: Final = frozenset(("PASSWORD", "DEFAULT", "ROLE"))
# A SERVER holds a password for another database server.
_ACCOUNT: Final = re.compile(
    rb"\s*(?:CREATE|ALTER|DROP|RENAME)\s+(?:OR\s+REPLACE\s+)?(?:USER|ROLE|SERVER)\b", re.IGNORECASE
)
_WORD: Final = re.compile(rb"[A-Za-z_]+")
_DUMMY: Final = b"# Dummy event"


def query_begin(body: bytes) -> int:
    """Return the offset of the statement in a query event's body."""
    return int(_POST_HEADER_BYTES + body[8] + 1 + read_u16(body, 11))


def query_database(body: bytes) -> str:
    """Return the default database of a query event, "" for none."""
    begin = query_begin(body) - 1 - body[8]
    return take(body, begin, body[8]).decode("utf-8", "backslashreplace")


def query_statement(body: bytes) -> bytes:
    r"""Return the statement in UTF-8: no byte of a character looks like a quote or a backslash.

    Bytes that are not text in the statement's character set, as in a comment or a `_binary''` that
    servers accept, become `\xNN`: no byte of a statement stops a shard.
    """
    raw = body[query_begin(body) :]
    if raw.isascii():
        return raw
    at = _status_at(body, _STATUS_CHARSET)
    charset = "utf8mb4" if at < 0 else charset_of(read_u16(body, at))
    return readable_text(raw, charset).encode("utf-8")


def query_sql_mode(body: bytes) -> int:
    """Return the SQL mode of the statement, on which the meaning of a backslash depends."""
    at = _status_at(body, _STATUS_SQL_MODE)
    return 0 if at < 0 else int.from_bytes(take(body, at, 8), "little")


def _status_at(body: bytes, wanted: int) -> int:
    """Return where the value of a status variable is, -1 if it was not found."""
    pos = _POST_HEADER_BYTES
    end = pos + read_u16(body, 11)
    while pos < end:
        code = body[pos]
        if code == wanted:
            return pos + 1
        if code in _STATUS_BYTES:
            pos += 1 + _STATUS_BYTES[code]
        elif code in _STATUS_COUNTED:
            each, behind = _STATUS_COUNTED[code]
            pos += 2 + body[pos + 1] * each + behind
        else:
            break
    return -1


def classify(statement: bytes, sql_mode: int = 0) -> Statement:
    """Return what a statement, in ASCII or UTF-8, means to the stream."""
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
        return _classify_definition(statement, first, words[1] if len(words) > 1 else "", sql_mode)
    if first in _CHANGES:
        return Statement.CHANGE
    return Statement.UNKNOWN


def _classify_definition(statement: bytes, first: str, second: str, sql_mode: int) -> Statement:
    """Distinguish definitions from changes that begin with the same word."""
    if first == "SET" and second == "STATEMENT":
        inner = _after_setting(_plain(statement, sql_mode))
        return Statement.UNKNOWN if inner is None else classify(inner)
    if first == "SET":
        if second in _SET_ACCOUNT:
            return Statement.ACCOUNT
        return Statement.DDL if second == "RESOURCE" else Statement.UNKNOWN
    if first in ("GRANT", "REVOKE") or _ACCOUNT.match(_plain(statement, sql_mode)) is not None:
        return Statement.ACCOUNT
    if first == "ANALYZE" and second not in _ANALYZE_TABLE:
        return Statement.CHANGE
    if first == "CREATE":
        plain = _plain(statement, sql_mode)
        created = _CREATES_TABLE.match(plain)
        if created is not None:
            if _QUOTES.search(plain) is not None:
                return Statement.UNKNOWN
            if _ROWS_OF_TABLE.search(plain, created.end()) is not None:
                return Statement.CHANGE
    return Statement.DDL


def _plain(statement: bytes, sql_mode: int) -> bytes:
    """Return a statement without its comments and quoted text.

    A quote that remains has no end, so the words may not be those of the statement.
    """
    quoted = _QUOTED
    if sql_mode & NO_BACKSLASH_ESCAPES:
        quoted = _QUOTED_PLAIN
    elif sql_mode & ANSI_QUOTES:
        quoted = _QUOTED_ANSI
    return quoted.sub(_left, statement)


def _left(match: re.Match[bytes]) -> bytes:
    return b" x " if match["comment"] is None else b" "


def _after_setting(plain: bytes) -> bytes | None:
    """Return the statement after SET STATEMENT ... FOR, None for none."""
    setting = _SET_STATEMENT.search(plain)
    return None if setting is None else plain[setting.end() :]


def definition_kind(statement: bytes, sql_mode: int) -> str:
    """Return what a definition does, such as ALTER TABLE: none of its names and values."""
    plain = _plain(statement, sql_mode)
    if _first_words(plain) == ["SET", "STATEMENT"]:
        plain = _after_setting(plain) or b""
    verbs = [word for word in _first_words(plain)[:1] if word in _DEFINITIONS]
    thing = _DEFINED.search(plain)
    return " ".join(verbs + ([] if thing is None else [thing.group().decode("ascii").upper()]))


def declares_cascade(statement: bytes, sql_mode: int) -> bool:
    """Tell whether a statement declares a foreign key that changes rows by itself."""
    plain = _plain(statement, sql_mode)
    inner = _after_setting(plain) if _first_words(plain) == ["SET", "STATEMENT"] else plain
    return (
        inner is not None
        and _DEFINES_TABLE.match(inner) is not None
        and _CASCADES.search(inner) is not None
    )


def moves_rows(statement: bytes, sql_mode: int) -> bool:
    """Tell whether an ALTER TABLE changes which rows a table has, with no row event for them."""
    plain = _plain(statement, sql_mode)
    inner = _after_setting(plain) if _first_words(plain) == ["SET", "STATEMENT"] else plain
    return (
        inner is not None
        and _DEFINES_TABLE.match(inner) is not None
        and _MOVES_ROWS.search(inner) is not None
    )


def altered_tables(statement: bytes, database: str) -> list[tuple[str, str]]:
    """Return (database, table) of the tables that an ALTER TABLE names after the word TABLE."""
    found: list[tuple[str, str]] = []
    for match in _TABLE_NAME.finditer(_TEXTS.sub(_left, statement)):
        first = _unquoted(match[1])
        second = match[2]
        found.append((database, first) if second is None else (first, _unquoted(second)))
    return found


def _unquoted(name: bytes) -> str:
    text = name.decode("utf-8", "backslashreplace")
    return text[1:-1].replace("``", "`") if text.startswith("`") else text


def _first_words(statement: bytes) -> list[str]:
    """Return the first two words in upper case, without white space and comments."""
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
    """Return the first words of a statement; its values stay out of messages and logs."""
    words = statement[:_SHOWN_BYTES_MAX].decode("utf-8", "replace").split()
    return " ".join(words[:3])
