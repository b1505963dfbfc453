"""Column values as SQL literals that the server stores unchanged. Pure.

The session must be in UTC with a sql_mode that allows invalid dates (`target_session.STRICT_MODE`).
Text and bytes are hexadecimal: no quoting rule and no character set can change them.

Typed for mypyc, and correct uncompiled too.
"""

from typing import Any, Final

from mypy_extensions import i64

from databases.sql import bytes_literal, text_literal, time_literal
from resharding.apply.json_literals import json_literal
from topics.records.table_shape import Column, ValueKind
from topics.records.vevent import InvalidDate, Value

_TWO_DIGITS: Final[list[str]] = [f"{number:02d}" for number in range(100)]


class LiteralWriter:
    """Writes the values of one column; this base class writes whole numbers: also YEAR and BIT."""

    def __init__(self, column: Column) -> None:
        """Remember the column."""
        self.name: str = column.name

    def write(self, value: Any) -> str:
        """Write a value that is not NULL."""
        return str(value)


class _FloatWriter(LiteralWriter):
    def write(self, value: Any) -> str:
        # repr has all the digits; with an exponent the server reads a double, not a decimal.
        text = repr(value)
        return text if "e" in text else text + "e0"


class _DecimalWriter(LiteralWriter):
    def write(self, value: Any) -> str:
        return format(value, "f")


class _TextWriter(LiteralWriter):
    def write(self, value: Any) -> str:
        return text_literal(value)


class _JsonWriter(LiteralWriter):
    def write(self, value: Any) -> str:
        return json_literal(value)


class _LabelWriter(LiteralWriter):
    """Writes ENUM."""

    def __init__(self, column: Column) -> None:
        super().__init__(column)
        self._known: dict[str, str] = {label: text_literal(label) for label in column.labels}
        if is_error_label(column, ""):
            self._known[""] = "0"

    def write(self, value: Any) -> str:
        return self._known.get(value) or text_literal(value)


class _SetWriter(LiteralWriter):
    def write(self, value: Any) -> str:
        return text_literal(",".join(value))


class _BytesWriter(LiteralWriter):
    def write(self, value: Any) -> str:
        return bytes_literal(value)


class _DateWriter(LiteralWriter):
    """Writes DATE; its subclasses those kinds that may hold invalid dates too."""

    def write(self, value: Any) -> str:
        return text_literal(value) if isinstance(value, InvalidDate) else f"'{self._text(value)}'"

    def _text(self, value: Any) -> str:
        text: str = value.isoformat()
        return text


class _DatetimeWriter(_DateWriter):
    """Writes DATETIME; and TIMESTAMP, whose values are in UTC, as the session is."""

    def _text(self, value: Any) -> str:
        # As isoformat(" ") without an offset, which takes more than twice as long.
        two = _TWO_DIGITS
        year: i64 = value.year
        month: i64 = value.month
        day: i64 = value.day
        hour: i64 = value.hour
        minute: i64 = value.minute
        second: i64 = value.second
        text = (
            f"{two[year // 100]}{two[year % 100]}-{two[month]}-{two[day]} "
            f"{two[hour]}:{two[minute]}:{two[second]}"
        )
        parts: i64 = value.microsecond
        if parts == 0:
            return text
        return f"{text}.{two[parts // 10_000]}{two[parts // 100 % 100]}{two[parts % 100]}"


class _TimeWriter(LiteralWriter):
    def write(self, value: Any) -> str:
        return time_literal(value)


_WRITERS: Final[dict[ValueKind, type[LiteralWriter]]] = {
    ValueKind.INT: LiteralWriter,
    ValueKind.LONG: LiteralWriter,
    ValueKind.UNSIGNED_LONG: LiteralWriter,
    ValueKind.YEAR: LiteralWriter,
    ValueKind.BIT: LiteralWriter,
    ValueKind.BIT64: LiteralWriter,
    ValueKind.FLOAT: _FloatWriter,
    ValueKind.DOUBLE: _FloatWriter,
    ValueKind.DECIMAL: _DecimalWriter,
    ValueKind.STRING: _TextWriter,
    ValueKind.JSON: _JsonWriter,
    ValueKind.ENUM: _LabelWriter,
    ValueKind.SET: _SetWriter,
    ValueKind.BYTES: _BytesWriter,
    ValueKind.DATE: _DateWriter,
    ValueKind.DATETIME: _DatetimeWriter,
    ValueKind.TIMESTAMP: _DatetimeWriter,
    ValueKind.TIME: _TimeWriter,
}


def literal_writer(column: Column) -> LiteralWriter:
    """Return the writer of a column's values."""
    return _WRITERS[column.kind](column)


def is_error_label(column: Column, value: Value) -> bool:
    """Whether the value is the ENUM error value, index 0, which strict mode takes from nobody."""
    return column.kind is ValueKind.ENUM and value == "" and "" not in column.labels
