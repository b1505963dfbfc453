"""Query events: what a statement in the binlog means, by its first words (an allow-list)."""

import re
from enum import IntEnum
from itertools import islice
from typing import Final

from databases.statements import Token, TokenReader, tokens_of, without_setting
from producers.decoder.values.charset import charset_of, readable_text
from producers.decoder.values.wire import read_u16, take


class StatementKind(IntEnum):
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

_BEGIN: Final = b"BEGIN"
# Tokens that tell what any other statement than a definition is.
_HEAD_TOKENS: Final = 2
_DUMMY: Final = b"# Dummy event"
DEFINITIONS: Final = (
    *("ALTER", "ANALYZE", "CHECK", "CREATE", "DROP", "FLUSH", "GRANT", "IMPORT", "INSTALL"),
    *("OPTIMIZE", "RENAME", "REPAIR", "REVOKE", "SET", "TRUNCATE", "UNINSTALL"),
)
_CHANGES: Final = (
    *("CALL", "DELETE", "DO", "EXECUTE", "HANDLER", "INSERT", "LOAD", "REPLACE", "SELECT"),
    *("UPDATE", "VALUES", "WITH"),
)
# ANALYZE and SET may also precede changes, unless one of these words follows.
_ANALYZE_TABLE: Final = ("TABLE", "LOCAL", "NO_WRITE_TO_BINLOG")
_SET_ACCOUNT: Final = ("PASSWORD", "DEFAULT", "ROLE")
# A SERVER holds a password for another database server.
_ACCOUNTS: Final = ("USER", "ROLE", "SERVER")


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


class Statement:
    """A statement in ASCII or UTF-8, and what it means to the stream.

    `tokens`: all of a definition's, the first ones of others.
    """

    def __init__(self, statement: bytes, sql_mode: int = 0) -> None:
        self.text: str = statement.decode("utf-8", "backslashreplace")
        self.tokens: list[Token] = []
        self.kind: StatementKind = StatementKind.BEGIN
        if statement == _BEGIN:  # MySQL begins nearly every transaction with it
            return
        if statement.startswith(_DUMMY):
            self.kind = StatementKind.NOTHING
            return
        # A large definition, such as a program of a megabyte, is read once.
        rest = tokens_of(self.text, sql_mode)
        self.tokens = list(islice(rest, _HEAD_TOKENS))
        if self.tokens and self.tokens[0].is_word("(", *DEFINITIONS):
            self.tokens.extend(rest)
        self.kind = _classify(self.tokens)


def _classify(tokens: list[Token]) -> StatementKind:
    reader = TokenReader(tokens)
    reader.take_all("(")
    if reader.comes(*DEFINITIONS):
        return _classify_definition(tokens, reader)
    if reader.take("BEGIN"):
        return StatementKind.BEGIN
    if reader.take("START") and reader.take("TRANSACTION"):
        return StatementKind.BEGIN
    if reader.take("COMMIT"):
        return StatementKind.COMMIT
    if reader.take("SAVEPOINT", "RELEASE"):
        return StatementKind.SAVEPOINT
    if reader.take("ROLLBACK"):
        return StatementKind.ROLLBACK_TO if reader.name() else StatementKind.ROLLBACK
    if reader.take("XA"):
        return StatementKind.XA
    return StatementKind.CHANGE if reader.take(*_CHANGES) else StatementKind.UNKNOWN


def _classify_definition(tokens: list[Token], reader: TokenReader) -> StatementKind:
    """Distinguish definitions from changes that begin with the same word."""
    if reader.take("SET"):
        if reader.comes("STATEMENT"):
            # A bracket may precede it.
            return _classify(without_setting(tokens[reader.at - 1 :]))
        if reader.comes(*_SET_ACCOUNT):
            return StatementKind.ACCOUNT
        return StatementKind.DDL if reader.comes("RESOURCE") else StatementKind.UNKNOWN
    if reader.take("GRANT", "REVOKE"):
        return StatementKind.ACCOUNT
    if reader.take("ANALYZE"):
        return StatementKind.DDL if reader.comes(*_ANALYZE_TABLE) else StatementKind.CHANGE
    creates = reader.comes("CREATE")
    if reader.take("CREATE", "ALTER", "DROP", "RENAME"):
        if reader.take("OR"):
            reader.take("REPLACE")
        if reader.comes(*_ACCOUNTS):
            return StatementKind.ACCOUNT
        if creates and reader.take("TABLE"):
            return _classify_created(tokens, reader.at)
    return StatementKind.DDL


def _classify_created(tokens: list[Token], at: int) -> StatementKind:
    """Distinguish a CREATE TABLE that fills the table with rows, which are in no binlog.

    Row format logs it without its SELECT, and the rows after it. VALUES also defines partitions.
    After a full stop any word is a name.
    """
    if any(token.is_open_quote for token in tokens):
        return StatementKind.UNKNOWN  # the words may not be those of the statement
    for i in range(at, len(tokens)):
        if tokens[i - 1].is_word("."):
            continue
        follows = TokenReader(tokens[i + 1 : i + 3])
        if tokens[i].is_word("VALUES") and not (
            follows.take("IN") or (follows.take("LESS") and follows.take("THAN"))
        ):
            return StatementKind.CHANGE
        if tokens[i].is_word("SELECT", "TABLE"):
            return StatementKind.CHANGE
    return StatementKind.DDL


def shown(statement: bytes) -> str:
    """Return the first words of a statement; its values stay out of messages and logs."""
    words = statement[:_SHOWN_BYTES_MAX].decode("utf-8", "replace").split()
    return " ".join(words[:3])


# Statements that begin with these words leave the columns of all tables as they are.
_KEEPS_COLUMNS: Final = ("ANALYZE", "CHECK", "FLUSH", "OPTIMIZE", "REPAIR", "TRUNCATE")
_WHOLE_DATABASE: Final = ("DATABASE", "SCHEMA")

# (database, table); without a table it is about the database, or about something else in it.
_Name = tuple[str, str]

# Executed comments have words that count or do not, by the server's version.
_EXECUTED: Final = re.compile(r"/\*M?!")
_TABLES: Final = ("TABLE", "TABLES", "SEQUENCE", "VIEW")
_STORED: Final = ("PROCEDURE", "FUNCTION", "TRIGGER", "EVENT", "VIEW")
_DEFINED: Final = (
    *("DATABASE", "EVENT", "FUNCTION", "INDEX", "PROCEDURE", "SCHEMA", "SEQUENCE"),
    *("TABLE", "TABLES", "TRIGGER", "VIEW"),
)
# An ALTER TABLE with one of these words may be about a second table.
_SECOND_TABLE: Final = ("RENAME", "EXCHANGE", "CONVERT")
_PARTS_OF_TABLES: Final = ("COLUMN", "INDEX", "KEY")
# Before PARTITION, a reserved word. EXCHANGE, DISCARD and IMPORT bring rows of another table.
_PARTITION_CLAUSES: Final = (
    *("ADD", "ANALYZE", "CHECK", "COALESCE", "DROP", "OPTIMIZE", "REBUILD", "REORGANIZE"),
    *("REPAIR", "TRUNCATE"),
)

# TRUNCATE, DROP and RENAME have nothing but names and these reserved words, which are names only
# after a full stop.
_RESERVED: Final = ("TABLE", "DATABASE", "SCHEMA", "IF", "EXISTS", "TO")
_NAMED_AFTER: Final = ("TABLE", "TABLES", "DATABASE", "SCHEMA")
_BEFORE_NAME: Final = ("IF", "NOT", "EXISTS", "TO", "AS", "=")


class Redefined:
    """The tables that may have other columns, keys or labels after a definition, or be others."""

    def __init__(self, names: list[_Name], words: frozenset[str], *, is_any: bool = False) -> None:
        """`names`: tables, and databases as a whole. `words`: any table with one of these names.

        `is_any`: all tables.
        """
        self._names: frozenset[_Name] = frozenset([(d.casefold(), t.casefold()) for d, t in names])
        self._words: frozenset[str] = words
        self._is_any: bool = is_any

    def includes(self, database: str, table: str) -> bool:
        """Tell whether this table may be one of them."""
        here, wanted = database.casefold(), table.casefold()
        if self._is_any or wanted in self._words:
            return True
        return (here, wanted) in self._names or (here, "") in self._names


class Definition:
    """A statement that defines something; `database`: its default one."""

    def __init__(self, statement: Statement, database: str) -> None:
        self._text: str = statement.text
        self._database: str = database
        self._tokens: list[Token] = without_setting(statement.tokens)

    def size(self) -> int:
        """Return how many tokens it has."""
        return len(self._tokens)

    def kind(self) -> str:
        """Return what it does, such as ALTER TABLE: none of its names and values."""
        tokens = self._tokens
        words = [tokens[0].text.upper()] if tokens and tokens[0].is_word(*DEFINITIONS) else []
        for i, token in enumerate(tokens):
            around = (*tokens[max(i - 1, 0) : i], *tokens[i + 1 : i + 2])
            if token.is_word(*_DEFINED) and not any(t.is_word("@", "=", ".") for t in around):
                words.append(token.text.upper())
                break
        return " ".join(words)

    def declares_cascade(self) -> bool:
        """Tell whether it declares a foreign key that changes rows by itself."""
        reader = self._behind_table()
        while reader.next() is not None:
            if not (reader.take("ON") and reader.take("DELETE", "UPDATE")):
                continue
            if reader.take("CASCADE") or (reader.take("SET") and reader.take("NULL")):
                return True
        return False

    def moves_rows(self) -> bool:
        """Tell whether it changes which rows a table has, with no row event for them."""
        reader = self._behind_table()
        while reader.next() is not None:
            if (
                (reader.take("IMPORT", "DISCARD") and _takes_tablespace(reader))
                or (reader.take("EXCHANGE") and reader.take("PARTITION"))
                or (reader.take("CONVERT") and reader.take("TABLE", "PARTITION"))
            ):
                return True
        return False

    def renames_tables(self) -> bool:
        """Tell whether it gives a table another name, under which there were other rows before."""
        if len(self._tokens) > 0 and self._tokens[0].is_word("RENAME"):
            return True
        reader = self._behind_table()
        while reader.next() is not None:
            if reader.take("RENAME") and not reader.take(*_PARTS_OF_TABLES):
                return True
        return False

    def _behind_table(self) -> TokenReader:
        """Return what follows CREATE TABLE or ALTER TABLE; nothing for other statements."""
        reader = TokenReader(self._tokens, self._database)
        if reader.take("CREATE", "ALTER"):
            reader.take_all("OR", "REPLACE", "ONLINE", "IGNORE")
            if reader.take("TABLE"):
                return reader
        return TokenReader([])

    def names_after_table(self) -> list[_Name]:
        """Return the tables that it names after the word TABLE."""
        reader = TokenReader(self._tokens, self._database)
        found: list[_Name] = []
        while (token := reader.next()) is not None:
            if token.is_word("TABLE"):
                _take_condition(reader)
                found.append(reader.table())
        return [name for name in found if name[1]]

    def names(self) -> list[_Name]:
        """Return the tables and databases that it creates, changes or drops.

        Those that it only reads or refers to are left out. Empty where that is not certain.
        """
        if _EXECUTED.search(self._text) is not None:
            return []
        names = _names(TokenReader(self._tokens, self._database))
        return [] if any(not name[0] for name in names) else names

    def redefined(self) -> Redefined:
        """Return the tables that it may have changed; more where that is not certain."""
        tokens, kind, words = self._tokens, self.kind().split(), self.words()
        if len(kind) == 0 or len(words) == 0:
            return Redefined([], words, is_any=True)
        drops_database = kind[-1] in _WHOLE_DATABASE
        if self._keeps_rows_as_they_are():
            return Redefined([], frozenset())
        if _EXECUTED.search(self._text) is None:
            if tokens[0].is_word(*_KEEPS_COLUMNS) or kind[-1] in _STORED:
                return Redefined([], frozenset())
            if drops_database and not tokens[0].is_word("DROP"):
                return Redefined([], frozenset())
            if len(tokens) > 1 and tokens[1].is_word("TEMPORARY"):
                return Redefined([], frozenset())
            # Where the table was there it does nothing; what took it away counts by itself.
            if _is(tokens, 0, "CREATE") and _is(tokens, 1, "TABLE") and _is(tokens, 2, "IF"):
                return Redefined([], frozenset())
            names = self.names()
            if len(names) > 0:
                return Redefined(names, frozenset())
        whole = [(word, "") for word in words] if drops_database else []
        return Redefined(whole, words)

    def _keeps_rows_as_they_are(self) -> bool:
        """Tell whether it is an ALTER TABLE with nothing but a clause that changes no column.

        With or without words in executed comments, as mysqldump writes DISABLE KEYS.
        """
        reader = TokenReader(self._tokens)
        if not (reader.take("ALTER") and reader.take("TABLE") and reader.table()[1]):
            return False
        if reader.take("ENABLE", "DISABLE"):
            return reader.take("KEYS") and reader.next() is None
        if _EXECUTED.search(self._text) is not None:
            return False
        # Nothing but words about the execution may stand beside a clause of partitions.
        if reader.take(*_PARTITION_CLAUSES):
            return reader.take("PARTITION")
        if not reader.take("AUTO_INCREMENT", "COMMENT"):
            return False
        reader.take("=")
        return reader.next() is not None and reader.next() is None

    def words(self) -> frozenset[str]:
        """Return all its names and keywords, those of a program's body too, case folded.

        Empty where a quote does not end: then they are unknown.
        """
        if any(token.is_open_quote for token in self._tokens):
            return frozenset()
        return frozenset([token.text.casefold() for token in self._tokens if token.can_name])

    def to_lower_case(self) -> bytes:
        """Put the names of the tables and databases that it defines into lower case; return it.

        A server with lower_case_table_names=1 has them so, as row events do.
        """
        parts: list[str] = []
        end = 0
        self._database = self._database.lower()
        for i in sorted(_places_of_names(self._tokens)):
            token = self._tokens[i]
            parts.append(self._text[end : token.begin])
            parts.append(self._text[token.begin : token.end].lower())
            end = token.end
            self._tokens[i] = Token(token.text.lower(), token.kind, token.begin, token.end)
        return ("".join(parts) + self._text[end:]).encode("utf-8")


def _takes_tablespace(reader: TokenReader) -> bool:
    """Take TABLESPACE, or the PARTITION whose it is; PARTITION BY follows a name like `import`."""
    return reader.take("TABLESPACE") or (reader.take("PARTITION") and not reader.comes("BY"))


def _names(reader: TokenReader) -> list[_Name]:
    if reader.take("TRUNCATE"):
        reader.take("TABLE")
        return _list(reader, ",")
    if reader.take("RENAME"):
        return _list(reader, ",", "TO") if reader.take(*_TABLES) else []
    if reader.take("DROP"):
        return _dropped(reader)
    if reader.take("ALTER"):
        return _altered(reader)
    return _created(reader) if reader.take("CREATE") else []


def _dropped(reader: TokenReader) -> list[_Name]:
    reader.take("TEMPORARY")
    if reader.take("DATABASE", "SCHEMA"):
        return _whole_database(reader)
    if reader.take(*_TABLES):
        return _list(reader, ",")
    if reader.take("INDEX"):
        return _behind_on(reader)
    return _in_database(reader) if reader.take(*_STORED) else []


def _altered(reader: TokenReader) -> list[_Name]:
    reader.take_all("ONLINE", "OFFLINE", "IGNORE")
    if not reader.take("TABLE"):
        return []
    names = _list(reader)
    for i in range(reader.at, len(reader.tokens)):
        is_second = reader.tokens[i].is_word(*_SECOND_TABLE)
        if is_second and not _is(reader.tokens, i + 1, *_PARTS_OF_TABLES):
            return []
    return names


def _created(reader: TokenReader) -> list[_Name]:
    if reader.take("OR"):
        reader.take("REPLACE")
    reader.take("TEMPORARY")
    if reader.take("TABLE", "SEQUENCE"):
        return _list(reader)
    if reader.take("DATABASE", "SCHEMA"):
        return _whole_database(reader)
    reader.take("UNIQUE", "FULLTEXT", "SPATIAL", "VECTOR")
    if reader.take("INDEX"):
        return _behind_on(reader)
    if any(token.is_word("SONAME") for token in reader.tokens):
        return []  # a loadable function is global
    # Before the word stand ALGORITHM, DEFINER and SQL SECURITY.
    while not reader.take(*_STORED):
        if reader.next() is None:
            return []
    return _in_database(reader)


def _whole_database(reader: TokenReader) -> list[_Name]:
    _take_condition(reader)
    name = reader.name()
    return [(name, "")] if name else []


def _in_database(reader: TokenReader) -> list[_Name]:
    """Take the name of a routine, trigger, event or view: it stands for its database."""
    return [(database, "") for database, _ in _list(reader)]


def _behind_on(reader: TokenReader) -> list[_Name]:
    """Take the table of an index."""
    while not reader.take("ON"):
        if reader.next() is None:
            return []
    return _list(reader)


def _list(reader: TokenReader, *separators: str) -> list[_Name]:
    """Take names with these words or signs between them; none if one is missing."""
    _take_condition(reader)
    names = reader.tables(*separators)
    return [] if any(not table for _, table in names) else names


def _take_condition(reader: TokenReader) -> None:
    if reader.take("IF"):
        reader.take("NOT")
        reader.take("EXISTS")


def _places_of_names(tokens: list[Token]) -> list[int]:
    """Return which tokens name a table or database that a definition is about."""
    if not tokens:
        return []
    if tokens[0].is_word("TRUNCATE", "DROP", "RENAME"):
        return [
            i
            for i in range(1, len(tokens))
            if _may_name(tokens, i)
            and (tokens[i - 1].is_word(".") or not tokens[i].is_word(*_RESERVED))
        ]
    found: list[int] = []
    if tokens[0].is_word("ALTER"):
        for i, token in enumerate(tokens):
            renames = token.is_word("RENAME") and not _is(tokens, i + 1, *_PARTS_OF_TABLES)
            if renames or token.is_word(*_NAMED_AFTER):
                found += _name_behind(tokens, i)
    elif tokens[0].is_word("CREATE"):
        for i, token in enumerate(tokens):
            if token.is_word(*_NAMED_AFTER):
                return _name_behind(tokens, i)
    return found


def _name_behind(tokens: list[Token], at: int) -> list[int]:
    """Return the tokens of a name, with or without its database, that follow a word."""
    at += 1
    while _is(tokens, at, *_BEFORE_NAME):
        at += 1
    places = (at, at + 2) if _is(tokens, at + 1, ".") else (at,)
    return [i for i in places if _may_name(tokens, i)]


def _may_name(tokens: list[Token], at: int) -> bool:
    return at < len(tokens) and tokens[at].can_name


def _is(tokens: list[Token], at: int, *words: str) -> bool:
    return at < len(tokens) and tokens[at].is_word(*words)
