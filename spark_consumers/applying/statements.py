"""What a DDL statement does to the rows of tables: TRUNCATE and DROP remove them. Pure.

A statement that changes rows or keys in another way without logging row changes (RENAME, partition
and tablespace operations, a new primary key, `ALTER IGNORE`) cannot be applied. What an ALTER of
columns does to the values of rows is told by `unlogged`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

# Comments of versions (`/*!40101 ... */`) are executed: only their brackets are skipped.
_TOKEN = re.compile(
    r"""
      (?P<skipped> \s+ | /\*M?!\d* | \*/ | /\*.*?\*/ | (?:--(?=\s|$)|\#)[^\n]* )
    | `(?P<backtick>(?:[^`]|``)*)`
    | "(?P<double>(?:[^"\\]|""|\\.)*)"
    | (?P<text>'(?:[^'\\]|''|\\.)*')
    | (?P<word>[\w$\x80-\U0010ffff]+)
    | (?P<sign>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_PARTITION_WORDS = frozenset({"DROP", "TRUNCATE", "EXCHANGE", "CONVERT"})
_TABLESPACE_WORDS = frozenset({"IMPORT", "DISCARD"})
# What follows RENAME where no table is renamed.
_NOT_A_TABLE = frozenset({"COLUMN", "INDEX", "KEY"})
# What follows DROP where no column is dropped.
_NOT_A_COLUMN = frozenset(
    {"CHECK", "CONSTRAINT", "DEFAULT", "FOREIGN", "INDEX", "KEY", "PARTITION", "PERIOD"}
    | {"PRIMARY", "SYSTEM"}
)


@dataclass(frozen=True, slots=True)
class TableName:
    """A table; `table` is None for all tables of a database."""

    database: str
    table: str | None


@dataclass(frozen=True, slots=True)
class Effect:
    """What a statement does: the tables it empties, and those it changes in ways not logged.

    `received`: (from, to) of tables between which rows go that are not logged.
    """

    emptied: tuple[TableName, ...] = ()
    changed: tuple[TableName, ...] = ()
    received: tuple[tuple[TableName, TableName], ...] = ()


@dataclass(frozen=True, slots=True)
class ColumnRename:
    """A column that an ALTER TABLE gave another name."""

    table: TableName
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class ColumnDrop:
    """A column that an ALTER TABLE dropped."""

    table: TableName
    name: str


@dataclass(frozen=True, slots=True)
class Token:
    """A token of a statement, without quotes; a literal text keeps its own."""

    text: str
    is_name: bool  # quoted, so never a keyword

    def is_word(self, *words: str) -> bool:
        """Tell whether it is one of these keywords."""
        return not self.is_name and self.text.upper() in words


def effect_of(statement: str, database: str) -> Effect:
    """Return what a statement does to rows; `database` is its default database."""
    tokens = Tokens.of(statement, database)
    if tokens.take("TRUNCATE"):
        tokens.take("TABLE")
        return Effect(emptied=(tokens.table(),))
    if tokens.take("RENAME"):
        names = tokens.renamed() if tokens.take("TABLE", "TABLES") else ()
        return Effect(changed=names, received=_pairs(names))
    if tokens.take("ALTER"):
        return _effect_of_alter(tokens)
    if tokens.take("CREATE"):
        return _effect_of_create(tokens)
    if tokens.take("DROP"):
        return _effect_of_drop(tokens)
    return Effect()


def renames_of(statement: str, database: str) -> list[tuple[TableName, TableName]]:
    """Return (old, new) of each table that a statement renames.

    Nothing for an ALTER TABLE that does more, and for other statements.
    """
    tokens = Tokens.of(statement, database)
    if tokens.take("RENAME") and tokens.take("TABLE", "TABLES"):
        return list(_pairs(tokens.renamed()))
    if not tokens.take("ALTER"):
        return []
    table = tokens.altered()
    if table is None or not tokens.take("RENAME") or tokens.take(*_NOT_A_TABLE):
        return []
    tokens.take("TO", "AS", "=")
    new = tokens.table()
    return [(table, new)] if tokens.next() is None else []


def _pairs(names: tuple[TableName, ...]) -> tuple[tuple[TableName, TableName], ...]:
    return tuple(zip(names[::2], names[1::2], strict=False))


def column_renames(statement: str, database: str) -> list[ColumnRename]:
    """Return the columns that an ALTER TABLE renames, by RENAME COLUMN or CHANGE."""
    tokens = Tokens.of(statement, database)
    if not tokens.take("ALTER"):
        return []
    table = tokens.altered()
    found = []
    while table is not None and (token := tokens.next()) is not None:
        if token.is_word("CHANGE"):
            tokens.take("COLUMN")
        elif not (token.is_word("RENAME") and tokens.take("COLUMN")):
            continue
        tokens.take_all("IF", "EXISTS")
        old = tokens.name()
        tokens.take("TO")
        new = tokens.name()
        if old != new:
            found.append(ColumnRename(table, old, new))
    return found


def column_drops(statement: str, database: str) -> list[ColumnDrop]:
    """Return the columns that an ALTER TABLE drops."""
    tokens = Tokens.of(statement, database)
    if not tokens.take("ALTER"):
        return []
    table = tokens.altered()
    found = []
    while table is not None and (token := tokens.next()) is not None:
        if not token.is_word("DROP"):
            continue
        if not tokens.take("COLUMN") and tokens.take(*_NOT_A_COLUMN):
            continue
        tokens.take_all("IF", "EXISTS")
        found.append(ColumnDrop(table, tokens.name()))
    return found


def _effect_of_drop(tokens: "Tokens") -> Effect:
    if tokens.take("DATABASE", "SCHEMA"):
        tokens.take_all("IF", "EXISTS")
        return Effect(emptied=(TableName(tokens.name(), None),))
    # A temporary table hides one of the log, and its rows are not logged.
    if not tokens.take("TABLE", "TABLES"):
        return Effect()
    tokens.take_all("IF", "EXISTS")
    return Effect(emptied=tokens.tables())


def _effect_of_create(tokens: "Tokens") -> Effect:
    if not tokens.take("OR"):
        return Effect()
    tokens.take("REPLACE")
    if tokens.take("DATABASE", "SCHEMA"):
        return Effect(emptied=(TableName(tokens.name(), None),))
    return Effect(emptied=(tokens.table(),)) if tokens.take("TABLE") else Effect()


def _effect_of_alter(tokens: "Tokens") -> Effect:
    tokens.take_all("ONLINE")
    # MariaDB: rows that a new unique key does not allow are removed.
    is_ignore = tokens.take("IGNORE")
    table = tokens.altered()
    if table is None:
        return Effect()
    others: list[TableName] = []
    received: list[tuple[TableName, TableName]] = []
    is_changed = False
    while (token := tokens.next()) is not None:
        if token.is_word("RENAME") and not tokens.take(*_NOT_A_TABLE):
            is_changed = True
            tokens.take("TO", "AS", "=")
            others.append(tokens.table())
            received.append((table, others[-1]))
        is_changed |= (
            (token.is_word(*_PARTITION_WORDS) and tokens.take("PARTITION"))
            or (token.is_word(*_TABLESPACE_WORDS) and tokens.take("PARTITION", "TABLESPACE"))
            or (token.is_word("PRIMARY") and tokens.take("KEY"))
            or (is_ignore and token.is_word("UNIQUE"))
        )
        if token.is_word("TABLE"):  # EXCHANGE PARTITION ... WITH TABLE, CONVERT TABLE ... TO
            is_changed = True
            others.append(tokens.table())
            received += [(table, others[-1]), (others[-1], table)]
    return Effect((), (table, *others), tuple(received)) if is_changed else Effect()


def _tokens(statement: str) -> Iterator[Token]:
    for found in _TOKEN.finditer(statement):
        match found.lastgroup:
            case "backtick":
                yield Token(found["backtick"].replace("``", "`"), is_name=True)
            case "double":
                yield Token(found["double"].replace('""', '"'), is_name=True)
            case "word" | "sign" | "text":
                yield Token(found[0], is_name=False)
            case _:
                pass


class Tokens:
    """Reads the tokens of a statement from left to right."""

    def __init__(self, tokens: list[Token], database: str) -> None:
        self._tokens = [*tokens, Token("", is_name=False)]
        self._at = 0
        self._database = database

    @classmethod
    def of(cls, statement: str, database: str) -> "Tokens":
        """Return those of a statement; of MariaDB's SET STATEMENT ... FOR, what follows it."""
        tokens = list(_tokens(statement))
        if [token.text.upper() for token in tokens[:2]] == ["SET", "STATEMENT"]:
            ends = (i for i, token in enumerate(tokens) if token.is_word("FOR"))
            tokens = tokens[next(ends, len(tokens)) + 1 :]
        return cls(tokens, database)

    def take(self, *words: str) -> bool:
        """Skip one of the words if it comes next."""
        is_next = self._tokens[self._at].is_word(*words)
        self._at += is_next
        return is_next

    def take_all(self, *words: str) -> None:
        """Skip all of these words that come next."""
        while self.take(*words):
            pass

    def name(self) -> str:
        """Take a name."""
        found = self._tokens[self._at].text
        self._at = min(self._at + 1, len(self._tokens) - 1)
        return found

    def table(self) -> TableName:
        """Take the name of a table, with or without its database."""
        first = self.name()
        if self.take("."):
            return TableName(first, self.name())
        return TableName(self._database, first)

    def altered(self) -> TableName | None:
        """Take what follows ALTER, up to the table; None if no table is altered."""
        self.take_all("ONLINE", "OFFLINE", "IGNORE")
        if not self.take("TABLE"):
            return None
        self.take_all("IF", "EXISTS")
        return self.table()

    def tables(self) -> tuple[TableName, ...]:
        """Take a list of tables."""
        found = [self.table()]
        while self.take(","):
            found.append(self.table())
        return tuple(found)

    def renamed(self) -> tuple[TableName, ...]:
        """Take `a TO b, c TO d`; return all of them."""
        self.take_all("IF", "EXISTS")
        found = [self.table()]
        while self.take("TO", ",", "WAIT", "NOWAIT"):
            found.append(self.table())
        return tuple(found)

    def clauses(self) -> list[list[Token]]:
        """Take all that is left, divided at commas that are in no parentheses."""
        found: list[list[Token]] = [[]]
        depth = 0
        while (token := self.next()) is not None:
            depth += token.is_word("(") - token.is_word(")")
            if depth == 0 and token.is_word(","):
                found.append([])
            else:
                found[-1].append(token)
        return found

    def next(self) -> Token | None:
        """Take the next token, None at the end."""
        if self._at == len(self._tokens) - 1:
            return None
        self._at += 1
        return self._tokens[self._at - 1]
