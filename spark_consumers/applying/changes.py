"""What one task of a sink's query applies to one table, as Arrow data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from spark_consumers.applying.homes import Version
from spark_consumers.applying.tables import Removal
from topics.records.table_shape import TableShape

KEY = "_key"
HOME = "_home"
SHARD = "_shard"
SEQ = "_seq"
TIME = "_time_us"
DELETED = "_deleted"
TOKEN = "_token"  # noqa: S105 - the name of a column
COMPARE = "_compare"
ABSENT = "_absent"
OP = "_op"

# The columns in front of a table's own.
# _key: JSON text of the primary key. _home: keyspace id, null where the table has none.
# _deleted: a tombstone. _token: null where the query reads no tokens.
# _compare: the change was late or a possible duplicate, so it must be compared with what is stored;
# false: it is newer than everything that is stored of its home.
# _absent: columns that the row image lacks, whose stored values stay; null: the row is whole.
META = pa.schema(
    [
        pa.field(KEY, pa.string()),
        pa.field(HOME, pa.binary()),
        pa.field(SHARD, pa.string()),
        pa.field(SEQ, pa.int64()),
        pa.field(TIME, pa.int64()),
        pa.field(DELETED, pa.bool_()),
        pa.field(TOKEN, pa.string()),
        pa.field(COMPARE, pa.bool_()),
        pa.field(ABSENT, pa.list_(pa.string())),
    ]
)


@dataclass(frozen=True, slots=True)
class KnownTable:
    """A table that a sink has: its columns, and the names that columns had before (old: new)."""

    shape: TableShape
    renames: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SeenVersion:
    """A version of a table in a batch, with the places of its first and last row on a shard."""

    shape: TableShape
    first: Version
    last: Version


@dataclass(frozen=True, slots=True)
class Told:
    """What a batch tells of the columns that shards have: versions, and columns dropped there.

    Only filled where columns are to be dropped. Names are those of the shards.
    """

    seen: tuple[SeenVersion, ...] = ()
    dropped: tuple[tuple[str, Version], ...] = ()

    def __bool__(self) -> bool:
        """Whether it tells anything."""
        return bool(self.seen or self.dropped)


NOTHING_TOLD = Told()


@dataclass(frozen=True, slots=True)
class TableChanges:
    """What a batch changes in one table, as far as it concerns one task.

    `shape`: the columns of the known table and of all versions in the batch, united by name, each
    as wide as the widest; without columns if the table is not known and the batch has no row of it.

    `rows`: META, then the columns of `shape` by name, typed by `output_columns.arrow_type`. At most
    one row per key and home: the last change in merged order. A tombstone has the columns of its
    key, all others are null.

    `removals`: TRUNCATE and DROP in merged order. They are to be applied to stored rows before
    `rows`, from which rows that they removed are gone already (`removals.removed`).

    `ended_copies`: shards whose copy of the table was completed.

    `renames`: (shard, old name, new name) of columns, in merged order.

    `versions`: where the sink keeps a history of the table, what every change of the batch leaves,
    in any order: columns as `rows`, then OP, the op of the change. None where it keeps none.

    `told`: which columns the shards have.
    """

    database: str
    table: str
    shape: TableShape
    rows: pa.Table
    removals: tuple[Removal, ...] = ()
    ended_copies: tuple[str, ...] = ()
    renames: tuple[tuple[str, str, str], ...] = ()
    versions: pa.Table | None = None
    told: Told = NOTHING_TOLD

    @property
    def has_rows(self) -> bool:
        """Whether it changes rows; for a history also if the batch has removed them all again."""
        return self.rows.num_rows > 0 or (self.versions is not None and self.versions.num_rows > 0)


def version_of(row: Mapping[str, Any], kept: object) -> Version:
    """Return a change or a stored row, by its columns of META, as a version.

    `kept`: what the version keeps of the row, unless it is a tombstone.
    """
    is_deleted = bool(row.get(DELETED))
    return Version(
        row[SHARD],
        row[SEQ],
        row[TIME],
        row[HOME],
        None if is_deleted else kept,
        row.get(TOKEN),
        is_partial=not is_deleted and row.get(ABSENT) is not None,
    )
