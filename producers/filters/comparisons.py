"""Comparisons of a column and a constant, as the server evaluates them; others are refused by name.

A predicate takes a raw value that is not NULL: numbers as int or float, DECIMAL as its unscaled
int, text as str, bytes as bytes, DATE as days, other times as microseconds, and invalid dates as
the server's text.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Context, Decimal
from operator import eq, ge, gt, le, lt, ne
from typing import Any, Final

from producers.filters.collations import BINARY, BY_NAME, BinaryCollation, collation_named
from producers.filters.errors import RuleError
from producers.filters.source_column import SourceColumn
from producers.filters.where_tree import ColumnRef, Literal
from topics.records.table_shape import DECIMAL_DIGITS_MAX, DECIMAL_SCALE_MAX, ValueKind

Raw = int | float | str | bytes
Test = Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Bounded:
    """A test that is a single Python comparison: `value operator bound`."""

    operator: str
    bound: Raw | Decimal


_OPERATORS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": eq,
    "<=>": eq,
    "<>": ne,
    "<": lt,
    "<=": le,
    ">": gt,
    ">=": ge,
}
_PYTHON: Final = {"=": "==", "<=>": "==", "<>": "!="}
_ORDERINGS: Final = frozenset(("<", "<=", ">", ">="))
_INTEGERS: Final = frozenset((ValueKind.INT, ValueKind.LONG, ValueKind.UNSIGNED_LONG))
_BITS: Final = frozenset((ValueKind.BIT, ValueKind.BIT64))
_FLOATS: Final = frozenset((ValueKind.FLOAT, ValueKind.DOUBLE))
_TEXTS: Final = frozenset((ValueKind.STRING, ValueKind.ENUM))
_DATES: Final = frozenset((ValueKind.DATE, ValueKind.DATETIME, ValueKind.TIMESTAMP))
# Servers of both families compare decimal constants of up to 65 digits, 38 of them after the point,
# exactly with every DECIMAL.
_EXACT: Final = Context(prec=2 * DECIMAL_DIGITS_MAX)
# Servers move two-digit years into this century or the last.
_YEARS: Final = range(1901, 2156)
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d")
_DATETIME: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{1,6})?")
_TIME: Final = re.compile(r"(-?)(\d{2,3}):([0-5]\d):([0-5]\d)(?:\.(\d{1,6}))?")
_TIME_HOURS_MAX: Final = 838
_US_A_DAY: Final = 86_400_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# The range of TIMESTAMP, less a day at each end, so that the time zone does not matter.
_TIMESTAMPS: Final = (datetime(1970, 1, 2, tzinfo=UTC), datetime(2038, 1, 18, tzinfo=UTC))


def comparison(
    column: SourceColumn, ref: ColumnRef, operator: str, literal: Literal
) -> Test | Bounded:
    """Return `column operator literal` as a predicate. RuleError if it cannot be exact."""
    kind = column.kind
    _check_visible(column)
    compare = _OPERATORS[operator]
    if kind in _TEXTS:
        collation = _collation(column, ref)
        text = _text(column, literal, collation)
        return _compare_text(column, operator, collation, text)
    if ref.collation is not None:
        raise _cannot(column, f"COLLATE {ref.collation} of a column that is not text")
    if kind in _DATES:
        return _compare_dates(column, compare, literal)
    return Bounded(_PYTHON.get(operator, operator), _bound(column, literal))


def membership(column: SourceColumn, ref: ColumnRef, literals: Iterable[Literal]) -> Test:
    """Return `column IN (literals)` as a predicate."""
    _check_visible(column)
    if column.kind in _TEXTS:
        collation = _collation(column, ref)
        texts = frozenset(_stripped(_text(column, each, collation), collation) for each in literals)
        if collation.pads:
            return lambda value: value.rstrip(" ") in texts
        return texts.__contains__
    if column.kind in _DATES:
        if ref.collation is not None:
            raise _cannot(column, f"COLLATE {ref.collation} of a column that is not text")
        tests = [_compare_dates(column, eq, each) for each in literals]
        return lambda value: any(test(value) for test in tests)
    if ref.collation is not None:
        raise _cannot(column, f"COLLATE {ref.collation} of a column that is not text")
    listed = tuple(literals)
    check_numbers(column, listed)
    return frozenset(_bound(column, each) for each in listed).__contains__


def check_numbers(column: SourceColumn, literals: Iterable[Literal]) -> None:
    """Refuse integers mixed with other numbers in IN and BETWEEN of an integer column.

    Servers then compare by each constant's own type, and take 18446744073709551615 for -1.
    """
    if column.kind not in _INTEGERS:
        return
    texts = [literal.text for literal in literals]
    if len({"." in text for text in texts}) > 1:
        raise _cannot(column, "IN or BETWEEN of integers mixed with other numbers")
    if column.kind is ValueKind.UNSIGNED_LONG and any(text.startswith("-") for text in texts):
        raise _cannot(column, "IN or BETWEEN with a number below 0")


def _check_visible(column: SourceColumn) -> None:
    if column.hidden_type:
        raise _cannot(column, f"a comparison of the type {column.hidden_type}")


def _cannot(column: SourceColumn, what: str) -> RuleError:
    return RuleError(
        f"column {column.name} ({column.column.sql_type}): {what} cannot be evaluated exactly as "
        f"the server does, so it is refused"
    )


def _bound(column: SourceColumn, literal: Literal) -> Raw | Decimal:
    """Return the constant as a raw value of a column that is neither text nor a date."""
    kind = column.kind
    if kind is ValueKind.BYTES:
        return _bytes(column, literal)
    if kind is ValueKind.TIME:
        return _time_us(column, literal)
    if literal.kind == "float" and kind in _FLOATS:
        return float(literal.text)
    if literal.kind != "number":
        raise _cannot(column, f"a comparison with {literal.kind} {literal.text!r}")
    number = Decimal(literal.text)
    fraction = len(literal.text.partition(".")[2])
    if len(number.as_tuple().digits) > DECIMAL_DIGITS_MAX or fraction > DECIMAL_SCALE_MAX:
        raise _cannot(
            column,
            f"a comparison with a number of more than {DECIMAL_DIGITS_MAX} digits, or of more than "
            f"{DECIMAL_SCALE_MAX} after the point,",
        )
    if kind in _FLOATS:
        return float(number)
    if kind is ValueKind.DECIMAL:
        return _whole(_EXACT.scaleb(number, column.column.scale))
    if kind in _INTEGERS:
        return _whole(number)
    is_plain = fraction == 0 and number >= 0
    if (kind in _BITS and is_plain) or (kind is ValueKind.YEAR and number in _YEARS and is_plain):
        return int(number)
    raise _cannot(column, f"a comparison with {literal.text}")


def _whole(number: Decimal) -> int | Decimal:
    """Return an int if it is one: ints compare with ints several times faster."""
    whole = int(number)
    return whole if whole == number else number


def _bytes(column: SourceColumn, literal: Literal) -> bytes:
    if column.collation != BINARY:
        raise _cannot(column, "a comparison of text that is kept as bytes")
    if literal.kind == "hex":
        return bytes.fromhex(literal.text if len(literal.text) % 2 == 0 else "0" + literal.text)
    if literal.kind == "text":
        return literal.text.encode()
    raise _cannot(column, f"a comparison with the number {literal.text}")


def _collation(column: SourceColumn, ref: ColumnRef) -> BinaryCollation:
    """Return the collation by which the server compares."""
    own = collation_named(column.collation)
    if ref.collation is None:
        if own is not None:
            return own
        by = f"by {column.collation or 'an unknown collation'}"
    else:
        chosen = collation_named(ref.collation)
        charset = column.collation.split("_")[0].split(" ")[0].replace("utf8mb3", "utf8")
        if chosen is not None and chosen.charset.replace("utf8mb3", "utf8") == charset:
            return chosen
        by = f"by {ref.collation}"
    names = ", ".join(sorted(BY_NAME))
    raise RuleError(
        f"column {column.name} ({column.column.sql_type}): a comparison {by} cannot be evaluated "
        f"exactly as the server does, so it is refused: name a collation of the column's character "
        f"set in the rule ({column.name} COLLATE ...), one of {names}"
    )


def _text(column: SourceColumn, literal: Literal, collation: BinaryCollation) -> str:
    if literal.kind != "text":
        raise _cannot(column, f"a comparison of text with {literal.kind} {literal.text!r}")
    try:
        encoded = literal.text.encode(collation.codec)
    except UnicodeEncodeError as error:
        raise _cannot(
            column, f"a comparison with text that {collation.charset} cannot hold"
        ) from error
    fits = collation.charset != "utf8mb3" or max(literal.text, default="") <= "\uffff"
    # Python's latin-1 has control codes where the servers' has cp1252's letters.
    is_plain = collation.charset != "latin1" or not any(0x80 <= byte < 0xA0 for byte in encoded)
    if not fits or not is_plain:
        raise _cannot(column, f"a comparison with text that {collation.charset} cannot hold")
    return literal.text


def _stripped(text: str, collation: BinaryCollation) -> str:
    return text.rstrip(" ") if collation.pads else text


def _compare_text(
    column: SourceColumn, operator: str, collation: BinaryCollation, text: str
) -> Test | Bounded:
    compare = _OPERATORS[operator]
    if operator not in _ORDERINGS:
        bound = _stripped(text, collation)
        if collation.pads:
            return lambda value: compare(value.rstrip(" "), bound)
        return Bounded(_PYTHON[operator], bound)
    if not collation.ordered:
        raise _cannot(column, f"{operator} by {collation.name}")
    if not collation.pads:
        return Bounded(operator, text)
    size = len(text)

    def padded(value: str) -> bool:
        # The shorter one is padded with spaces: code points below the space sort before it.
        return compare(value.ljust(size), text.ljust(len(value)))

    return padded


def _compare_dates(
    column: SourceColumn, compare: Callable[[Any, Any], bool], literal: Literal
) -> Test:
    """Compare DATE, DATETIME and TIMESTAMP (in UTC) with a date in ISO form."""
    is_date = column.kind is ValueKind.DATE
    if literal.kind != "text" or not (
        _DATE.fullmatch(literal.text) or (not is_date and _DATETIME.fullmatch(literal.text))
    ):
        form = "'2024-12-31'" if is_date else "'2024-12-31 23:59:59'"
        raise _cannot(column, f"a comparison with {literal.text!r} (write {form})")
    try:
        moment = datetime.fromisoformat(literal.text).replace(tzinfo=UTC)
    except ValueError as error:
        what = f"a comparison with {literal.text!r} (a date that does not exist)"
        raise _cannot(column, what) from error
    _check_fraction(column, literal.text)
    if column.kind is ValueKind.TIMESTAMP and not _TIMESTAMPS[0] <= moment <= _TIMESTAMPS[1]:
        what = f"a comparison with {literal.text!r} (beyond or near the limits of TIMESTAMP)"
        raise _cannot(column, what)
    since = moment - _EPOCH
    bound = since.days if is_date else since.days * _US_A_DAY + since.seconds * 10**6
    bound += 0 if is_date else since.microseconds

    def test(value: int | str) -> bool:
        if isinstance(value, str):
            # It does not exist, but the constant does: the dates in front differ, so they decide.
            return compare(value, literal.text)
        return compare(value, bound)

    return test


def _time_us(column: SourceColumn, literal: Literal) -> int:
    found = _TIME.fullmatch(literal.text) if literal.kind == "text" else None
    if found is None or int(found[2]) > _TIME_HOURS_MAX:
        raise _cannot(column, f"a comparison with {literal.text!r} (write '12:34:56')")
    _check_fraction(column, literal.text)
    seconds = (int(found[2]) * 60 + int(found[3])) * 60 + int(found[4])
    us = seconds * 1_000_000 + int((found[5] or "").ljust(6, "0"))
    return -us if found[1] else us


def _check_fraction(column: SourceColumn, text: str) -> None:
    digits = len(text.partition(".")[2])
    if digits > column.second_digits:
        raise _cannot(column, f"a comparison with {digits} digits of a second")


def collation_of_like(column: SourceColumn, ref: ColumnRef, pattern: str) -> BinaryCollation | None:
    """Return the collation by which LIKE compares, None for bytes. Raises RuleError."""
    _check_visible(column)
    if column.kind in _TEXTS:
        collation = _collation(column, ref)
        _text(column, Literal("text", pattern), collation)
        return collation
    if column.kind is ValueKind.BYTES and ref.collation is None:
        _bytes(column, Literal("text", pattern))
        return None
    raise _cannot(column, "LIKE of a column that is neither text nor bytes")
