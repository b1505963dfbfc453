"""A rule applied to one table version: which columns are written, and how rows are chosen."""

from collections.abc import Sequence
from dataclasses import dataclass

from producers.filters.errors import RuleError
from producers.filters.masks import MaskFunction, MaskKind, mask_function, masked_column
from producers.filters.ranges import Range, split_ranges
from producers.filters.rules import Rule
from producers.filters.source_column import SourceColumn
from producers.filters.where import Where, compile_where
from topics.keyspace.vindexes import Vindex
from topics.records.table_shape import Column


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """A column that is written: its index in the table, and what replaces its values."""

    index: int
    column: Column
    mask: MaskFunction | None


@dataclass(frozen=True, slots=True)
class BoundRule:
    """A rule compiled for a table version. A row passes if it passes all `ranges` and `where`."""

    outputs: tuple[OutputColumn, ...]
    ranges: tuple[Range, ...]
    where: Where | None


def bind_rule(
    rule: Rule,
    columns: Sequence[SourceColumn],
    primary_key: Sequence[int],
    sharding: tuple[str, Vindex] | None,
    hmac_key: bytes,
) -> BoundRule:
    """Compile a rule for a table version. RuleError names the column that does not fit.

    `primary_key`: column indexes; record keys are built from them, so they must be written.
    """
    indexes = {column.name.lower(): i for i, column in enumerate(columns)}
    for name in (*rule.columns, *rule.masks):
        if name.lower() not in indexes:
            names = ", ".join(column.name for column in columns)
            raise RuleError(f"there is no column {name}; there are {names}")
    masks = {indexes[name.lower()]: mask for name, mask in rule.masks.items()}
    listed = {indexes[name.lower()] for name in rule.columns} or set(indexes.values())
    outputs = []
    for i, column in enumerate(columns):
        mask = masks.get(i)
        if sharding is not None and mask is not None and column.name.lower() == sharding[0].lower():
            raise RuleError(
                f"column {column.name} is masked, but it is the sharding column: keyspace ids are "
                f"computed from it and reveal its value"
            )
        if i not in listed or (mask is not None and mask.kind is MaskKind.DROP):
            if i in primary_key:
                raise RuleError(f"column {column.name} is left out, but it is in the primary key")
        elif mask is None:
            outputs.append(OutputColumn(i, column.column, None))
        elif i in primary_key and mask.kind is not MaskKind.HMAC:
            raise RuleError(
                f"column {column.name} is in the primary key: of all masks, only hmac keeps keys "
                f"apart"
            )
        else:
            function = mask_function(column, mask, hmac_key)
            outputs.append(OutputColumn(i, masked_column(column, mask), function))
    condition = rule.condition
    if condition is None:
        return BoundRule(tuple(outputs), (), None)
    where: Where | None = compile_where(condition, columns, sharding)  # every term must compile
    ranges, rest = split_ranges(condition, columns)
    if ranges:
        where = None if rest is None else compile_where(rest, columns, sharding)
    return BoundRule(tuple(outputs), tuple(ranges), where)
