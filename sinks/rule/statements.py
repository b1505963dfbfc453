"""What a DDL statement does to the rows of tables: TRUNCATE and DROP remove them. Pure.

A statement that changes rows or keys in another way without logging row changes (RENAME, partition
and tablespace operations, a new primary key, `ALTER IGNORE`) cannot be applied.

gh-ost and pt-online-schema-change copy a table into a shadow table of the new definition and swap
the two by RENAME TABLE. A sink leaves the shadow tables out. After the swap the table has the
shadow's rows, whose values the new definition may have changed without an event of the table.

ALTER TABLE computes values in the same way: ADD COLUMN with a DEFAULT or NOT NULL, MODIFY, CHANGE,
CONVERT TO CHARACTER SET. Only the server knows these values, so such rows must be copied again
(`Unlogged`). Clauses listed here keep the values of all rows; any other is taken to change them.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from databases.statements import Token, TokenKind, TokenReader, readings, without_setting
from sinks.rule.homes import Version, version_at
from sinks.rule.policy import SHADOW_TABLE
from topics.errors import CannotApply

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


def effect_of(statement: str, database: str) -> Effect:
    """Return what a statement does to rows; `database` is its default database.

    Where its quotes can be read in two ways, as the sql_mode is in no record, and it does not do
    the same in both, it has changed all tables that are concerned in any of them.
    """
    found = [_effect(reader_of(tokens, database)) for tokens in readings(statement)]
    first = found[0]
    if all(effect == first for effect in found):
        return first
    tables = [table for effect in found for table in (*effect.emptied, *effect.changed)]
    received = [pair for effect in found for pair in effect.received]
    return Effect((), tuple(dict.fromkeys(tables)), tuple(dict.fromkeys(received)))


def _effect(tokens: TokenReader) -> Effect:
    if tokens.take("TRUNCATE"):
        tokens.take("TABLE")
        return Effect(emptied=(_table(tokens),))
    if tokens.take("RENAME"):
        names = _renamed(tokens) if tokens.take("TABLE", "TABLES") else ()
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
    tokens = reader_of(readings(statement)[0], database)
    if tokens.take("RENAME") and tokens.take("TABLE", "TABLES"):
        return list(_pairs(_renamed(tokens)))
    if not tokens.take("ALTER"):
        return []
    table = altered_table_of(tokens)
    if table is None or not tokens.take("RENAME") or tokens.take(*_NOT_A_TABLE):
        return []
    tokens.take("TO", "AS", "=")
    new = _table(tokens)
    return [(table, new)] if tokens.next() is None else []


def _pairs(names: tuple[TableName, ...]) -> tuple[tuple[TableName, TableName], ...]:
    return tuple(zip(names[::2], names[1::2], strict=False))


def column_renames(statement: str, database: str) -> list[ColumnRename]:
    """Return the columns that an ALTER TABLE renames, by RENAME COLUMN or CHANGE."""
    tokens = reader_of(readings(statement)[0], database)
    if not tokens.take("ALTER"):
        return []
    table = altered_table_of(tokens)
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
    return dropped_by(reader_of(readings(statement)[0], database))


def dropped_by(tokens: TokenReader) -> list[ColumnDrop]:
    """Return the same of its tokens."""
    if not tokens.take("ALTER"):
        return []
    table = altered_table_of(tokens)
    found = []
    while table is not None and (token := tokens.next()) is not None:
        if not token.is_word("DROP"):
            continue
        if not tokens.take("COLUMN") and tokens.take(*_NOT_A_COLUMN):
            continue
        tokens.take_all("IF", "EXISTS")
        found.append(ColumnDrop(table, tokens.name()))
    return found


def _effect_of_drop(tokens: TokenReader) -> Effect:
    if tokens.take("DATABASE", "SCHEMA"):
        tokens.take_all("IF", "EXISTS")
        return Effect(emptied=(TableName(tokens.name(), None),))
    # A temporary table hides one of the log, and its rows are not logged.
    if not tokens.take("TABLE", "TABLES"):
        return Effect()
    return Effect(emptied=_tables(tokens, ","))


def _effect_of_create(tokens: TokenReader) -> Effect:
    if not tokens.take("OR"):
        return Effect()
    tokens.take("REPLACE")
    if tokens.take("DATABASE", "SCHEMA"):
        return Effect(emptied=(TableName(tokens.name(), None),))
    return Effect(emptied=(_table(tokens),)) if tokens.take("TABLE") else Effect()


def _effect_of_alter(tokens: TokenReader) -> Effect:
    tokens.take_all("ONLINE")
    # MariaDB: rows that a new unique key does not allow are removed.
    is_ignore = tokens.take("IGNORE")
    table = altered_table_of(tokens)
    if table is None:
        return Effect()
    others: list[TableName] = []
    received: list[tuple[TableName, TableName]] = []
    is_changed = False
    while (token := tokens.next()) is not None:
        if token.is_word("RENAME") and not tokens.take(*_NOT_A_TABLE):
            is_changed = True
            tokens.take("TO", "AS", "=")
            others.append(_table(tokens))
            received.append((table, others[-1]))
        is_changed |= (
            (token.is_word(*_PARTITION_WORDS) and tokens.take("PARTITION"))
            or (token.is_word(*_TABLESPACE_WORDS) and tokens.take("PARTITION", "TABLESPACE"))
            or (token.is_word("PRIMARY") and tokens.take("KEY"))
            or (is_ignore and token.is_word("UNIQUE"))
        )
        if token.is_word("TABLE"):  # EXCHANGE PARTITION ... WITH TABLE, CONVERT TABLE ... TO
            is_changed = True
            others.append(_table(tokens))
            received += [(table, others[-1]), (others[-1], table)]
    return Effect((), (table, *others), tuple(received)) if is_changed else Effect()


def reader_of(tokens: list[Token], database: str) -> TokenReader:
    """Return a reader of a statement's tokens; of SET STATEMENT ... FOR, of those after it."""
    return TokenReader(without_setting(tokens), database)


def altered_table_of(tokens: TokenReader) -> TableName | None:
    """Take what follows ALTER, up to the table; None if no table is altered."""
    tokens.take_all("ONLINE", "OFFLINE", "IGNORE")
    if not tokens.take("TABLE"):
        return None
    tokens.take_all("IF", "EXISTS")
    return _table(tokens)


def _table(tokens: TokenReader) -> TableName:
    return TableName(*tokens.table())


def _tables(tokens: TokenReader, *separators: str) -> tuple[TableName, ...]:
    tokens.take_all("IF", "EXISTS")
    return tuple(TableName(*name) for name in tokens.tables(*separators))


def _renamed(tokens: TokenReader) -> tuple[TableName, ...]:
    """Take `a TO b, c TO d`; return all of them."""
    return _tables(tokens, "TO", ",", "WAIT", "NOWAIT")


@dataclass(frozen=True, slots=True)
class Swap:
    """What a RENAME TABLE between tables and their shadow tables does.

    `refilled`: tables that have the rows of a shadow table now. `emptied`: tables whose rows went
    to a shadow table, with none in their place yet. `shadows`: the shadow tables.
    """

    refilled: tuple[TableName, ...]
    emptied: tuple[TableName, ...]
    shadows: tuple[TableName, ...]


def swap_of(statement: str, database: str) -> Swap | None:
    """Return what a statement swaps; None if it is no RENAME TABLE of shadow tables alone.

    One statement may be half a swap: gh-ost's two-step cut-over has two of them, and the table was
    dropped before by `pt-online-schema-change --alter-foreign-keys-method=drop_swap`.

    `database`: the statement's default database.
    """
    refilled: list[TableName] = []
    left: list[TableName] = []
    shadows: list[TableName] = []
    for old, new in renames_of(statement, database):
        if _is_shadow_of(new, old):
            left.append(old)
            shadows.append(new)
        elif _is_shadow_of(old, new):
            refilled.append(new)
            shadows.append(old)
        else:
            return None
    emptied = tuple(table for table in left if table not in refilled)
    return Swap(tuple(refilled), emptied, tuple(shadows)) if shadows else None


def _is_shadow_of(shadow: TableName, table: TableName) -> bool:
    found = re.fullmatch(SHADOW_TABLE, shadow.table or "")
    return found is not None and shadow.database == table.database and found[1] == table.table


# First words of clauses of ALTER TABLE.
_OPTIONS = frozenset(
    {"ALGORITHM", "AUTO_INCREMENT", "AUTOEXTEND_SIZE", "AVG_ROW_LENGTH", "CHARACTER", "CHARSET"}
    | {"CHECKSUM", "COLLATE", "COMMENT", "COMPRESSION", "DEFAULT", "DELAY_KEY_WRITE", "DISABLE"}
    | {"ENABLE", "ENCRYPTED", "ENCRYPTION", "ENGINE", "FORCE", "KEY_BLOCK_SIZE", "LOCK"}
    | {"MAX_ROWS", "MIN_ROWS", "ORDER", "PACK_KEYS", "PAGE_CHECKSUM", "PAGE_COMPRESSED"}
    | {"PAGE_COMPRESSION_LEVEL", "ROW_FORMAT", "STATS_AUTO_RECALC", "STATS_PERSISTENT"}
    | {"STATS_SAMPLE_PAGES", "TABLESPACE", "TRANSACTIONAL", "WITH", "WITHOUT"}
)
# Those that move rows without logging them stop a sink by `effect_of`.
_PARTITIONS = frozenset(
    {"ANALYZE", "CHECK", "COALESCE", "DISCARD", "EXCHANGE", "IMPORT", "OPTIMIZE", "PARTITION"}
    | {"REBUILD", "REMOVE", "REORGANIZE", "REPAIR", "TRUNCATE", "UPGRADE"}
)
# What follows ADD where no column is added.
_NO_COLUMN = frozenset(
    {"CHECK", "CONSTRAINT", "FOREIGN", "FULLTEXT", "INDEX", "KEY", "PARTITION", "PRIMARY"}
    | {"SPATIAL", "UNIQUE"}
)
# In the definition of a column: existing rows get another value than NULL.
_VALUES = frozenset({"AS", "AUTO_INCREMENT", "GENERATED", "NOT", "PRIMARY", "SERIAL"})


@dataclass(frozen=True, slots=True)
class Unlogged:
    """A statement after which rows of a table have values that are in no event of its shard.

    `is_refilled`: the rows themselves came from another table.
    """

    what: TableName
    at: Version
    gtid: str | None
    statement: str
    is_refilled: bool

    @property
    def place(self) -> str:
        """The table, where the statement is, and its beginning, in one line."""
        gtid = f" (GTID {self.gtid})" if self.gtid else ""
        return (
            f"{self.what.database}.{self.what.table}, shard {self.at.shard}, seq {self.at.seq}"
            f"{gtid}: {' '.join(self.statement.split())[:200]}"
        )

    @property
    def _key(self) -> tuple[TableName, str]:
        return self.what, self.at.shard


def unlogged_by(record: Mapping[str, Any]) -> list[Unlogged]:
    """Return what a DDL record changes without logging it, a table each."""
    statement, database = record["statement"], record["database"]
    swap = swap_of(statement, database)
    altered = altered_table(statement, database)
    tables = swap.refilled if swap is not None else () if altered is None else (altered,)
    at, gtid = version_at(record), record.get("gtid")
    return [Unlogged(table, at, gtid, statement, swap is not None) for table in tables]


def to_be_copied(
    found: Iterable[Unlogged], emptied: Sequence[tuple[TableName, Version]]
) -> list[Unlogged]:
    """Return the last statement of each table and shard behind which the table must be copied.

    `found` and `emptied` (tables, and where a statement removed all their rows): of one batch, in
    merged order. A table that is emptied afterwards needs no copy.
    """
    last = {each._key: each for each in found}  # noqa: SLF001 - its own
    return [each for each in last.values() if not any(_empties(*e, each) for e in emptied)]


def _empties(what: TableName, at: Version, change: Unlogged) -> bool:
    is_same = what.database == change.what.database and what.table in {None, change.what.table}
    return is_same and at.shard == change.at.shard and at.seq > change.at.seq


def concerns(change: Unlogged, has_table: Callable[[TableName], bool], rows: pa.Table) -> bool:
    """Tell whether a sink has old values of a table, or lacks rows, behind a statement.

    `has_table`: whether it has the table. `rows`: of the batch.
    """
    is_there = change.is_refilled or has_table(change.what)
    return is_there or has_rows_before(rows, change.what, change.at)


def has_rows_before(rows: pa.Table, what: TableName, at: Version) -> bool:
    """Tell whether records of a source have rows of a table from before a statement of its shard.

    `what` without a table: of any of the database.
    """
    found = pc.and_(pc.equal(rows["type"], "ROW"), pc.equal(rows["database"], what.database))
    if what.table is not None:
        found = pc.and_(found, pc.equal(rows["table"], what.table))
    found = pc.and_(found, pc.equal(rows["shard"], at.shard))
    found = pc.and_(found, pc.less(rows["seq"], at.seq))
    return bool(pc.any(found, min_count=0).as_py())


def stop_at_unlogged(found: Sequence[Unlogged]) -> None:
    """CannotApply: nobody has the table copied."""
    raise CannotApply(
        f"{found[0].place}: this statement changed values of rows without logging them. Have the "
        f"table copied (`shardstream copy start`), which brings them, and accept the statement by "
        f"its GTID (accept_skip); or pass on_unlogged, which does both"
    )


def altered_table(statement: str, database: str) -> TableName | None:
    """Return the table whose rows get values by an ALTER TABLE, None if all keep those they have.

    A new column that is NULL in all of them does not count, and neither does a dropped one.
    """
    # A statement that changes values in any reading is taken to do so.
    found = (_altered_table(tokens, database) for tokens in readings(statement))
    return next((table for table in found if table is not None), None)


def _altered_table(tokens_of_statement: list[Token], database: str) -> TableName | None:
    tokens = reader_of(tokens_of_statement, database)
    if not tokens.take("ALTER"):
        return None
    table = altered_table_of(tokens)
    if table is None:
        return None
    if tokens.take("WAIT"):
        tokens.next()
    tokens.take("NOWAIT")
    added: set[str] = set()
    keeps = [_keeps_values(clause, added) for clause in tokens.clauses()]
    dropped = {drop.name.lower() for drop in dropped_by(reader_of(tokens_of_statement, database))}
    # A column that another one of its name replaces is NULL from now on.
    return None if all(keeps) and added.isdisjoint(dropped) else table


def _keeps_values(clause: Sequence[Token], added: set[str]) -> bool:
    if not clause:
        return True
    first, rest = clause[0], clause[1:]
    if first.is_word("ADD"):
        return _keeps_values_added(rest, added)
    if first.is_word(*_OPTIONS):
        return _is_innodb(clause)
    if first.is_word("CONVERT"):
        return bool(rest) and rest[0].is_word("PARTITION", "TABLE")
    # To drop the versioning of a table is to drop its history; the present rows stay as they are.
    return first.is_word("ALTER", "DROP", "RENAME", *_PARTITIONS)


def _is_innodb(clause: Sequence[Token]) -> bool:
    """Tell whether options of a table leave it in InnoDB: BLACKHOLE, say, has no rows."""
    places = [i for i, token in enumerate(clause) if token.is_word("ENGINE")]
    values = [[t for t in clause[i + 1 : i + 3] if not t.is_word("=")][:1] for i in places]
    return all(v and v[0].text.strip("'").lower() == "innodb" for v in values)


def _keeps_values_added(rest: Sequence[Token], added: set[str]) -> bool:
    """Tell whether what ADD adds is no column, or columns that are NULL."""
    words = list(rest)
    if words and words[0].is_word(*_NO_COLUMN):
        return True
    if len(words) > 1 and words[1].is_word("INDEX", "KEY") and words[0].is_word("VECTOR"):
        return True
    if words and words[0].is_word("COLUMN"):
        del words[0]
    elif len(words) > 1 and (words[0].is_word("PERIOD", "SYSTEM")):
        return False
    while words and words[0].is_word("IF", "NOT", "EXISTS"):
        del words[0]
    if words and words[0].is_word("("):
        end = max((i for i, token in enumerate(words) if token.is_word(")")), default=len(words))
        inner = TokenReader([*words[1:end]]).clauses()
        return all(
            bool(each) and (each[0].is_word(*_NO_COLUMN) or _is_null(each, added)) for each in inner
        )
    return _is_null(words, added)


def _is_null(definition: Sequence[Token], added: set[str]) -> bool:
    """Tell whether existing rows have NULL in a column that is added."""
    added.update(token.text.lower() for token in definition[:1])
    words: list[Token] = []
    depth = 0
    for token in definition[1:]:
        depth += token.is_word("(") - token.is_word(")")
        if depth == 0:
            words.append(token)
    nulls = 0
    for before, token in zip([Token("", TokenKind.SIGN), *words], words, strict=False):
        if token.is_word(*_VALUES) or (token.is_word("KEY") and not before.is_word("UNIQUE")):
            return False
        if before.is_word("DEFAULT") and not token.is_word("NULL"):
            return False
        nulls += token.is_word("NULL") and not before.is_word("DEFAULT")
    # Without `explicit_defaults_for_timestamp` it is NOT NULL unless it says otherwise.
    return bool(words) and (nulls > 0 or not words[0].is_word("TIMESTAMP"))
