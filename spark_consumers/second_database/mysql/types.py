"""The types of a target's columns in MySQL and MariaDB. Pure.

Texts are compared byte by byte, as the keys of the stream are; the collation of the source is not
in its binlog.
"""

import re
from collections.abc import Collection, Mapping
from typing import Final

from topics.records.table_shape import Column, TableShape, ValueKind

TYPES: Final[Mapping[ValueKind, str]] = {
    ValueKind.INT: "int",
    ValueKind.YEAR: "year",
    ValueKind.LONG: "bigint",
    ValueKind.UNSIGNED_LONG: "bigint unsigned",
    ValueKind.BIT: "bit(63)",
    ValueKind.BIT64: "bit(64)",
    ValueKind.FLOAT: "float",
    ValueKind.DOUBLE: "double",
    ValueKind.STRING: "longtext",
    # Shards may declare the labels in different orders.
    ValueKind.ENUM: "varchar(255)",
    ValueKind.SET: "longtext",
    ValueKind.BYTES: "longblob",
    ValueKind.JSON: "json",
    ValueKind.DATE: "date",
    ValueKind.TIME: "time(6)",
    ValueKind.DATETIME: "datetime(6)",
    ValueKind.TIMESTAMP: "timestamp(6)",
}
META_TYPES: Final[Mapping[str, str]] = {
    "key": "mediumtext",
    "long": "bigint",
    "name": "varchar(255)",
    "bytes": "blob",
    "text": "mediumtext",
    "flag": "tinyint(1)",
    "small": "smallint",
}
# InnoDB's keys have at most 3072 bytes; a character of utf8mb4 takes up to four.
KEY_BYTES_MAX = 3072
KEY_CHARS_MAX = KEY_BYTES_MAX // 4
# Longer ones may not fit into a row of 65,535 bytes together with others.
VARCHAR_MAX = 1000

# MySQL's limit of a row without its long texts is 65,535 bytes; the rest is for columns to come.
ROW_BYTES_MAX = 60_000
# The largest column of another type is a DECIMAL.
_OTHER_BYTES = 32
# The smallest that a number or a date takes: the server refuses what is nearly too large itself.
_KEY_NUMBER_BYTES = 1
_VARIABLE = re.compile(r"var(char|binary)\((\d+)\)")

_SIZED = re.compile(r"(?:var)?(?:char|binary)\((\d+)\)")
_FRACTION = re.compile(r"(?:time|datetime|timestamp)(?:\(\d\))?")
_BIT = re.compile(r"bit\(\d+\)")
_SPATIAL: Final = frozenset(
    {
        *("geometry", "point", "linestring", "polygon", "geometrycollection", "geomcollection"),
        *("multipoint", "multilinestring", "multipolygon"),
    }
)
# UUID, INET4 and INET6 as texts.
_NAMED_LENGTHS: Final = {"uuid": 36, "inet4": 15, "inet6": 45}


def type_of(column: Column, *, is_key: bool = False) -> str:
    """Return the type that holds every value of a column exactly."""
    match column.kind:
        case ValueKind.DECIMAL:
            return f"decimal({column.precision},{column.scale})"
        case ValueKind.STRING:
            return _text(column, KEY_CHARS_MAX if is_key else None)
        case ValueKind.BYTES:
            return _bytes(column, is_key=is_key)
        case ValueKind.SET if is_key:
            return f"varchar({KEY_CHARS_MAX})"
        case ValueKind.BIT if _BIT.fullmatch(column.sql_type):
            return column.sql_type
        case ValueKind.TIME | ValueKind.DATETIME if _FRACTION.fullmatch(column.sql_type):
            return column.sql_type
        case ValueKind.TIMESTAMP:
            return _timestamp(column, is_key=is_key)
    return TYPES[column.kind]


def key_bytes(shape: TableShape) -> int:
    """Return how many bytes the longest primary key has."""
    kinds = (type_of(shape.columns[i], is_key=True) for i in shape.primary_key)
    return sum(_bytes_of(kind, _KEY_NUMBER_BYTES) for kind in kinds)


def fitting(columns: Mapping[str, str], key: Collection[str]) -> dict[str, str]:
    """Return types with which a row fits: the longest texts are stored apart."""
    found = dict(columns)
    sizes = {name: _bytes_of(kind) for name, kind in columns.items()}
    for name in sorted(sizes, key=sizes.__getitem__, reverse=True):
        long = stored_apart(found[name])
        if sum(sizes.values()) <= ROW_BYTES_MAX:
            break
        if long is not None and name not in key:
            found[name], sizes[name] = long, _OTHER_BYTES
    return found


def stored_apart(kind: str) -> str | None:
    """Return the long type for a VARCHAR or VARBINARY, None for other types."""
    sized = _VARIABLE.fullmatch(kind)
    if sized is None:
        return None
    return TYPES[ValueKind.STRING if sized[1] == "char" else ValueKind.BYTES]


def _bytes_of(kind: str, other: int = _OTHER_BYTES) -> int:
    """`other`: the size of other types than VARCHAR and VARBINARY."""
    sized = _VARIABLE.fullmatch(kind)
    if sized is None:
        return other
    return int(sized[2]) * (4 if sized[1] == "char" else 1)


def _text(column: Column, length_max: int | None) -> str:
    sized = _SIZED.fullmatch(column.sql_type)
    length = int(sized[1]) if sized else _NAMED_LENGTHS.get(column.sql_type)
    if length is None or length > (length_max or VARCHAR_MAX):
        return TYPES[column.kind] if length_max is None else f"varchar({length_max})"
    return f"varchar({max(length, 1)})"


def _bytes(column: Column, *, is_key: bool) -> str:
    if column.sql_type in _SPATIAL and not is_key:
        return "geometry"
    sized = _SIZED.fullmatch(column.sql_type)
    length = int(sized[1]) if sized else KEY_BYTES_MAX
    if is_key:
        return f"varbinary({min(max(length, 1), KEY_BYTES_MAX)})"
    return TYPES[column.kind] if sized is None or length > VARCHAR_MAX else f"varbinary({length})"


def _timestamp(column: Column, *, is_key: bool) -> str:
    declared = column.sql_type if _FRACTION.fullmatch(column.sql_type) else TYPES[column.kind]
    # Without either, a server may let the first TIMESTAMP of a table follow the clock.
    return f"{declared} DEFAULT '2000-01-01 00:00:00'" if is_key else f"{declared} NULL"
