"""The table map event: a table version with its optional metadata, parsed into a plan.

Without `binlog_row_metadata=FULL` it has no names, keys or labels: rows are refused, unless the
catalog proves them (named_columns.py).
"""

from typing import Final

from producers.decoder.tables.column_types import (
    ENUM,
    GEOMETRY,
    METADATA_BYTES,
    SET,
    STRING,
    VECTOR,
    YEAR,
    YEAR_HAS_SIGN,
    YEAR_SIGN_UNKNOWN,
    ColumnType,
    UnknownColumn,
    plan_column,
    refusal,
)
from producers.decoder.tables.named_columns import NamedColumns, difference, take_names
from producers.decoder.tables.plan import TablePlan, set_key
from producers.decoder.tables.server_columns import Catalog, named_as_hidden
from producers.decoder.values.charset import OTHER, charset_kind, charset_of, decode_text
from producers.decoder.values.wire import encode_string, packed_size, raw_form, read_packed, take
from producers.typed_columns import HIDDEN_BYTES

# Optional metadata fields.
_SIGNEDNESS: Final = 1
_DEFAULT_CHARSET: Final = 2
_COLUMN_CHARSET: Final = 3
_COLUMN_NAME: Final = 4
_SET_LABELS: Final = 5
_ENUM_LABELS: Final = 6
_GEOMETRY_TYPE: Final = 7
_SIMPLE_KEY: Final = 8
_PREFIX_KEY: Final = 9
_LABEL_DEFAULT_CHARSET: Final = 10
_LABEL_COLUMN_CHARSET: Final = 11
_VISIBILITY: Final = 12
_VECTOR_DIMENSION: Final = 13

_NO_METADATA: Final = (
    "its table map has no column names: set binlog_row_metadata=FULL on the source. "
    "Rows logged before that cannot be decoded: start the shard after them. Where a service lets "
    'nobody set it: metadata = "proved" under [producer], for MySQL'
)


class _Fields:
    """The raw optional metadata, by field."""

    def __init__(self) -> None:
        self.raw: dict[int, bytes] = {}

    def packed(self, field: int) -> list[int]:
        """Return a field as a list of length-encoded integers."""
        raw = self.raw.get(field, b"")
        numbers: list[int] = []
        pos = 0
        while pos < len(raw):
            numbers.append(read_packed(raw, pos))
            pos += packed_size(raw, pos)
        return numbers

    def strings(self, field: int) -> list[bytes]:
        """Return a field as a list of length-encoded strings."""
        raw = self.raw.get(field, b"")
        found: list[bytes] = []
        pos = 0
        while pos < len(raw):
            pos = _take_string(raw, pos, found)
        return found

    def label_lists(self, field: int) -> list[list[bytes]]:
        """Return a field as one list of labels per column."""
        raw = self.raw.get(field, b"")
        found: list[list[bytes]] = []
        pos = 0
        while pos < len(raw):
            labels: list[bytes] = []
            count = read_packed(raw, pos)
            pos += packed_size(raw, pos)
            for _ in range(count):
                pos = _take_string(raw, pos, labels)
            found.append(labels)
        return found


def _take_string(raw: bytes, pos: int, found: list[bytes]) -> int:
    size = read_packed(raw, pos)
    begin = pos + packed_size(raw, pos)
    found.append(take(raw, begin, size))
    return begin + size


def parse_table_map(
    body: bytes,
    is_mariadb: bool,
    year_sign: int,
    text_as_bytes: frozenset[str],
    catalog: Catalog | None,
) -> TablePlan:
    """Parse a table map's body, which is everything after its table id and flags.

    `year_sign`: whether YEAR columns have a sign in this file (column_types.py).
    `text_as_bytes`: columns, as database.table.column, whose text is logged as its raw bytes.
    `catalog`: knows what columns that look like BINARY are declared as.

    A column or a setting that the decoder does not handle becomes the plan's `problem`.
    Raises IndexError and ValueError where the bytes are not a table map.
    """
    names, pos = _read_names(body)
    database, table = names
    plan = TablePlan(body, database, table)
    plan.key_prefix = encode_string(database) + encode_string(table)
    columns, fields, plan.problem = _read_columns(body, pos)
    if plan.problem:
        return plan
    if not fields.raw.get(_COLUMN_NAME):
        plan.is_nameless = not is_mariadb and len(columns) > 0
        plan.problem = _NO_METADATA
        return plan
    plan.problem = _describe(columns, fields, is_mariadb, year_sign)
    for column in columns:
        place = f"{database}.{table}.{column.name}"
        column.is_kept_as_bytes = place in text_as_bytes
        if catalog is not None and is_mariadb:
            declared = catalog.type_of(place)
            column.declared = declared if declared in HIDDEN_BYTES else ""
    plan.problem = plan.problem or plan_columns(plan, columns, _key_of(fields))
    plan.maybe_hidden = named_as_hidden(plan, is_mariadb, _VISIBILITY in fields.raw)
    return plan


def name_columns(
    plan: TablePlan, named: NamedColumns, year_sign: int, text_as_bytes: frozenset[str]
) -> str:
    """Complete a plan of MySQL whose table map has no names; return why not, "" if it is complete.

    All that the table map does say must be as in `named`.
    """
    _, pos = _read_names(plan.body)
    columns, fields, _ = _read_columns(plan.body, pos)
    problem = _describe_types(columns, fields, False, year_sign)
    problem = problem or difference(columns, named.columns)
    if problem:
        return problem
    for column, there in zip(columns, named.columns, strict=True):
        take_names(column, there)
        column.is_kept_as_bytes = f"{plan.database}.{plan.table}.{column.name}" in text_as_bytes
    plan.problem = plan_columns(plan, columns, named.key)
    return ""


def _read_names(body: bytes) -> tuple[tuple[str, str], int]:
    """Return database and table, and where the columns begin."""
    database_size = body[0]
    database = take(body, 1, database_size).decode("utf-8")
    pos = 1 + database_size + 1
    table_size = body[pos]
    table = take(body, pos + 1, table_size).decode("utf-8")
    return (database, table), pos + 1 + table_size + 1


def _read_columns(body: bytes, pos: int) -> tuple[list[ColumnType], _Fields, str]:
    """Return the columns' types, the optional metadata, and the problem, "" for none."""
    count = read_packed(body, pos)
    pos += packed_size(body, pos)
    type_codes = take(body, pos, count)
    pos += count
    columns = [ColumnType(i, type_codes[i]) for i in range(count)]
    unknown = [column for column in columns if column.type_code not in METADATA_BYTES]
    if unknown:
        problem = f"column {unknown[0].index + 1}: {refusal(unknown[0].type_code)}"
        return columns, _Fields(), problem
    metadata_size = read_packed(body, pos)
    pos += packed_size(body, pos)
    _read_types(columns, take(body, pos, metadata_size))
    pos += metadata_size
    for column in columns:
        column.nullable = bool(body[pos + (column.index >> 3)] >> (column.index & 7) & 1)
    pos += (count + 7) // 8
    fields = _read_fields(body, pos)
    for field in fields.raw:
        if not _SIGNEDNESS <= field <= _VECTOR_DIMENSION:
            problem = (
                f"its table map has metadata of the unknown kind {field}: upgrade to a version "
                f"that decodes it, or leave the table out by a filter rule (exclude)"
            )
            return columns, fields, problem
    return columns, fields, ""


def _key_of(fields: _Fields) -> list[int]:
    # A prefix key lists column and prefix length; the record's key has the whole value.
    return fields.packed(_SIMPLE_KEY) or fields.packed(_PREFIX_KEY)[::2]


def _read_types(columns: list[ColumnType], metadata: bytes) -> None:
    """Set the metadata bytes, and find ENUM and SET, which come as CHAR."""
    pos = 0
    for column in columns:
        size = METADATA_BYTES[column.type_code]
        if size:
            column.meta_0 = metadata[pos]
        if size > 1:
            column.meta_1 = metadata[pos + 1]
        pos += size
        if column.type_code == STRING and column.meta_0 in (ENUM, SET):
            column.type_code = column.meta_0
    if pos != len(metadata):
        raise ValueError(f"the columns' metadata has {len(metadata)} bytes, not {pos}")


def _read_fields(body: bytes, pos: int) -> _Fields:
    fields = _Fields()
    while pos < len(body):
        field = body[pos]
        size = read_packed(body, pos + 1)
        begin = pos + 1 + packed_size(body, pos + 1)
        fields.raw[field] = take(body, begin, size)
        pos = begin + size
    return fields


def _describe(columns: list[ColumnType], fields: _Fields, is_mariadb: bool, year_sign: int) -> str:
    """Set names, signs, character sets and labels; return the problem, "" for none."""
    names = fields.strings(_COLUMN_NAME)
    if len(names) != len(columns):
        raise ValueError(f"{len(names)} column names for {len(columns)} columns")
    for column, name in zip(columns, names, strict=True):
        column.name = name.decode("utf-8")
    problem = _describe_types(columns, fields, is_mariadb, year_sign)
    return problem or _set_labels(columns, fields)


def _describe_types(
    columns: list[ColumnType], fields: _Fields, is_mariadb: bool, year_sign: int
) -> str:
    """Set what MINIMAL metadata has too: signs and character sets; return the problem."""
    problem = _set_signs(columns, fields.raw.get(_SIGNEDNESS, b""), year_sign)
    if problem:
        return problem
    texts = [column for column in columns if column.is_text(is_mariadb)]
    shapes = fields.packed(_GEOMETRY_TYPE)
    for i, column in enumerate([c for c in columns if c.type_code == GEOMETRY]):
        column.geometry = shapes[i]
    dimensions = fields.packed(_VECTOR_DIMENSION)
    for i, column in enumerate([c for c in columns if c.type_code == VECTOR]):
        column.dimension = dimensions[i]
    _set_charsets(texts, fields, _DEFAULT_CHARSET, _COLUMN_CHARSET)
    return ""


def _set_signs(columns: list[ColumnType], signs: bytes, year_sign: int) -> str:
    """Set which numbers are unsigned; return the problem, "" for none."""
    years = [column for column in columns if column.type_code == YEAR]
    doubtful = len(years) if year_sign == YEAR_SIGN_UNKNOWN else 0
    if doubtful and any(c.is_numeric() and c.index > years[0].index for c in columns):
        return (
            f"column {years[0].name!r} is a YEAR before other numbers. Up to MySQL 8.0.20 a YEAR "
            "has no bit among the table map's signs, from 8.0.23 on it has one; for the version "
            "that wrote this binlog it is not known, so the signs after it are not either: move "
            "the column after all numbers (ALTER TABLE ... MODIFY ... AFTER), or upgrade"
        )
    signed = [
        c for c in columns if c.is_numeric() or (c.type_code == YEAR and year_sign == YEAR_HAS_SIGN)
    ]
    if not (len(signed) + 7) // 8 <= len(signs) <= (len(signed) + doubtful + 7) // 8:
        raise ValueError(f"{len(signs)} bytes of signs for {len(signed)} numeric columns")
    for i, column in enumerate(signed):
        column.unsigned = bool(signs[i >> 3] & (0x80 >> (i & 7)))
    return ""


def _set_charsets(columns: list[ColumnType], fields: _Fields, default: int, each: int) -> None:
    """Set the character sets: one per column, or a default and the exceptions."""
    if not columns:
        return
    collations = fields.packed(each)
    if not collations:
        numbers = fields.packed(default)
        if not numbers or len(numbers) % 2 == 0:
            raise ValueError("the table map does not say the character sets of its columns")
        collations = [numbers[0]] * len(columns)
        for i in range(1, len(numbers), 2):
            collations[numbers[i]] = numbers[i + 1]
    if len(collations) != len(columns):
        raise ValueError(f"{len(collations)} character sets for {len(columns)} columns")
    for column, collation in zip(columns, collations, strict=True):
        column.charset = charset_of(collation)
        column.collation = collation


def _set_labels(columns: list[ColumnType], fields: _Fields) -> str:
    labelled = [column for column in columns if column.type_code in (ENUM, SET)]
    _set_charsets(labelled, fields, _LABEL_DEFAULT_CHARSET, _LABEL_COLUMN_CHARSET)
    for type_code, field in ((ENUM, _ENUM_LABELS), (SET, _SET_LABELS)):
        of_type = [column for column in labelled if column.type_code == type_code]
        lists = fields.label_lists(field)
        if len(lists) != len(of_type):
            raise ValueError(f"{len(lists)} lists of labels for {len(of_type)} columns")
        for column, labels in zip(of_type, lists, strict=True):
            if charset_kind(column.charset) == OTHER:
                return (
                    f"column {column.name!r}: labels in character set {column.charset}, which is "
                    f"not decoded: convert the column to utf8mb4 and copy the table again from "
                    f"after that, or leave the table out by a filter rule (exclude)"
                )
            column.labels = [decode_text(label, column.charset) for label in labels]
    return ""


def plan_columns(plan: TablePlan, columns: list[ColumnType], key: list[int]) -> str:
    """Fill the plan; return what the decoder does not handle, "" for nothing."""
    for source in columns:
        try:
            column_plan, shape_column = plan_column(source)
        except UnknownColumn as error:
            return f"column {source.name!r}: {error}"
        if source.type_code == ENUM:
            column_plan.labels = [encode_string(label) for label in ["", *source.labels]]
        elif source.type_code == SET:
            column_plan.labels = [encode_string(label) for label in source.labels]
        column_plan.form = raw_form(shape_column.kind)
        column_plan.collation = source.collation
        column_plan.nullable = source.nullable
        column_plan.place = f"{plan.database}.{plan.table}.{source.name}"
        plan.columns.append(column_plan)
        plan.shape_columns.append(shape_column)
    plan.count = len(columns)
    set_key(plan, key)
    return ""
