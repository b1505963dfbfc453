"""What a rule must know about a column, from a table map or from information_schema."""

import re
from dataclasses import dataclass
from typing import Final

from topics.records.table_shape import Column, ValueKind

_DIGITS: Final = re.compile(r"\(([0-6])\)")
_TEMPORAL: Final = frozenset((ValueKind.TIME, ValueKind.DATETIME, ValueKind.TIMESTAMP))


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column of the server's table. `collation`: its name, "" for types without one."""

    column: Column
    collation: str = ""
    nullable: bool = True
    # The server's name for a type that the binlog shows as another one (UUID, INET4, INET6); such
    # values have their own comparisons.
    hidden_type: str = ""

    @property
    def name(self) -> str:
        """Its name."""
        return self.column.name

    @property
    def kind(self) -> ValueKind:
        """How its values are encoded."""
        return self.column.kind

    @property
    def second_digits(self) -> int:
        """Fractional digits of a temporal type."""
        declared = _DIGITS.search(self.column.sql_type) if self.kind in _TEMPORAL else None
        return 0 if declared is None else int(declared[1])
