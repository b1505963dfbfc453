"""A column's binlog type and metadata, turned into its plan and its shape."""

from typing import Final

from mypy_extensions import i64

from producers.decoder.tables.plan import ColumnPlan
from producers.decoder.values import operations as ops
from producers.decoder.values.charset import BINARY, OTHER, char_bytes_max, charset_kind
from producers.decoder.values.hidden_values import HIDDEN_OPS
from producers.decoder.values.temporal import fraction_bytes
from producers.typed_columns import HIDDEN_BYTES
from topics.records.table_shape import (
    DECIMAL_DIGITS_MAX,
    DECIMAL_FIXED_DIGITS,
    DECIMAL_SCALE_MAX,
    Column,
    ValueKind,
)

TINY: Final = 1
SHORT: Final = 2
LONG: Final = 3
FLOAT: Final = 4
DOUBLE: Final = 5
LONGLONG: Final = 8
INT24: Final = 9
DATE: Final = 10
YEAR: Final = 13
VARCHAR: Final = 15
BIT: Final = 16
TIMESTAMP2: Final = 17
DATETIME2: Final = 18
TIME2: Final = 19
JSON: Final = 245
NEWDECIMAL: Final = 246
ENUM: Final = 247
SET: Final = 248
BLOB: Final = 252
VAR_STRING: Final = 253
STRING: Final = 254
GEOMETRY: Final = 255
BLOB_COMPRESSED: Final = 140  # MariaDB
VARCHAR_COMPRESSED: Final = 141  # MariaDB
VECTOR: Final = 242  # MySQL; MariaDB logs its own as VARBINARY

# Whether a YEAR has a bit in the signedness map of a table map, which depends on the version of the
# server that wrote the file. MySQL up to 8.0.20 gives it none, from 8.0.23 on it gives it one;
# between them it is not known.
YEAR_HAS_NO_SIGN: Final = 0
YEAR_HAS_SIGN: Final = 1
YEAR_SIGN_UNKNOWN: Final = 2

# Bytes of metadata in the table map, by type. A type that is not here cannot even be skipped.
METADATA_BYTES: Final[dict[int, int]] = {
    TINY: 0,
    SHORT: 0,
    LONG: 0,
    FLOAT: 1,
    DOUBLE: 1,
    LONGLONG: 0,
    INT24: 0,
    DATE: 0,
    YEAR: 0,
    VARCHAR: 2,
    BIT: 2,
    TIMESTAMP2: 1,
    DATETIME2: 1,
    TIME2: 1,
    JSON: 1,
    NEWDECIMAL: 2,
    BLOB: 1,
    VAR_STRING: 2,
    STRING: 2,
    GEOMETRY: 1,
    6: 0,  # NULL
    7: 0,  # TIMESTAMP before 5.6
    11: 0,  # TIME before 5.6
    12: 0,  # DATETIME before 5.6
    BLOB_COMPRESSED: 1,
    VARCHAR_COMPRESSED: 2,
    VECTOR: 1,
}

_REBUILD: Final = (
    "in the format before MySQL 5.6, which is not decoded: rebuild the table (ALTER TABLE ... "
    "FORCE), and copy it again from after that"
)
_REFUSED: Final[dict[int, str]] = {
    7: f"a TIMESTAMP {_REBUILD}",
    11: f"a TIME {_REBUILD}",
    12: f"a DATETIME {_REBUILD}",
}
# What gets a shard past a type that no release of a server had when this was written.
_FIX: Final = (
    "upgrade to a version that decodes it, or leave the table out by a filter rule (exclude)"
)

INTEGERS: Final[dict[int, tuple[str, int, int]]] = {
    TINY: ("tinyint", ops.I8, 1),
    SHORT: ("smallint", ops.I16, 2),
    INT24: ("mediumint", ops.I24, 3),
    LONG: ("int", ops.I32, 4),
    LONGLONG: ("bigint", ops.I64, 8),
}
BLOB_NAMES: Final[dict[int, tuple[str, str]]] = {
    1: ("tinyblob", "tinytext"),
    2: ("blob", "text"),
    3: ("mediumblob", "mediumtext"),
    4: ("longblob", "longtext"),
}
# In the order of the servers' numbers; MySQL has two names for the last one.
GEOMETRY_NAMES: Final = (
    *("geometry", "point", "linestring", "polygon"),
    *("multipoint", "multilinestring", "multipolygon", "geometrycollection"),
)
_DECIMAL_BYTES: Final = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)  # for 0 to 9 digits
# Name, operation, bytes without the fraction, kind.
TEMPORALS: Final[dict[int, tuple[str, int, int, ValueKind]]] = {
    TIME2: ("time", ops.TIME, 3, ValueKind.TIME),
    DATETIME2: ("datetime", ops.DATETIME, 5, ValueKind.DATETIME),
    TIMESTAMP2: ("timestamp", ops.TIMESTAMP, 4, ValueKind.TIMESTAMP),
}


class ColumnType:
    """What the table map says about one column. `meta_0`, `meta_1`: its metadata bytes."""

    def __init__(self, index: int, type_code: int) -> None:
        self.index: int = index
        self.type_code: int = type_code
        self.meta_0: int = 0
        self.meta_1: int = 0
        self.name: str = ""
        self.unsigned: bool = False
        self.charset: str = ""
        self.collation: int = 0
        self.nullable: bool = True
        self.labels: list[str] = []
        self.is_kept_as_bytes: bool = False  # text that is logged as its raw bytes
        self.declared: str = ""  # the type of HIDDEN_BYTES that the settings declare
        self.geometry: int = 0  # index in GEOMETRY_NAMES
        self.dimension: int = 0  # of a VECTOR

    def is_numeric(self) -> bool:
        """Tell whether it has a bit in the signedness map. A YEAR has one on some servers."""
        return self.type_code in INTEGERS or self.type_code in (FLOAT, DOUBLE, NEWDECIMAL)

    def is_text(self, is_mariadb: bool) -> bool:
        """Tell whether it has an entry in the list of character sets."""
        if self.type_code in (VARCHAR, BLOB, VAR_STRING, STRING, VECTOR):
            return True
        return is_mariadb and self.type_code in (GEOMETRY, BLOB_COMPRESSED, VARCHAR_COMPRESSED)


class UnknownColumn(ValueError):  # noqa: N818 - the caller names the table and makes the error
    """Raised on a column that the decoder does not handle; the message says why."""


def plan_column(source: ColumnType) -> tuple[ColumnPlan, Column]:
    """Return how the column is decoded and how readers see it. Raises UnknownColumn."""
    code = source.type_code
    if source.declared:
        return _hidden(source)
    if code in INTEGERS:
        return _integer(source)
    if code in TEMPORALS:
        return _temporal(source)
    if code == NEWDECIMAL:
        return _decimal(source)
    if code in (VARCHAR, VAR_STRING, STRING, BLOB, BLOB_COMPRESSED, VARCHAR_COMPRESSED):
        return _text_or_bytes(source)
    if code in (GEOMETRY, VECTOR):
        return _opaque(source)
    if code in (ENUM, SET):
        return _labelled(source)
    if code == BIT:
        bits = source.meta_1 * 8 + source.meta_0
        op, kind = (ops.BIT64, ValueKind.BIT64) if bits == 64 else (ops.BIT, ValueKind.BIT)
        return _made(source, op, (bits + 7) // 8, kind, f"bit({bits})")
    simple = {
        FLOAT: (ops.FLOAT, 4, ValueKind.FLOAT, "float"),
        DOUBLE: (ops.DOUBLE, 8, ValueKind.DOUBLE, "double"),
        DATE: (ops.DATE, 3, ValueKind.DATE, "date"),
        YEAR: (ops.YEAR, 1, ValueKind.YEAR, "year"),
        JSON: (ops.JSON, source.meta_0, ValueKind.JSON, "json"),
    }
    if code in simple:
        op, size, kind, sql_type = simple[code]
        return _made(source, op, size, kind, sql_type + _sign(source, code in (FLOAT, DOUBLE)))
    raise UnknownColumn(refusal(code))


def refusal(type_code: int) -> str:
    """Return why a type is refused, and how to go on."""
    return _REFUSED.get(type_code, f"its type, number {type_code}, is not decoded: {_FIX}")


def _sign(source: ColumnType, signed_type: bool) -> str:
    return " unsigned" if source.unsigned and signed_type else ""


def _made(
    source: ColumnType, op: i64, size: i64, kind: ValueKind, sql_type: str
) -> tuple[ColumnPlan, Column]:
    return ColumnPlan(source.index, source.name, op, size), Column(source.name, kind, sql_type)


def _integer(source: ColumnType) -> tuple[ColumnPlan, Column]:
    name, op, size = INTEGERS[source.type_code]
    kind = ValueKind.LONG if source.type_code == LONGLONG else ValueKind.INT
    if source.unsigned:
        op += 1
        if source.type_code == LONG:
            kind = ValueKind.LONG
        elif source.type_code == LONGLONG:
            kind = ValueKind.UNSIGNED_LONG
    return _made(source, op, size, kind, name + _sign(source, True))


def _temporal(source: ColumnType) -> tuple[ColumnPlan, Column]:
    name, op, size, kind = TEMPORALS[source.type_code]
    digits = source.meta_0
    if digits > 6:
        raise UnknownColumn(
            f"{name}({digits}) has more than the 6 digits that servers have: {_FIX}"
        )
    size += fraction_bytes(digits)
    plan, column = _made(source, op, size, kind, f"{name}({digits})" if digits else name)
    plan.second_digits = digits
    return plan, column


def _decimal(source: ColumnType) -> tuple[ColumnPlan, Column]:
    precision, scale = source.meta_0, source.meta_1
    if not (1 <= precision <= DECIMAL_DIGITS_MAX and scale <= min(precision, DECIMAL_SCALE_MAX)):
        raise UnknownColumn(
            f"decimal({precision},{scale}) is beyond decimal({DECIMAL_DIGITS_MAX},"
            f"{DECIMAL_SCALE_MAX}), the widest that servers have: {_FIX}"
        )
    whole = precision - scale
    size = sum(digits // 9 * 4 + _DECIMAL_BYTES[digits % 9] for digits in (whole, scale))
    op = ops.DECIMAL if precision <= DECIMAL_FIXED_DIGITS else ops.BIG_DECIMAL
    plan = ColumnPlan(source.index, source.name, op, size)
    plan.whole_digits = whole
    plan.fraction_digits = scale
    sql_type = f"decimal({precision},{scale})" + _sign(source, True)
    column = Column(source.name, ValueKind.DECIMAL, sql_type, precision=precision, scale=scale)
    return plan, column


def _text_or_bytes(source: ColumnType) -> tuple[ColumnPlan, Column]:
    kind = charset_kind(source.charset)
    if kind == OTHER:
        raise UnknownColumn(
            f"text in character set {source.charset}, which is not decoded: convert the column to "
            f"utf8mb4 and copy the table again from after that, or leave the table out by a filter "
            f"rule (exclude)"
        )
    is_bytes = kind == BINARY
    is_compressed = source.type_code in (BLOB_COMPRESSED, VARCHAR_COMPRESSED)
    if source.type_code in (BLOB, BLOB_COMPRESSED):
        op, size = ops.BLOB, source.meta_0
        if size not in BLOB_NAMES:
            raise UnknownColumn(f"a blob with a length of {size} bytes is not decoded: {_FIX}")
        sql_type = BLOB_NAMES[size][0 if is_bytes else 1]
        length = 0
    else:
        length = _declared_bytes(source)
        op, size = ops.VARCHAR, 1 if length < 256 else 2
        is_char = source.type_code == STRING
        if is_char and is_bytes:
            op = ops.FIXED_BINARY
        name = {(False, False): "varchar", (False, True): "varbinary", (True, False): "char"}.get(
            (is_char, is_bytes), "binary"
        )
        # MariaDB counts the byte that names the compression.
        declared = (length - is_compressed) // char_bytes_max(source.charset)
        sql_type = f"{name}({declared})"
    plan = ColumnPlan(source.index, source.name, ops.COMPRESSED if is_compressed else op, size)
    plan.length = length
    plan.charset = source.charset
    plan.charset_kind = BINARY if source.is_kept_as_bytes else kind
    is_bytes = plan.charset_kind == BINARY
    value_kind = ValueKind.BYTES if is_bytes else ValueKind.STRING
    return plan, Column(source.name, value_kind, sql_type)


def _hidden(source: ColumnType) -> tuple[ColumnPlan, Column]:
    """Plan a column that is declared as UUID, INET4 or INET6, and BINARY in the table map."""
    declared = source.declared
    length = HIDDEN_BYTES[declared]
    is_binary = source.type_code == STRING and charset_kind(source.charset) == BINARY
    if not is_binary or _declared_bytes(source) != length:
        raise UnknownColumn(
            f"typed_columns declares it as {declared}, which a binlog shows as binary({length}), "
            f"but it has another type here: correct that setting"
        )
    plan, column = _made(source, HIDDEN_OPS[declared], 1, ValueKind.STRING, declared)
    plan.length = length
    plan.charset = source.charset
    return plan, column


def _opaque(source: ColumnType) -> tuple[ColumnPlan, Column]:
    """Plan a GEOMETRY or VECTOR: the server's own bytes, after their length."""
    size = source.meta_0
    if size not in BLOB_NAMES:
        name = "vector" if source.type_code == VECTOR else "geometry"
        raise UnknownColumn(f"a {name} with a length of {size} bytes is not decoded: {_FIX}")
    if source.type_code == VECTOR:
        sql_type = f"vector({source.dimension})"
    else:
        sql_type = GEOMETRY_NAMES[source.geometry]
    plan, column = _made(source, ops.BLOB, size, ValueKind.BYTES, sql_type)
    plan.charset_kind = BINARY
    return plan, column


def _declared_bytes(source: ColumnType) -> int:
    """Return the most bytes that the declared length can take."""
    if source.type_code != STRING:
        return source.meta_0 | (source.meta_1 << 8)
    # CHAR keeps bits 8 and 9 of its length, inverted, in its type byte.
    return source.meta_1 | (((source.meta_0 & 0x30) ^ 0x30) << 4)


def _labelled(source: ColumnType) -> tuple[ColumnPlan, Column]:
    is_enum = source.type_code == ENUM
    name = "enum" if is_enum else "set"
    size = source.meta_1
    if size not in ((1, 2) if is_enum else (1, 2, 3, 4, 8)) or not source.labels:
        raise UnknownColumn(
            f"{name} with {len(source.labels)} labels in {size} bytes is not decoded: {_FIX}"
        )
    texts = ",".join("'" + label.replace("'", "''") + "'" for label in source.labels)
    plan = ColumnPlan(source.index, source.name, ops.ENUM if is_enum else ops.SET, size)
    kind = ValueKind.ENUM if is_enum else ValueKind.SET
    column = Column(source.name, kind, f"{name}({texts})", labels=tuple(source.labels))
    return plan, column
