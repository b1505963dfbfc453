"""Statements that change the values of existing rows without logging a row. Pure.

The swap of an online schema change, and ALTER TABLE where it computes values: ADD COLUMN with a
DEFAULT or NOT NULL, MODIFY, CHANGE, CONVERT TO CHARACTER SET. What a row has then, only its server
knows, so such rows must be copied again. What is listed here keeps the values of all rows; anything
else is taken to change them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_consumers.applying.homes import Version
from spark_consumers.applying.shadow_tables import swap_of
from spark_consumers.applying.statements import TableName, Token, Tokens, column_drops
from spark_consumers.errors import CannotApply

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
    place = (record["shard"], record["seq"], record["timestamp_us"])
    at = Version(*place, None, None, record.get("token"))
    gtid = record.get("gtid")
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
    # Whether a backslash escapes a quote is told by the session's sql_mode, which no record has:
    # a statement that changes values in either reading is taken to do so.
    both = (statement, statement.replace("\\", "\\\\"))
    found = (_altered_table(each, database) for each in dict.fromkeys(both))
    return next((table for table in found if table is not None), None)


def _altered_table(statement: str, database: str) -> TableName | None:
    tokens = Tokens.of(statement, database)
    if not tokens.take("ALTER"):
        return None
    table = tokens.altered()
    if table is None:
        return None
    if tokens.take("WAIT"):
        tokens.next()
    tokens.take("NOWAIT")
    added: set[str] = set()
    keeps = [_keeps_values(clause, added) for clause in tokens.clauses()]
    dropped = {drop.name.lower() for drop in column_drops(statement, database)}
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
        inner = Tokens([*words[1:end]], "").clauses()
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
    for before, token in zip([Token("", is_name=False), *words], words, strict=False):
        if token.is_word(*_VALUES) or (token.is_word("KEY") and not before.is_word("UNIQUE")):
            return False
        if before.is_word("DEFAULT") and not token.is_word("NULL"):
            return False
        nulls += token.is_word("NULL") and not before.is_word("DEFAULT")
    # Without `explicit_defaults_for_timestamp` it is NOT NULL unless it says otherwise.
    return bool(words) and (nulls > 0 or not words[0].is_word("TIMESTAMP"))
