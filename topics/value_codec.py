"""Values of columns between the wire and Python, by a plan made once for each table version.

fastavro reads and writes the plain Avro types; the logical types are laid over them here, for
its own conversions know neither negative times nor 65 digits, and give up on the years that
Python lacks.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any, Final

from topics.table_shape import (
    DECIMAL_FIXED_BYTES,
    DECIMAL_FIXED_DIGITS,
    UNSIGNED_LONG_BYTES,
    Column,
    TableShape,
    ValueKind,
    avro_name,
)
from topics.vevent import OffCalendar, Row, Value

Convert = Callable[[Any], Any]

_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - DATETIME has no time zone
_EPOCH_UTC: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_ORDINAL: Final = date(1970, 1, 1).toordinal()
_MICROSECOND: Final = timedelta(microseconds=1)

# MySQL's DECIMAL has 65 digits; with room to scale without rounding.
_EXACT: Final = Context(prec=200)

_UNSIGNED_LONG_MAX: Final = 2**64 - 1
_INT64: Final = range(-(2**63), 2**63)

_CALENDAR_KINDS: Final = frozenset({ValueKind.DATE, ValueKind.DATETIME, ValueKind.TIMESTAMP})


class ValueMisfitError(ValueError):
    """Raised when a value cannot stand in its column; the codec says where."""


def plain_schema(schema: Any) -> Any:
    """Return an Avro schema without its logical types."""
    if isinstance(schema, dict):
        return {
            name: plain_schema(part)
            for name, part in schema.items()
            if name not in {"logicalType", "precision", "scale"}
        }
    if isinstance(schema, list):
        return [plain_schema(part) for part in schema]
    return schema


@dataclass(frozen=True, slots=True)
class RowPlan:
    """How the rows of one table version are read and written."""

    shape: TableShape
    # (name on the wire, name of the column, conversion or None), in order.
    _columns: tuple[tuple[str, str, Convert | None], ...]
    _conversions: tuple[tuple[str, Convert], ...]  # by wire name, of those that need one
    _encoders: tuple[tuple[str, str, Convert], ...]
    _names_as_on_wire: bool
    _full_image: bytes

    @classmethod
    def of(cls, shape: TableShape) -> "RowPlan":
        """Make the plan of a table version."""
        columns = tuple((avro_name(c.name), c.name, _decoder(c)) for c in shape.columns)
        return cls(
            shape=shape,
            _columns=columns,
            _conversions=tuple((wire, conv) for wire, _, conv in columns if conv is not None),
            _encoders=tuple((avro_name(c.name), c.name, _encoder(c)) for c in shape.columns),
            _names_as_on_wire=all(wire == name for wire, name, _ in columns),
            _full_image=_bit_map(range(len(shape.columns)), len(shape.columns)),
        )

    def read(self, raw: dict[str, Any], present: bytes, off_calendar: Mapping[int, str]) -> Row:
        """Return the row of a decoded image; may reuse `raw`. ValueError on broken values."""
        if present == self._full_image and not off_calendar and self._names_as_on_wire:
            for name, convert in self._conversions:
                value = raw[name]
                if value is not None:
                    raw[name] = convert(value)
            return raw
        if len(present) != len(self._full_image) or present[-1:] > self._full_image[-1:]:
            raise ValueMisfitError(f"the bit map of columns has {len(present)} bytes")
        row: Row = {}
        for i, (wire, name, conversion) in enumerate(self._columns):
            value = raw[wire]
            if not present[i >> 3] >> (i & 7) & 1:
                if value is not None:
                    raise ValueMisfitError(f"column {name} has a value and is said to be absent")
                continue
            row[name] = value if value is None or conversion is None else conversion(value)
        self._put_off_calendar(row, off_calendar)
        return row

    def _put_off_calendar(self, row: Row, off_calendar: Mapping[int, str]) -> None:
        for i, text in off_calendar.items():
            if not 0 <= i < len(self.shape.columns):
                raise ValueMisfitError(
                    f"a date off the calendar names column {i}, which is not there"
                )
            column = self.shape.columns[i]
            if column.kind not in _CALENDAR_KINDS or row.get(column.name, text) is not None:
                raise ValueMisfitError(f"column {column.name} cannot hold the date text {text!r}")
            row[column.name] = OffCalendar(text)

    def write(self, row: Row) -> tuple[dict[str, Any], bytes, dict[int, str]]:
        """Return the raw image, its bit map and its dates off the calendar; ValueMisfitError."""
        unknown = row.keys() - {c.name for c in self.shape.columns}
        if unknown:
            raise ValueMisfitError(f"{self.shape.table} has no column {', '.join(sorted(unknown))}")
        raw: dict[str, Any] = {}
        off_calendar = {}
        present = []
        for i, (wire, name, write) in enumerate(self._encoders):
            raw[wire] = None
            if name not in row:
                continue
            present.append(i)
            value = row[name]
            if isinstance(value, OffCalendar):
                off_calendar[i] = str(value)
            elif value is not None:
                raw[wire] = write(value)
        return raw, _bit_map(present, len(self.shape.columns)), off_calendar

    def write_value(self, index: int, value: Value) -> Any:
        """Return the raw value of one column that is not NULL; ValueMisfitError."""
        return self._encoders[index][2](value)


def _bit_map(present: Iterable[int], columns: int) -> bytes:
    bits = sum(1 << i for i in present)
    return bits.to_bytes((columns + 7) // 8, "little")


def _decoder(column: Column) -> Convert | None:
    """Return the conversion of a column's raw values; None where they are what is wanted."""
    match column.kind:
        case ValueKind.UNSIGNED_LONG | ValueKind.BIT64:
            return _read_unsigned_long
        case ValueKind.DECIMAL:
            return _decimal_reader(column.scale)
        case ValueKind.DATE:
            return _read_date
        case ValueKind.TIME:
            return _read_time
        case ValueKind.DATETIME:
            return _read_datetime
        case ValueKind.TIMESTAMP:
            return _read_timestamp
        case _:
            return None


def _read_unsigned_long(raw: bytes) -> int:
    number = int.from_bytes(raw, "big")
    if number > _UNSIGNED_LONG_MAX:
        raise ValueMisfitError(f"{number} does not fit 64 bits")
    return number


def _decimal_reader(scale: int) -> Convert:
    exponent = -scale
    scaled = _EXACT.scaleb

    def read(raw: bytes) -> Decimal:
        return scaled(Decimal(int.from_bytes(raw, "big", signed=True)), exponent)

    return read


def _read_date(raw: int) -> date:
    return date.fromordinal(_EPOCH_ORDINAL + raw)


def _read_time(raw: int) -> timedelta:
    return timedelta(microseconds=raw)


def _read_datetime(raw: int) -> datetime:
    return _EPOCH + timedelta(microseconds=raw)


def _read_timestamp(raw: int) -> datetime:
    return _EPOCH_UTC + timedelta(microseconds=raw)


def _encoder(column: Column) -> Convert:
    """Return the conversion of a column's Python values that are not None."""
    match column.kind:
        case ValueKind.UNSIGNED_LONG | ValueKind.BIT64:
            return _checked(int, _write_unsigned_long, column)
        case ValueKind.DECIMAL:
            return _checked(Decimal, _decimal_writer(column), column)
        case ValueKind.DATE:
            return _checked(date, lambda v: v.toordinal() - _EPOCH_ORDINAL, column)
        case ValueKind.TIME:
            return _checked(timedelta, lambda v: v // _MICROSECOND, column)
        case ValueKind.DATETIME:
            return _checked(datetime, lambda v: (v - _EPOCH) // _MICROSECOND, column)
        case ValueKind.TIMESTAMP:
            return _checked(datetime, lambda v: (v - _EPOCH_UTC) // _MICROSECOND, column)
        case ValueKind.STRING | ValueKind.ENUM | ValueKind.JSON:
            return _checked(str, str, column)
        case ValueKind.BYTES:
            return _checked(bytes, bytes, column)
        case ValueKind.SET:
            return _checked(list, list, column)
        case ValueKind.FLOAT | ValueKind.DOUBLE:
            return _checked(float, float, column)
        case ValueKind.INT | ValueKind.YEAR | ValueKind.LONG | ValueKind.BIT:
            return _checked(int, _write_long, column)


def _checked(of: type, write: Convert, column: Column) -> Convert:
    """Wrap a conversion so that a value of another type is a ValueMisfitError."""

    def encode(value: Any) -> Any:
        if not isinstance(value, of):
            raise ValueMisfitError(
                f"column {column.name} ({column.sql_type}) cannot hold {value!r}"
            )
        try:
            return write(value)
        except (OverflowError, TypeError, ArithmeticError) as error:
            raise ValueMisfitError(f"column {column.name}: {value!r}: {error}") from error

    return encode


def _write_long(value: int) -> int:
    if value not in _INT64:
        raise ValueMisfitError(f"{value} does not fit 64 bits")
    return value


def _write_unsigned_long(value: int) -> bytes:
    if not 0 <= value <= _UNSIGNED_LONG_MAX:
        raise ValueMisfitError(f"{value} does not fit 64 unsigned bits")
    return value.to_bytes(UNSIGNED_LONG_BYTES, "big")


def _decimal_writer(column: Column) -> Convert:
    fixed_bytes = DECIMAL_FIXED_BYTES if column.precision <= DECIMAL_FIXED_DIGITS else 0

    def write(value: Decimal) -> bytes:
        scaled = _EXACT.scaleb(value, column.scale)
        unscaled = int(scaled)
        if scaled != unscaled or len(str(abs(unscaled))) > column.precision:
            raise ValueMisfitError(f"{value} does not fit {column.sql_type}")
        size = fixed_bytes or (unscaled.bit_length() + 8) // 8
        return unscaled.to_bytes(size, "big", signed=True)

    return write
