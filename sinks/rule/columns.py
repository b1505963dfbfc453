"""How the columns of a sink's table follow the versions of the source's table. Pure.

A sink's table has the union of the columns of all versions that were met on any shard, because
shards are altered one after the other. Columns belong together by name; their order does not
matter. A column becomes as wide as its widest version and never narrower again. A column that is
dropped stays, and is NULL in the rows of versions that lack it, unless the sink is to drop it once
no shard has it any more.

The versions of a shard's rows show which columns it has, and ALTER TABLE ... DROP COLUMN. A shard
that has shown neither may have a column. If a shard adds a column again before all others have
dropped it, the values that it had before must not come back in the rows of that shard.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from sinks.rule.batch_statements import BatchStatements, Name
from sinks.rule.homes import Version
from sinks.rule.policy import OnTypeChange
from sinks.rule.upserts import removed
from topics.arrow.decoders import TableDecoder
from topics.arrow.output_columns import arrow_type
from topics.errors import ShapeConflict
from topics.records.table_shape import Column, TableShape, ValueKind


@dataclass(frozen=True, slots=True)
class KnownTable:
    """A table that a sink has: its columns, and the names that columns had before (old: new)."""

    shape: TableShape
    renames: Mapping[str, str] = field(default_factory=dict)


# A version of a table in a batch, and the places of its first and last row on a shard.
SeenVersion = tuple[TableShape, Version, Version]


@dataclass(frozen=True, slots=True)
class ColumnReport:
    """The columns that shards have, as a batch shows: versions, and columns dropped there.

    Only filled where columns are to be dropped. Names are those of the shards.
    """

    seen: tuple[SeenVersion, ...] = ()
    dropped: tuple[tuple[str, Version], ...] = ()

    def __bool__(self) -> bool:
        """Whether it has anything."""
        return bool(self.seen or self.dropped)


NO_REPORT = ColumnReport()


# The kinds whose values another kind holds without a change of meaning, each narrower first.
_ORDERS = (
    (ValueKind.YEAR, ValueKind.INT, ValueKind.LONG),
    (ValueKind.FLOAT, ValueKind.DOUBLE),
)
_TEXTS = frozenset({ValueKind.ENUM, ValueKind.JSON, ValueKind.STRING})
# Their text has as many digits after the second as the column.
_FRACTIONS = frozenset({ValueKind.DATETIME, ValueKind.TIME, ValueKind.TIMESTAMP})
# Their values have one text, and a CHAR that becomes one may have had another: capital letters.
_ONE_TEXT = frozenset({"inet4", "inet6", "uuid"})
# What a text column is called that took the values of two kinds.
_TEXT = "longtext"

_DECLARED = re.compile(r"(?P<name>\w+)(?:\((?P<size>\d+)(?:,\d+)?\))?(?P<unsigned> unsigned)?")
# How much the types of one kind hold, as far as their names show.
_SIZES = {
    **dict(zip(("tinyint", "smallint", "mediumint", "int", "bigint"), range(5), strict=True)),
    **{
        f"{size}{name}": 256 << (8 * i)
        for name in ("text", "blob")
        for i, size in enumerate(("tiny", "", "medium", "long"))
    },
}


def widest(a: Column, b: Column) -> Column | None:
    """Return column `a` as wide as needed for the values of `b` as well; None: no type is."""
    if a.kind is b.kind:
        return _same_kind(a, b)
    if {a.kind, b.kind} <= _TEXTS:
        return replace(a, kind=ValueKind.STRING, sql_type=_text_for(a, b), labels=())
    for order in _ORDERS:
        if a.kind in order and b.kind in order:
            return replace(max(a, b, key=lambda each: order.index(each.kind)), name=a.name)
    return None


def has_same_text(a: Column, b: Column) -> bool:
    """Tell whether a value that two versions of a column hold has one text in keys."""
    if a.kind is not b.kind:
        return not {a.kind, b.kind} <= {ValueKind.FLOAT, ValueKind.DOUBLE}
    if a.kind is ValueKind.DECIMAL:
        return a.scale == b.scale
    is_padded = a.kind is ValueKind.BYTES and _is_padded(a, b)
    if a.kind in _FRACTIONS or is_padded or {a.sql_type, b.sql_type} & _ONE_TEXT:
        return a.sql_type == b.sql_type
    return True


def _is_padded(*columns: Column) -> bool:
    return any(column.sql_type.startswith("binary") for column in columns)


def _text_for(a: Column, b: Column) -> str:
    """Return the type of a text that holds the values of two kinds, of which one may be a text."""
    kept = next((each for each in (a, b) if each.kind is ValueKind.STRING), None)
    if kept is None or ValueKind.JSON in {a.kind, b.kind}:
        return _TEXT
    longest = max((len(label) for label in (*a.labels, *b.labels)), default=0)
    return _TEXT if longest > _size(kept)[0] else kept.sql_type


def _same_kind(a: Column, b: Column) -> Column | None:
    if a.kind is ValueKind.DECIMAL:
        return _widest_decimal(a, b)
    labels = tuple(dict.fromkeys((*a.labels, *b.labels)))
    if labels:
        # The longer list is the newer one, because labels are seldom taken away.
        sql_type = b.sql_type if len(b.labels) > len(a.labels) else a.sql_type
        return replace(a, labels=labels, sql_type=sql_type)
    return replace(a, sql_type=b.sql_type if _size(b) > _size(a) else a.sql_type)


def _widest_decimal(a: Column, b: Column) -> Column | None:
    """Return a DECIMAL with the digits of both before the point and behind it; None: a text."""
    scale = max(a.scale, b.scale)
    precision = scale + max(a.precision - a.scale, b.precision - b.scale)
    widest_of = replace(max(a, b, key=lambda each: (each.scale, each.precision)), name=a.name)
    if (widest_of.precision, widest_of.scale) != (precision, scale):
        sql_type = f"decimal({precision},{scale})"
        widest_of = replace(widest_of, sql_type=sql_type, precision=precision, scale=scale)
    # A text has the digits of its own version.
    is_text = {_is_text(each) for each in (a, b, widest_of)}
    return None if len(is_text) > 1 or (is_text == {True} and a.scale != b.scale) else widest_of


def _is_text(column: Column) -> bool:
    return bool(pa.types.is_string(arrow_type(column)))


def _size(column: Column) -> tuple[int, bool]:
    declared = _DECLARED.match(column.sql_type)
    if declared is None:
        return 0, False
    # The number of an integer is the width of its display.
    size = _SIZES.get(declared["name"], int(declared["size"] or 0))
    return size, declared["unsigned"] is not None


# The texts of invalid dates of column `x` lie in column `x__text`.
TEXT_SUFFIX = "__text"
# A column that changed its type 100 times was not meant to go on as a new column each time.
TYPES_OF_A_NAME_MAX = 100


@dataclass(frozen=True, slots=True)
class AddColumn:
    """A column that the sink's table lacks; NULL in the rows that it has."""

    column: Column


@dataclass(frozen=True, slots=True)
class Widen:
    """A column that gets a wider type. The Arrow type may stay: `varchar(10)` to `varchar(40)`."""

    before: Column
    after: Column


@dataclass(frozen=True, slots=True)
class Rename:
    """A column that a statement renamed."""

    old: str
    new: str


Step = AddColumn | Widen | Rename


def united(
    known: TableShape, version: TableShape, on_type_change: OnTypeChange = OnTypeChange.STOP
) -> TableShape:
    """Return the columns of `known`, as wide as needed for `version`, then its new ones.

    A shape without columns stands for a table that is not known. ShapeConflict: a type that does
    not fit (unless it becomes a new column), or another primary key.
    """
    if not known.columns:
        return version
    if not version.columns:
        return known
    version = spelled_as(known, version)
    _check_key(known, version)
    columns = {column.name: column for column in known.columns}
    for column in version.columns:
        name = _target_name(columns, column, version, on_type_change)
        there = columns.get(name)
        fits = None if there is None else widest(there, column)
        columns[name] = fits or replace(column, name=name)
    return replace(known, columns=tuple(columns.values()))


def places(version: TableShape, into: TableShape) -> tuple[str, ...]:
    """Return for each column of a version the column of the united shape that takes its values."""
    columns = {column.name: column for column in into.columns}
    version = spelled_as(into, version)
    return tuple(_target_name(columns, column, version) for column in version.columns)


def spelled_as(known: TableShape, version: TableShape) -> TableShape:
    """Return a version with the spelling that names have in `known`: `Id` and `id` are one name."""
    exact = {column.name for column in known.columns}
    spelled = {column.name.lower(): column.name for column in known.columns}
    columns = (
        column
        if column.name in exact
        else replace(column, name=spelled.get(column.name.lower(), column.name))
        for column in version.columns
    )
    return replace(version, columns=tuple(columns))


def _target_name(
    columns: Mapping[str, Column],
    column: Column,
    version: TableShape,
    on_type_change: OnTypeChange = OnTypeChange.STOP,
) -> str:
    """Return the first of `name`, `name__v2`, `name__v3` ... that fits, else the first free one."""
    own = {each.name for each in version.columns}
    for number in range(1, TYPES_OF_A_NAME_MAX + 1):
        name = column.name if number == 1 else f"{column.name}__v{number}"
        if number > 1 and name in own:
            continue
        there = columns.get(name)
        if there is None and (number == 1 or on_type_change is OnTypeChange.NEW_COLUMN):
            return name
        if there is None:
            break
        if widest(there, column) is not None:
            return name
    raise ShapeConflict(
        f"{version.database}.{version.table}: column '{column.name}' is {column.sql_type} in one "
        f"version of the table and {columns[column.name].sql_type} in another, and no type holds "
        f"both. Accept a new column '{column.name}__v2' with "
        f"on_type_change={OnTypeChange.NEW_COLUMN.value}, or start a new target from a copy taken "
        f"after all shards were altered"
    )


def _check_key(known: TableShape, version: TableShape) -> None:
    old, new = key_names(known), key_names(version)
    types = [(known.columns[i], version.columns[j]) for i, j in _zip(known, version)]
    if old != new or not all(widest(*both) and has_same_text(*both) for both in types):
        raise ShapeConflict(
            f"{known.database}.{known.table}: the primary key is ({_declared(version)}) in one "
            f"version of the table and ({_declared(known)}) in another, so rows cannot be told "
            f"apart. Leave the table out by naming the others with --table: they go on where they "
            f"are. Follow it again, once all shards were altered, in a new target from a copy "
            f"taken after that"
        )


def _zip(known: TableShape, version: TableShape) -> Iterable[tuple[int, int]]:
    return zip(known.primary_key, version.primary_key, strict=False)


def _declared(shape: TableShape) -> str:
    key = [shape.columns[i] for i in shape.primary_key]
    return ", ".join(f"{column.name} {column.sql_type}" for column in key)


def key_names(shape: TableShape) -> tuple[str, ...]:
    """Return the names of the primary key's columns, in its order."""
    return tuple(shape.columns[i].name for i in shape.primary_key)


def as_declared(
    renames: Iterable[tuple[str, str, str]], names: Iterable[str]
) -> tuple[tuple[str, str, str], ...]:
    """Return renames with old names as `names` has them: a statement may use any case."""
    declared = {name.lower(): name for name in names}
    found = []
    for shard, old, new in renames:
        found.append((shard, declared.get(old.lower(), old), new))
        declared[new.lower()] = new
    return tuple(found)


def effective_renames(
    shape: TableShape, renames: Iterable[tuple[str, str, str]]
) -> tuple[Rename, ...]:
    """Return the renames, in their order, that change the columns of a sink's table.

    Those that another shard has made before change nothing. If the new name was taken before, the
    column cannot be renamed: its values go on in the column of that name.
    """
    names = {column.name.lower(): column.name for column in shape.columns}
    found = []
    for _, old, new in renames:
        there = names.get(old.lower())
        is_free = new.lower() not in names or new.lower() == old.lower()
        if there is not None and there != new and is_free:
            del names[old.lower()]
            names[new.lower()] = new
            found.append(Rename(there, new))
    return tuple(found)


def check_renames(known: KnownTable, renames: Iterable[tuple[str, str, str]]) -> None:
    """ShapeConflict if a column gets the name of one that was dropped.

    A sink's table has both, and rows that do not change would keep the dropped column's values
    under that name.
    """
    shape, made = known.shape, known.renames
    for each in renames:
        shard, old, new = each
        names = {column.name.lower() for column in shape.columns}
        are_both = not _is_one(old, new) and {old.lower(), new.lower()} <= names
        if are_both and not _is_one(_last_name(made, old), new):
            raise ShapeConflict(
                f"{shape.database}.{shape.table}, shard {shard}: column '{old}' was renamed to "
                f"'{new}', and the target still has an earlier column of that name, whose values "
                f"would stay in the rows that do not change. Start a new target from a copy taken "
                f"after all shards were altered"
            )
        steps = new_names(effective_renames(shape, [each]))
        shape, made = renamed(shape, steps), known_names(made, [each])


def new_names(steps: Iterable[Rename]) -> dict[str, str]:
    """Return the last name of each column (old: new); one that is renamed twice is there once.

    One that got its first name back is not there.
    """
    found: dict[str, str] = {}
    for step in steps:
        first = next((old for old, new in found.items() if new == step.old), step.old)
        found[first] = step.new
    return {old: new for old, new in found.items() if old != new}


def known_names(renames: Mapping[str, str], more: Iterable[tuple[str, str, str]]) -> dict[str, str]:
    """Return renames (old: new) with further ones (shard, old, new) that follow them.

    One that another shard has made before changes nothing, also if that shard has made more.
    """
    names = dict(renames)
    for _, old, new in more:
        last = _last_name(names, old)
        if not _is_one(last, old) and _is_one(last, _last_name(names, new)):
            continue
        ends = {before: new if _is_one(after, old) else after for before, after in names.items()}
        names = {name: end for name, end in (ends | {old: new}).items() if not _is_one(name, new)}
    return names


def _last_name(renames: Mapping[str, str], name: str) -> str:
    """Return the name that a column has after the renames (old: new)."""
    return next((new for old, new in renames.items() if _is_one(old, name)), name)


def _is_one(name: str, other: str) -> bool:
    """Tell whether MySQL takes two names of columns for one."""
    return name.lower() == other.lower()


def renamed(shape: TableShape, renames: Mapping[str, str]) -> TableShape:
    """Return a version with the names that its columns have now.

    A version that has the new name as well has given the old one to another column.
    """
    names = {column.name.lower() for column in shape.columns}
    by_name = {old.lower(): new for old, new in renames.items()}
    columns = []
    for column in shape.columns:
        name = by_name.get(column.name.lower(), column.name)
        is_taken = name.lower() in names and not _is_one(name, column.name)
        columns.append(column if is_taken else replace(column, name=name))
    return replace(shape, columns=tuple(columns))


def with_texts(shape: TableShape, dates: Iterable[str]) -> TableShape:
    """Return a shape with a text column for each column that had an invalid date."""
    names = {column.name for column in shape.columns}
    more = sorted({name + TEXT_SUFFIX for name in dates} - names)
    columns = tuple(Column(name, ValueKind.STRING, "text") for name in more)
    return replace(shape, columns=(*shape.columns, *columns))


def plan(
    stored: TableShape,
    incoming: TableShape | Sequence[TableShape],
    renames: Iterable[tuple[str, str, str]] = (),
    on_type_change: OnTypeChange = OnTypeChange.STOP,
) -> list[Step]:
    """Return what makes the columns of a sink's table fit the rows of `incoming`, in order.

    `renames`: of the batch's `TableChanges`. Empty if nothing is to be done, or if `stored` has no
    columns because the table is still to be created. ShapeConflict: see `united`.
    """
    if not stored.columns:
        return []
    steps: list[Step] = list(effective_renames(stored, renames))
    now = renamed(stored, new_names(step for step in steps if isinstance(step, Rename)))
    target = now
    for shape in [incoming] if isinstance(incoming, TableShape) else incoming:
        target = united(target, shape, on_type_change)
    before = {column.name: column for column in now.columns}
    for column in target.columns:
        if column.name not in before:
            steps.append(AddColumn(column))
        elif column != before[column.name]:
            steps.append(Widen(before[column.name], column))
    return steps


# By column, the shards that lack it, and since which change of theirs.
Lacking = Mapping[str, Mapping[str, Version]]
# A column of a shard, and where it was dropped there.
Dropped = tuple[str, Version]

# What the sink has made of a column: texts of invalid dates, and values of another type.
_DERIVED = re.compile(rf"(?:__v\d+)?(?:{TEXT_SUFFIX})?$")


def column_reports(
    routed: pa.Table, decoder: TableDecoder, statements: BatchStatements
) -> dict[Name, ColumnReport]:
    """Return which columns tables have, by the rows and statements of a batch."""
    rows = routed.filter(pc.equal(routed["type"], "ROW"))
    both = [(name, how) for name in ("seq", "timestamp_us") for how in ("min", "max")]
    found: dict[Name, list[SeenVersion]] = {}
    for each in rows.group_by(["schema_id", "shard"]).aggregate(both).to_pylist():
        shape = decoder.shape(each["schema_id"])
        first, last = (
            Version(each["shard"], each[f"seq_{how}"], each[f"timestamp_us_{how}"], None, None)
            for how in ("min", "max")
        )
        found.setdefault((shape.database, shape.table), []).append((shape, first, last))
    named = {(drop.table.database, str(drop.table.table)) for drop, _ in statements.drops}
    return {
        name: ColumnReport(tuple(found.get(name, ())), statements.drops_of(name))
        for name in sorted(found.keys() | named)
    }


def without_dropped(rows: pa.Table, report: ColumnReport, known: KnownTable) -> pa.Table:
    """Return rows (META and columns) without the values that their shards' DROP COLUMN removed.

    `known`: the table after the batch.
    """
    for column, at in _named_as(known, report.dropped):
        rows = cleared(rows, column, at)
    return rows


def cleared(rows: pa.Table, column: str, at: Version) -> pa.Table:
    """Return rows with NULL in a column where they are older than its DROP on a shard."""
    if column not in rows.column_names or not rows.num_rows:
        return rows
    index = rows.schema.get_field_index(column)
    field = rows.schema.field(index)
    gone = is_before(rows, at)
    values = pc.if_else(gone, pa.scalar(None, field.type), rows[column].combine_chunks())
    return rows.set_column(index, field, values)


def is_before(rows: pa.Table, at: Version) -> pa.Array:
    """Tell of each row whether a statement on a shard is newer, and the row at home there."""
    return removed([at], rows)


def followed(
    lacking: Lacking, reports: Iterable[ColumnReport], known: KnownTable, live: Collection[str]
) -> tuple[dict[str, dict[str, Version]], list[Dropped]]:
    """Return the columns that shards lack after a batch, and those that a shard has added again.

    `known`: the table after the batch. `live`: the shards that the stream goes on with.
    """
    columns = _droppable(known.shape)
    now: dict[str, dict[str, Version]] = {column: {} for column in columns}
    for column, shards in lacking.items():
        name = column if column in now else known.renames.get(column, column)
        now.setdefault(name, {}).update(shards)
    again: list[Dropped] = []
    for at, has, dropped in sorted(_events(reports, known), key=lambda event: event[0].seq):
        for column in columns:
            if column in dropped:
                now[column][at.shard] = at
            elif has is None:
                continue
            elif not _is_in(column, has):
                now[column].setdefault(at.shard, at)
            elif since := now[column].pop(at.shard, None):
                again.append((column, since))
    left = {
        column: {shard: since for shard, since in now[column].items() if shard in live}
        for column in columns
    }
    return {column: shards for column, shards in left.items() if shards}, again


def to_drop(lacking: Lacking, shape: TableShape, live: Collection[str]) -> list[str]:
    """Return the columns of a sink's table that no live shard has."""
    every = set(live)
    return [
        column
        for column in _droppable(shape)
        if every and column in lacking and every <= lacking[column].keys()
    ]


def without(known: KnownTable, columns: Collection[str]) -> KnownTable:
    """Return a table without some columns, and without the names that they had before."""
    shape = known.shape
    key = key_names(shape)
    left = tuple(column for column in shape.columns if column.name not in columns)
    names = [column.name for column in left]
    return KnownTable(
        replace(shape, columns=left, primary_key=tuple(map(names.index, key))),
        {old: new for old, new in known.renames.items() if new not in columns},
    )


def as_json(lacking: Lacking) -> dict[str, dict[str, tuple[int, int]]]:
    """Return what `of_json` reads."""
    return {
        column: {shard: (at.seq, at.timestamp_us) for shard, at in shards.items()}
        for column, shards in lacking.items()
    }


def of_json(found: Mapping[str, Mapping[str, tuple[int, int]]]) -> Lacking:
    """Return the columns that shards lack, as stored."""
    return {
        column: {shard: Version(shard, *at, None, None) for shard, at in shards.items()}
        for column, shards in found.items()
    }


def _events(
    reports: Iterable[ColumnReport], known: KnownTable
) -> Iterator[tuple[Version, set[str] | None, set[str]]]:
    """Yield (place, columns that the shard has there, columns that it drops there)."""
    for each in reports:
        for shape, *places_of_rows in each.seen:
            has = {column.name.lower() for column in renamed(shape, known.renames).columns}
            yield from ((at, has, set()) for at in dict.fromkeys(places_of_rows))
        for column, at in _named_as(known, each.dropped):
            yield at, None, {column}


def _named_as(known: KnownTable, dropped: Iterable[Dropped]) -> Iterator[Dropped]:
    """Yield dropped columns by the names that they have in the sink's table."""
    now = {column.name.lower(): column.name for column in known.shape.columns}
    later = {old.lower(): new for old, new in known.renames.items()}
    key = set(key_names(known.shape))
    for column, at in dropped:
        name = now.get(column.lower()) or now.get(later.get(column.lower(), "").lower())
        if name is not None and name not in key:
            yield name, at


def _droppable(shape: TableShape) -> list[str]:
    key = set(key_names(shape))
    return [column.name for column in shape.columns if column.name not in key]


def _is_in(column: str, names: Collection[str]) -> bool:
    """Tell whether a version has a column, or the one of which the sink has made it."""
    name = column.lower()
    return name in names or _DERIVED.sub("", name) in names
