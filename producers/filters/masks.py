"""Masks of personal data: a column is dropped, made NULL, truncated, or replaced by an HMAC."""

import hmac
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from enum import StrEnum
from typing import Any, Final

from producers.filters.errors import RuleError
from producers.filters.source_column import SourceColumn
from topics.records.table_shape import Column, ValueKind

# The length of the hash: a shorter key is easier to guess than the hash is to invert.
KEY_BYTES_MIN: Final = 32
HMAC_DIGITS: Final = 64
_EXACT: Final = Context(prec=200)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_INTEGERS: Final = frozenset(
    (ValueKind.INT, ValueKind.LONG, ValueKind.UNSIGNED_LONG, ValueKind.YEAR)
)

# From a raw value that is not NULL (see producers.filters.comparisons) to its replacement.
MaskFunction = Callable[[Any], str | bytes | None]


class MaskKind(StrEnum):
    """What a mask does."""

    DROP = "drop"
    NULL = "null"
    TRUNCATE = "truncate"
    HMAC = "hmac"


@dataclass(frozen=True, slots=True)
class Mask:
    """A mask. `length`: how many characters of text, or bytes, TRUNCATE keeps."""

    kind: MaskKind
    length: int = 0


def masked_column(column: SourceColumn, mask: Mask) -> Column:
    """Return the column as readers see it; not for DROP. RuleError if it cannot be truncated."""
    if mask.kind is MaskKind.TRUNCATE and column.kind not in (ValueKind.STRING, ValueKind.BYTES):
        raise RuleError(f"column {column.name} ({column.column.sql_type}) cannot be truncated")
    if mask.kind is MaskKind.HMAC:
        return Column(column.name, ValueKind.STRING, f"char({HMAC_DIGITS})")
    return column.column


def mask_function(column: SourceColumn, mask: Mask, key: bytes) -> MaskFunction:
    """Return what replaces values. RuleError if the mask does not fit the column."""
    if mask.kind is MaskKind.NULL:
        return lambda _: None
    if mask.kind is MaskKind.TRUNCATE:
        length = mask.length
        return lambda value: value[:length]
    text_of = _text_of(column)
    return lambda value: hmac.digest(key, text_of(value), "sha256").hex()


def _text_of(column: SourceColumn) -> Callable[[Any], bytes]:
    """Return what is hashed: the value as the server prints it, so that all shards agree."""
    kind = column.kind
    if kind is ValueKind.BYTES:
        return bytes
    if kind in (ValueKind.STRING, ValueKind.ENUM):
        return str.encode
    if kind in _INTEGERS:
        return lambda value: b"%d" % value
    if kind is ValueKind.DECIMAL:
        exponent = -column.column.scale
        return lambda value: f"{_EXACT.scaleb(Decimal(value), exponent):f}".encode()
    if kind is ValueKind.DATE:
        return _date_text
    raise RuleError(
        f"column {column.name} ({column.column.sql_type}) cannot be replaced by an HMAC: its "
        f"values can be printed in more than one way; use drop or null"
    )


def _date_text(value: int | str) -> bytes:
    if isinstance(value, str):
        return value.encode()
    return f"{_EPOCH + timedelta(days=value):%Y-%m-%d}".rjust(10, "0").encode()
