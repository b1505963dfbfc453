"""What a merge does with a history, as a model, and rules that are too simple.

The target is a table, unique by id and by unique value, and rows aside. Each batch is one
transaction with the position, so a kill in the middle of one changes nothing.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from tests.resharding.merge.histories import Commit, History, Image, ModelRow


class Rule(Enum):
    """What becomes of a row that excludes another one."""

    REPLACED = "an upsert replaces whatever has its id or its unique value"
    OWN_DELETES = "the same, but a delete removes rows of its own source alone"
    OLDER_ASIDE = "a row of another source that is in the way is set aside"
    NEWER_ASIDE = "a row waits aside while a row of another source is in its way"


@dataclass(frozen=True)
class LogRecord:
    """A change in the target's log. `origin`: its source, and the seq that stands before it."""

    old: Image
    new: Image
    owner: int
    origin: tuple[int, int]


@dataclass
class ModelTarget:
    """The target; `place`: commits that it has applied."""

    rule: Rule
    place: int = 0
    table: dict[int, tuple[int, ModelRow]] = field(default_factory=dict)
    aside: dict[tuple[int, int], ModelRow] = field(default_factory=dict)
    log: list[LogRecord] = field(default_factory=list)
    newest: dict[int, int] = field(default_factory=dict)
    set_aside: int = 0

    def copy(self) -> "ModelTarget":
        """The target as it is, as a replica that falls behind keeps it."""
        return ModelTarget(
            *(self.rule, self.place, dict(self.table), dict(self.aside), list(self.log)),
            *(dict(self.newest), self.set_aside),
        )

    def rows(self) -> set[tuple[int, ModelRow]]:
        """The rows of the table and those aside, each with its source."""
        waiting = {(source, row) for (source, _), row in self.aside.items()}
        return set(self.table.values()) | waiting

    def apply(self, batch: Sequence[Commit]) -> None:
        """Apply commits as one transaction."""
        self.newest |= {commit.source: commit.seq for commit in batch}
        if self.rule in {Rule.REPLACED, Rule.OWN_DELETES}:
            self._apply_last_of_all(batch)
        else:
            self._apply_per_source(batch)
        self.place += len(batch)

    def _apply_last_of_all(self, batch: Iterable[Commit]) -> None:
        last: dict[int, tuple[int, Image]] = {}
        for commit in batch:
            for old, _ in commit.changes:
                if old is not None:
                    last.pop(old.id, None)
                    last[old.id] = (commit.source, None)
            for _, new in commit.changes:
                if new is not None:
                    last.pop(new.id, None)
                    last[new.id] = (commit.source, new)
        for key, (source, row) in last.items():
            there = self.table.get(key)
            if row is None and there and (self.rule is Rule.REPLACED or there[0] == source):
                self._delete(key, source)
        for source, row in last.values():
            if row is not None:
                for key in self._in_the_way(row):
                    self._delete(key, source)
                self._insert(source, row, source)

    def _apply_per_source(self, batch: Iterable[Commit]) -> None:
        last: dict[int, dict[int, Image]] = defaultdict(dict)
        for commit in batch:
            if commit.empties:
                self._empty(commit.source, last[commit.source])
            for old, _ in commit.changes:
                if old is not None:
                    last[commit.source][old.id] = None
            for _, new in commit.changes:
                if new is not None:
                    last[commit.source][new.id] = new
        for source, rows in last.items():
            for key in rows:
                if key in self.table and self.table[key][0] == source:
                    self._delete(key, source)
                self.aside.pop((source, key), None)
        for source, rows in last.items():
            for row in rows.values():
                if row is not None:
                    self._put(source, row)
        self._bring_back()

    def _empty(self, source: int, last: dict[int, Image]) -> None:
        """TRUNCATE: the rows of its source go, wherever they are."""
        last.clear()
        for key in [key for key, (owner, _) in self.table.items() if owner == source]:
            self._delete(key, source)
        self.aside = {key: row for key, row in self.aside.items() if key[0] != source}

    def _put(self, source: int, row: ModelRow) -> None:
        blockers = self._in_the_way(row)
        if blockers and self.rule is Rule.NEWER_ASIDE:
            self.aside[source, row.id] = row
            self.set_aside += 1
            return
        for key in blockers:
            owner, other = self.table[key]
            self._delete(key, source)
            if owner != source:
                self.aside[owner, other.id] = other
                self.set_aside += 1
        self._insert(source, row, source)

    def _bring_back(self) -> None:
        for (source, key), row in list(self.aside.items()):
            if not self._in_the_way(row):
                del self.aside[source, key]
                self._insert(source, row, source)

    def _in_the_way(self, row: ModelRow) -> list[int]:
        return [
            key
            for key, (_, other) in self.table.items()
            if other.id == row.id or other.uid == row.uid
        ]

    def _insert(self, source: int, row: ModelRow, by: int) -> None:
        assert not self._in_the_way(row)
        self.table[row.id] = (source, row)
        self.log.append(LogRecord(None, row, source, (by, self.newest[by])))

    def _delete(self, key: int, by: int) -> None:
        owner, row = self.table.pop(key)
        self.log.append(LogRecord(row, None, owner, (by, self.newest[by])))


def unlike_changes(history: History, target: ModelTarget) -> list[LogRecord]:
    """The records of the target's log that no change of the source accounts for.

    Without marks a reader drops what an origin proves that it has read: a record has to be a change
    of the source of its origin, made up to there.
    """
    made: dict[tuple[int, ModelRow], int] = {}
    gone: dict[tuple[int, ModelRow], int] = {}
    rows: dict[int, dict[int, ModelRow]] = defaultdict(dict)
    for commit in history.commits:
        own = rows[commit.source]
        olds = list(own.values()) if commit.empties else [old for old, _ in commit.changes]
        for old in olds:
            if old is not None:
                gone[commit.source, old] = commit.seq
                own.pop(old.id, None)
        for _, new in commit.changes:
            if new is not None:
                made[commit.source, new] = commit.seq
                own[new.id] = new
    return [
        record
        for record in target.log
        if record.origin[0] != record.owner
        or (record.new and made[record.owner, record.new] > record.origin[1])
        or (record.old and gone.get((record.owner, record.old), 10**9) > record.origin[1])
    ]


def reader_behind_a_hop(
    history: History, target: ModelTarget, place: int
) -> set[tuple[int, ModelRow]]:
    """The rows of a reader of all sources to which the target's log from a place on comes again."""
    rows = {(source, row.id): row for source, row in history.union(len(history.commits))}
    for record in target.log[place:]:
        if record.old is not None:
            rows.pop((record.owner, record.old.id), None)
        if record.new is not None:
            rows[record.owner, record.new.id] = record.new
    return {(source, row) for (source, _), row in rows.items()}
