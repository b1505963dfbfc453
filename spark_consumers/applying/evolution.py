"""How the columns of a sink's table follow the versions of the source's table. Pure.

A sink's table has the union of the columns of all versions that were met on any shard, because
shards are altered one after the other. Columns belong together by name; their order does not
matter. A column becomes as wide as its widest version and never narrower again. A column that is
dropped stays, and is NULL in the rows of versions that lack it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from spark_consumers.applying.changes import KnownTable
from spark_consumers.applying.on_type_change import OnTypeChange
from spark_consumers.applying.widening import has_same_text, widest
from spark_consumers.errors import ShapeConflict
from topics.records.table_shape import Column, TableShape, ValueKind

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
    known: TableShape, version: TableShape, on_type_change: OnTypeChange = OnTypeChange.HALT
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
    on_type_change: OnTypeChange = OnTypeChange.HALT,
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
    on_type_change: OnTypeChange = OnTypeChange.HALT,
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
