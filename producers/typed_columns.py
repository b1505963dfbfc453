"""Declared types of columns whose type MariaDB's binlog does not show. Pure."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from event_token.errors import UsageError

# Bytes of a value, by the server's name for the type.
HIDDEN_BYTES: Final[dict[str, int]] = {"uuid": 16, "inet4": 4, "inet6": 16}
# Declares that a column is logged as the binlog shows it.
BYTES: Final = "bytes"
DECLARABLE: Final = (*HIDDEN_BYTES, BYTES)
# Types that a binlog shows as BINARY(16) and BINARY(4).
_BINARIES: Final = frozenset((*HIDDEN_BYTES, *(f"binary({n})" for n in HIDDEN_BYTES.values())))


@dataclass(frozen=True)
class TypedColumns:
    """`declared`: a type or "bytes" by `database.table.column`, or by `/regexp/` over such names.

    A full name takes precedence over expressions. UsageError lists all invalid declarations.
    """

    declared: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse malformed names and unknown types."""
        problems = [
            f"typed_columns {name!r} is {value!r}, not one of {', '.join(DECLARABLE)}"
            for name, value in self.declared.items()
            if value not in DECLARABLE
        ]
        problems += [
            f"typed_columns {name!r} is not database.table.column, or /regexp/ over such names"
            for name in self.declared
            if not _is_regexp(name) and name.count(".") < 2
        ]
        try:
            _ = self._expressions
        except re.error as error:
            problems.append(f"typed_columns {error.pattern!r} is no regular expression: {error}")
        if problems:
            raise UsageError("; ".join(problems))

    @cached_property
    def _expressions(self) -> list[tuple[re.Pattern[str], str]]:
        return [(re.compile(n[1:-1]), t) for n, t in self.declared.items() if _is_regexp(n)]

    @property
    def names(self) -> list[str]:
        """The columns that are declared by full name."""
        return sorted(name for name in self.declared if not _is_regexp(name))

    def type_of(self, place: str) -> str:
        """The declared type of the column; "" if none is.

        UsageError if expressions contradict each other.
        """
        if place in self.declared:
            return self.declared[place]
        found = {value for expression, value in self._expressions if expression.fullmatch(place)}
        if len(found) > 1:
            raise UsageError(
                f"typed_columns declares {place} as {' and as '.join(sorted(found))}: "
                f"declare the column by its full name"
            )
        return next(iter(found), "")

    def contradiction(self, place: str, column_type: str) -> tuple[str, str] | None:
        """The problem of a column on the server and its fix; None if it is as declared.

        `column_type`: as the server names it, such as `uuid` or `binary(16)`.
        """
        there = _bare(column_type)
        declared = self.type_of(place)
        if declared == there:
            return None
        if declared == BYTES and (there in _BINARIES or place not in self.declared):
            return None
        if there in HIDDEN_BYTES:
            looks = f"which a binlog shows as binary({HIDDEN_BYTES[there]})"
            said = f"declared as {declared}" if declared else "not declared"
            what = f"column {place} is {there}, {looks}, and {said} in typed_columns"
            return what, f'{declaration(place, there)} (or "{BYTES}") {_SECTION}'
        if not declared:
            return None
        what = f"typed_columns declares {place} as {declared}, but it is {column_type}"
        fix = "remove it from typed_columns"
        if there in _BINARIES:
            fix += f", or {declaration(place, BYTES)} {_SECTION}"
        return what, fix


NOTHING_DECLARED: Final = TypedColumns()
_SECTION: Final = "under [producer.typed_columns]"


def declaration(place: str, declared: str) -> str:
    """The settings line that declares a column."""
    return f'{json.dumps(place, ensure_ascii=False)} = "{declared}"'


def looks_binary(column_type: str) -> bool:
    """Whether a binlog shows a column of the server as BINARY(16) or BINARY(4)."""
    return _bare(column_type) in _BINARIES


def _bare(column_type: str) -> str:
    # Comments of the server may follow.
    return column_type.partition(" ")[0]


def _is_regexp(name: str) -> bool:
    return len(name) > 1 and name.startswith("/") and name.endswith("/")
