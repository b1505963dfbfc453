"""The widest common type of two versions of a column. Pure."""

import re
from dataclasses import replace

import pyarrow as pa

from spark_consumers.decoding.output_columns import arrow_type
from topics.records.table_shape import Column, ValueKind

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
# How much the types of one kind hold, as far as their names tell.
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
