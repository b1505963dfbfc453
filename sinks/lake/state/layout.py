"""Where the Delta tables of a target lie, and their columns. Pure.

A table's visible rows, one per primary key, are in `<target>/<database>/<table>`. The other
versions of keys (live rows that a newer home hides, tombstones) are in the table of the same name
below `_shardstream`, and the history of a table is below `_shardstream_history`.

A table has the source's columns by name, then those that keep the order of changes. The type that a
column has in the database is in its field's metadata, because the Arrow type does not distinguish a
YEAR from an INT.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote

import pyarrow as pa
from deltalake import Schema

from sinks.lake.delta.stored_table import StoredTable
from sinks.rule.columns import (
    KnownTable,
    effective_renames,
    known_names,
    new_names,
    renamed,
    united,
)
from sinks.rule.homes import DELETED, HOME, KEY, OP, SEQ, SHARD, TIME
from sinks.rule.policy import OnTypeChange
from topics.arrow.output_columns import arrow_type
from topics.errors import ShapeConflict
from topics.records.table_shape import Column, TableShape, ValueKind

FRONTIERS = "_shardstream_frontiers"
HIDDEN = "_shardstream"
HISTORY = "_shardstream_history"


@dataclass(frozen=True, slots=True, order=True)
class TablePlace:
    """The place of one table of the database in a target (a folder or URL without final slash)."""

    target: str
    database: str
    table: str

    @property
    def name(self) -> str:
        """The place of the visible rows below the target."""
        return f"{_folder(self.database)}/{_folder(self.table)}"

    @property
    def source(self) -> str:
        """The table that is kept, as `database.table`."""
        return f"{self.database}.{self.table}"

    @property
    def visible(self) -> str:
        """The table that readers see."""
        return f"{self.target}/{self.name}"

    @property
    def hidden(self) -> str:
        """The table of hidden rows and tombstones."""
        return f"{self.target}/{self.hidden_name}"

    @property
    def hidden_name(self) -> str:
        """The place of the table of hidden rows below the target."""
        return f"{HIDDEN}/{self.name}"

    @property
    def history(self) -> str:
        """The table of all versions of rows, if a history is kept."""
        return f"{self.target}/{self.history_name}"

    @property
    def history_name(self) -> str:
        """The place of the history below the target."""
        return f"{HISTORY}/{self.name}"


def place_of(target: str, name: str) -> TablePlace:
    """Return the place of a table by its name below the target."""
    database, _, table = name.partition("/")
    return TablePlace(target, _named(database), _named(table))


def _folder(name: str) -> str:
    """Return a folder for any name, percent-encoded with `@`: delta-rs decodes `%25` in paths."""
    encoded = quote(name, safe=" ").replace("~", "%7E")
    if not name.strip("."):
        encoded = encoded.replace(".", "%2E")
    if name.startswith(HIDDEN):
        encoded = f"%5F{encoded[1:]}"
    return encoded.replace("%", "@")


def _named(folder: str) -> str:
    return unquote(folder.replace("@", "%"))


COLUMN = b"shardstream.column"
_KEPT = (
    pa.field(KEY, pa.string()),
    pa.field(HOME, pa.binary()),
    pa.field(SHARD, pa.string()),
    pa.field(SEQ, pa.int64()),
    pa.field(TIME, pa.int64()),
)


def visible_schema(known: KnownTable) -> pa.Schema:
    """Return the columns of a table of visible rows."""
    earlier: dict[str, list[str]] = {}
    for old, new in known.renames.items():
        earlier.setdefault(new, []).append(old)
    keys = {index: place for place, index in enumerate(known.shape.primary_key)}
    fields = [
        pa.field(
            column.name,
            arrow_type(column),
            metadata={COLUMN: _text(column, keys.get(index), earlier.get(column.name, []))},
        )
        for index, column in enumerate(known.shape.columns)
    ]
    return pa.schema([*fields, *_KEPT])


def hidden_schema(visible: pa.Schema) -> pa.Schema:
    """Return the columns of the table of the other versions."""
    return visible.append(pa.field(DELETED, pa.bool_()))


def known_table(place: TablePlace, visible: StoredTable | None) -> KnownTable:
    """Return the source's table, as the table of visible rows, if there is one, describes it."""
    columns: list[Column] = []
    keys: dict[int, int] = {}
    renames: dict[str, str] = {}
    for field in () if visible is None else visible.schema:
        text = (field.metadata or {}).get(COLUMN)
        if text is None:
            continue
        found = json.loads(text)
        if found["key"] is not None:
            keys[found["key"]] = len(columns)
        renames |= dict.fromkeys(found["earlier"], field.name)
        columns.append(
            Column(
                field.name,
                ValueKind(found["kind"]),
                found["sql_type"],
                found["precision"],
                found["scale"],
                tuple(found["labels"]),
            )
        )
    primary_key = tuple(keys[place] for place in sorted(keys))
    shape = TableShape(place.database, place.table, tuple(columns), primary_key)
    return KnownTable(shape, renames)


def evolved(
    known: KnownTable,
    shapes: Sequence[TableShape],
    renames: Sequence[tuple[str, str, str]],
    on_type_change: OnTypeChange,
) -> tuple[KnownTable, dict[str, str]]:
    """Return a table after a batch, and the names that columns lose (old: new).

    ShapeConflict: see `sinks.rule.columns`.
    """
    first = known.shape if known.shape.columns else shapes[0]
    lost = new_names(effective_renames(first, renames))
    shape = renamed(first, lost)
    for other in shapes:
        shape = united(shape, other, on_type_change)
    return KnownTable(shape, known_names(known.renames, renames)), lost


def is_readable_as(stored: pa.Schema, wanted: pa.Schema) -> bool:
    """Tell whether the files of a table have the names and types of other columns."""
    fields = {field.name.lower(): field for field in Schema.from_arrow(stored).fields}
    for other in Schema.from_arrow(wanted).fields:
        field = fields.get(other.name.lower(), other)
        if (field.name, str(field.type)) != (other.name, str(other.type)):
            return False
    return True


def _text(column: Column, key: int | None, earlier: Sequence[str]) -> str:
    found = {
        "kind": column.kind.value,
        "sql_type": column.sql_type,
        "precision": column.precision,
        "scale": column.scale,
        "labels": column.labels,
        "key": key,
        "earlier": sorted(earlier),
    }
    return json.dumps(found)


FROM = "_from_us"
TO = "_to_us"
FROM_TOKEN = "_from_token"  # noqa: S105 - the name of a column
# _from_us, _from_token and _op: of the change that made the row visible. _to_us: when another one
# replaced or removed it; null while it is visible.
KEPT = (
    pa.field(KEY, pa.string()),
    pa.field(FROM, pa.int64()),
    pa.field(TO, pa.int64()),
    pa.field(FROM_TOKEN, pa.string()),
    pa.field(OP, pa.string()),
)
_NAMES = frozenset(field.name for field in KEPT)
_ORDER = frozenset({KEY, HOME, SHARD, SEQ, TIME})


def history_schema(visible: pa.Schema) -> pa.Schema:
    """Return the columns of a history. `visible`: of the table of visible rows.

    ShapeConflict if the table has a column that is named as one of ours.
    """
    own = [field for field in visible if field.name not in _ORDER]
    clash = sorted(_NAMES & {field.name for field in own})
    if clash:
        raise ShapeConflict(
            f"the table has a column '{clash[0]}', which is the name of a column of its history: "
            f"rename the column, or leave out --history"
        )
    return pa.schema([*own, *KEPT])


def own_columns(schema: pa.Schema) -> pa.Schema:
    """Return the table's own columns of a history."""
    return pa.schema([field for field in schema if field.name not in _NAMES])
