"""The part of a WHERE that compiled code tests: integers within bounds, joined by AND.

It saves a call into Python per row (docs/decisions.md has the figures).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from producers.filters.comparisons import Bounded, comparison
from producers.filters.source_column import SourceColumn
from producers.filters.where_tree import AllOf, Between, Compare, Condition, IsNull, Not
from topics.records.table_shape import DECIMAL_FIXED_DIGITS, ValueKind

# The limits of 64 bits; constants near them are left to the compiled predicate.
_LOWEST: Final = -(1 << 63)
_HIGHEST: Final = (1 << 63) - 1
_BOUND_MAX: Final = 1 << 62
_OPERATORS: Final = frozenset(("=", "<", "<=", ">", ">="))


@dataclass(frozen=True, slots=True)
class Range:
    """Passed by rows whose raw value in column index `column` is not NULL and in low..high."""

    column: int
    low: int
    high: int


def split_ranges(
    condition: Condition, columns: Sequence[SourceColumn]
) -> tuple[list[Range], Condition | None]:
    """Split a condition that compiles into ranges and the rest, all of which must be true."""
    places = {column.name.lower(): i for i, column in enumerate(columns)}
    found: dict[int, Range] = {}
    rest: list[Condition] = []
    for term in _terms(condition):
        span = _range(term, columns, places)
        if span is None:
            rest.append(term)
        else:
            known = found.get(span.column, span)
            low, high = max(span.low, known.low), min(span.high, known.high)
            found[span.column] = Range(span.column, low, high)
    return list(found.values()), AllOf(tuple(rest)) if rest else None


def _terms(condition: Condition) -> Iterator[Condition]:
    """Yield the terms that AND joins."""
    match condition:
        case AllOf(terms):
            for term in terms:
                yield from _terms(term)
        case Between(ref, low, high):
            yield Compare(">=", ref, low)
            yield Compare("<=", ref, high)
        case _:
            yield condition


def _range(
    term: Condition, columns: Sequence[SourceColumn], places: Mapping[str, int]
) -> Range | None:
    match term:
        case Compare(operator, ref, literal) if operator in _OPERATORS:
            index = places[ref.name.lower()]
            test = comparison(columns[index], ref, operator, literal)
            bound = test.bound if isinstance(test, Bounded) else None
            if not _is_whole(columns[index]) or not isinstance(bound, int):
                return None
            if not -_BOUND_MAX < bound < _BOUND_MAX:
                return None
            low = {"=": bound, ">=": bound, ">": bound + 1}.get(operator, _LOWEST)
            high = {"=": bound, "<=": bound, "<": bound - 1}.get(operator, _HIGHEST)
            return Range(index, low, high)
        case Not(IsNull(ref)):
            index = places[ref.name.lower()]
            return Range(index, _LOWEST, _HIGHEST) if _is_whole(columns[index]) else None
        case _:
            return None


def _is_whole(column: SourceColumn) -> bool:
    """Tell whether raw values are integers of at most 64 bits."""
    if column.kind is ValueKind.DECIMAL:
        return column.column.precision <= DECIMAL_FIXED_DIGITS
    return column.kind in (ValueKind.INT, ValueKind.LONG)
