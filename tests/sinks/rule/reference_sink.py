"""A sink of dictionaries: what every sink does with `TableChanges`, written as plainly as possible.

It keeps the visible row of each key in `main`, and the other versions of keys (rows that the
visible one hides, and tombstones) in `side`, as the lake and the database do.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from sinks.rule.homes import (
    ABSENT,
    DELETED,
    HOME,
    KEY,
    META,
    SEQ,
    SHARD,
    TIME,
    TOKEN,
    Version,
    no_stored_row,
    settle,
)
from sinks.rule.task_changes import TableChanges
from sinks.rule.upserts import contested, removed

Values = Mapping[str, Any]


@dataclass
class ReferenceTable:
    """One table. Versions hold the values of the table's columns by name."""

    main: dict[str, Version] = field(default_factory=dict)
    side: dict[str, list[Version]] = field(default_factory=dict)
    # How many keys were settled one by one.
    settled: int = 0
    dropped: int = 0

    def apply(self, changes: TableChanges) -> None:
        """Apply a batch."""
        self._remove(changes)
        rows = changes.rows
        keys = rows[KEY].to_pylist()
        visible = [self.main.get(key) for key in keys]
        is_contested = contested(
            rows,
            pa.array([None if v is None else v.home for v in visible], pa.binary()),
            pa.array([None if v is None else v.shard for v in visible], pa.string()),
            pa.array([self._hides_rows(key) for key in keys], pa.bool_()),
        ).to_pylist()
        to_settle: dict[str, list[Version]] = {}
        name = f"{changes.database}.{changes.table}"
        for row, stored, slowly in zip(rows.to_pylist(), visible, is_contested, strict=True):
            key, change = row[KEY], _version(row)
            if slowly:
                to_settle.setdefault(key, []).append(change)
            elif change.row is None:
                self.main.pop(key, None)
                self.side.setdefault(key, []).append(change)
            else:
                whole = _laid_over(name, key, stored, change) if change.is_partial else change
                self.main[key] = whole
        for key, versions in to_settle.items():
            self._settle(name, key, versions)

    def _settle(self, name: str, key: str, changes: Iterable[Version]) -> None:
        self.settled += 1
        settled = settle(
            self._stored(key), changes, lambda base, change: _laid_over(name, key, base, change)
        )
        self.dropped += settled.dropped
        self.main.pop(key, None)
        if settled.visible is not None:
            self.main[key] = settled.visible
        self.side[key] = list(settled.others)

    def _remove(self, changes: TableChanges) -> None:
        """Apply TRUNCATE and DROP to what is stored."""
        keys = sorted(self.main.keys() | self.side.keys())
        stored = [(key, version) for key in keys for version in self._stored(key)]
        gone = removed(changes.removals, _table(stored)).to_pylist()
        if not any(gone):
            return
        kept: dict[str, list[Version]] = {}
        for (key, version), is_gone in zip(stored, gone, strict=True):
            if not is_gone:
                kept.setdefault(key, []).append(version)
        self.main, self.side = {}, {}
        for key, versions in kept.items():
            settled = settle(versions, ())
            if settled.visible is not None:
                self.main[key] = settled.visible
            self.side[key] = list(settled.others)

    def _stored(self, key: str) -> list[Version]:
        visible = [self.main[key]] if key in self.main else []
        return [*visible, *self.side.get(key, ())]

    def _hides_rows(self, key: str) -> bool:
        return any(version.row is not None for version in self.side.get(key, ()))

    def live(self) -> list[Version]:
        """The rows of all live homes."""
        keys = self.main.keys() | self.side.keys()
        found = [version for key in keys for version in settle(self._stored(key), ()).versions]
        return [version for version in found if version.row is not None]

    def visible(self) -> dict[str, object]:
        """The values of each key's visible row."""
        return {key: version.row for key, version in self.main.items()}


def _version(row: Values) -> Version:
    absent = row[ABSENT]
    values = {
        name: value
        for name, value in row.items()
        if name not in META.names and name not in (absent or ())
    }
    return Version(
        row[SHARD],
        row[SEQ],
        row[TIME],
        row[HOME],
        None if row[DELETED] else values,
        row[TOKEN],
        is_partial=absent is not None,
    )


def _laid_over(name: str, key: str, base: Version | None, change: Version) -> Version:
    if base is None or not isinstance(base.row, dict) or not isinstance(change.row, dict):
        raise no_stored_row(name, key, change)
    return replace(change, row={**base.row, **change.row}, is_partial=False)


def _table(stored: Iterable[tuple[str, Version]]) -> pa.Table:
    rows = [
        {HOME: v.home, SHARD: v.shard, SEQ: v.seq, TIME: v.timestamp_us, TOKEN: v.token}
        for _, v in stored
    ]
    names = (HOME, SHARD, SEQ, TIME, TOKEN)
    return pa.Table.from_pylist(rows, pa.schema([META.field(name) for name in names]))
