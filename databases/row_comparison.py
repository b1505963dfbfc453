"""What a comparison of the rows of two sides finds, under live writes.

The sides are read in chunks by key. A side that cannot be read at one moment with the other gives
keys whose rows seem to differ; those are looked at again until they are settled. Pure.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

# Differing rows that are listed; all are counted.
NAMED_MAX: Final = 100
# A row that is changed more often than it is looked at may have changed in each round.
ROUNDS_MAX: Final = 3

RowKey = TypeVar("RowKey")


@dataclass(frozen=True, slots=True)
class Difference:
    """A row that differs.

    `shard`: whose row it is. `columns`: those that differ, empty if it is missing or extra.
    """

    table: str
    shard: str
    key: str
    what: str
    columns: tuple[str, ...] = ()


class RowComparison:
    """Counts the rows that were compared and those that differ, and names the first of them.

    `rows`: of the sources. `changing`: rows that changed in every round.
    """

    def __init__(self) -> None:
        """Begin with no rows."""
        self.rows = 0
        self.differing = 0
        self.changing = 0
        self._named: list[Difference] = []

    @property
    def named(self) -> tuple[Difference, ...]:
        """The first NAMED_MAX rows that differ."""
        return tuple(self._named)

    def missing(self, table: str, shard: str, key: str) -> None:
        """Add a row that only the source has."""
        self.add(Difference(table, shard, key, "it is missing in the target"))

    def changed(self, table: str, shard: str, key: str, columns: Iterable[str]) -> None:
        """Add a row whose values differ."""
        names = tuple(columns)
        self.add(Difference(table, shard, key, f"it differs in {', '.join(names)}", names))

    def surplus(self, table: str, shard: str, key: str, more: str = "") -> None:
        """Add a row that only the target has."""
        self.add(Difference(table, shard, key, f"it is in the target alone{more}"))

    def add(self, difference: Difference) -> None:
        """Add a row that differs."""
        self.differing += 1
        if len(self._named) < NAMED_MAX:
            self._named.append(difference)

    def look_again(
        self,
        keys: Iterable[RowKey],
        compare: Callable[[Sequence[RowKey], bool], Iterable[RowKey]],
    ) -> None:
        """Compare rows by key until they are settled.

        `compare` is called with keys, and whether it is for the last time. It returns the keys of
        rows that have changed since they were read.
        """
        left = list(dict.fromkeys(keys))
        for number in range(1, ROUNDS_MAX + 1):
            if not left:
                return
            left = list(dict.fromkeys(compare(left, number == ROUNDS_MAX)))
        self.changing += len(left)


def key_text(names: Iterable[str], values: Iterable[object]) -> str:
    """Return a key for messages."""
    return ", ".join(
        f"{name}={value.decode(errors='replace') if isinstance(value, bytes) else value}"
        for name, value in zip(names, values, strict=True)
    )
