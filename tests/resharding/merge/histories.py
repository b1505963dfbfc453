"""Histories of sources that are merged: rows and unique values travel, and clocks disagree.

At every real moment the sources together hold each id and each unique value once. Each source's log
is exact, and stamped by a clock of its own, with a skew and a grain; a merge reads the logs by the
stamps. A copy may put rows into a log at a place at which they were not there yet.
"""

import random
from dataclasses import dataclass, field
from typing import NamedTuple

# As MariaDB has commit times, and MySQL.
GRAINS_MS = (1, 1, 1_000)


class ModelRow(NamedTuple):
    """A row: unique by `id` and by `uid`; `n` is its version, `user` one of its source's."""

    id: int
    uid: int
    user: int
    n: int


Image = ModelRow | None


@dataclass(frozen=True)
class Commit:
    """A transaction in a source's log. `seq`: from 1. `empties`: a TRUNCATE. `copies`: READs."""

    stamp: int
    source: int
    seq: int
    changes: tuple[tuple[Image, Image], ...] = ()
    empties: bool = False
    copies: bool = False


@dataclass
class History:
    """Commits in merged order, and how many of them a batch takes.

    `live`: what each source holds in the end. `exact_at`: number of commits behind which no row of
    a copy is ahead of its log.
    """

    sources: int
    commits: list[Commit]
    live: list[dict[int, ModelRow]]
    batches: list[int]
    exact_at: int

    def union(self, count: int) -> set[tuple[int, ModelRow]]:
        """The rows of each source after a number of commits."""
        found: dict[tuple[int, int], ModelRow] = {}
        for commit in self.commits[:count]:
            if commit.empties:
                found = {key: row for key, row in found.items() if key[0] != commit.source}
            for old, _ in commit.changes:
                if old is not None:
                    found.pop((commit.source, old.id), None)
            for _, new in commit.changes:
                if new is not None:
                    found[commit.source, new.id] = new
        return {(source, row) for (source, _), row in found.items()}


@dataclass
class _World:
    """The sources at a real moment, in milliseconds."""

    dice: random.Random
    sources: int
    now: int = 0
    live: list[dict[int, ModelRow]] = field(default_factory=list)
    logs: list[list[Commit]] = field(default_factory=list)
    states: list[list[dict[int, ModelRow]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        dice = self.dice
        self.live = [{} for _ in range(self.sources)]
        self.logs = [[] for _ in range(self.sources)]
        self.states = [[{}] for _ in range(self.sources)]
        self._skews = [dice.choice((0, 0, dice.randint(-300, 300))) for _ in range(self.sources)]
        self._grain = dice.choice(GRAINS_MS)
        self._versions = 0
        self._ids, self._uids = range(dice.randint(1, 5)), range(dice.randint(1, 5))

    def commit(self, source: int, *changes: tuple[Image, Image], empties: bool = False) -> None:
        """Commit changes of rows, or a TRUNCATE."""
        log, live = self.logs[source], self.live[source]
        stamp = (self.now + self._skews[source]) // self._grain * self._grain
        stamp = max(stamp, log[-1].stamp) if log else stamp
        log.append(Commit(stamp, source, len(log) + 1, changes, empties))
        if empties:
            live.clear()
        for old, _ in changes:
            if old is not None:
                del live[old.id]
        for _, new in changes:
            if new is not None:
                live[new.id] = new
        self.states[source].append(dict(live))

    def step(self) -> None:
        """Something happens a while later."""
        dice = self.dice
        self.now += dice.choice((0, 1, 5, 40, 300, 1_500))
        source, chosen = dice.randrange(self.sources), dice.random()
        mine = list(self.live[source].values())
        if chosen < 0.4:
            self._insert(source)
        elif chosen < 0.55 and mine:
            self.commit(source, (dice.choice(mine), None))
        elif chosen < 0.7 and mine:
            row = dice.choice(mine)
            self.commit(source, (row, self._changed(row)))
        elif chosen < 0.8 and len(mine) > 1:
            one, other = dice.sample(mine, 2)
            swapped = (self._changed(one, uid=other.uid), self._changed(other, uid=one.uid))
            self.commit(source, (one, swapped[0]), (other, swapped[1]))
        elif chosen < 0.82:
            self.commit(source, empties=True)
        elif chosen < 0.85 and mine:
            self._change_key(source, dice.choice(mine))
        elif mine:
            self._move(source, dice.choice(mine))

    def _changed(self, row: ModelRow, *, uid: int | None = None) -> ModelRow:
        self._versions += 1
        return row._replace(
            n=self._versions, user=self.dice.randrange(2), uid=row.uid if uid is None else uid
        )

    def _change_key(self, source: int, row: ModelRow) -> None:
        ids = sorted(set(self._ids) - {row.id for live in self.live for row in live.values()})
        if ids:
            self.commit(source, (row, self._changed(row)._replace(id=self.dice.choice(ids))))

    def _insert(self, source: int) -> None:
        there = [row for live in self.live for row in live.values()]
        ids = sorted(set(self._ids) - {row.id for row in there})
        uids = sorted(set(self._uids) - {row.uid for row in there})
        if ids and uids:
            dice = self.dice
            row = ModelRow(dice.choice(ids), dice.choice(uids), 0, 0)
            self.commit(source, (None, self._changed(row)))

    def _move(self, source: int, row: ModelRow) -> None:
        """Move a row, or its unique value alone, to another source; perhaps back at once."""
        others = [other for other in range(self.sources) if other != source]
        for _ in range(self.dice.choice((1, 1, 2, 3))):
            self.commit(source, (row, None))
            self.now += self.dice.choice((0, 1, 30))
            other = self.dice.choice(others)
            row = self._changed(row)
            self.commit(other, (None, row))
            others, source = [source], other


def _with_copy(world: _World, source: int) -> tuple[list[Commit], int]:
    """The log with a copy of the table in it, and the seq from which nothing is ahead.

    The log begins without its first commits: what they left comes by the copy alone.
    """
    dice, log, states = world.dice, world.logs[source], world.states[source]
    first = dice.randrange(len(log) + 1)
    seen = dice.randint(first, len(log))
    place = dice.randint(first, seen)
    stamp = log[place - 1].stamp if place else log[0].stamp if log else 0
    rows = tuple((None, row) for row in states[seen].values())
    copy = Commit(stamp, source, 0, rows, copies=True)
    whole = [*log[first:place], copy, *log[place:]]
    return (
        [
            Commit(c.stamp, source, seq, c.changes, c.empties, c.copies)
            for seq, c in enumerate(whole, 1)
        ],
        seen - first + 1,
    )


def history_of(seed: int, *, has_copies: bool = False) -> History:
    """The history of a seed; `has_copies`: rows come by copies, too, and no table is emptied."""
    dice = random.Random(seed)
    world = _World(dice, dice.choice((2, 2, 3)))
    for _ in range(dice.randint(5, 60)):
        world.step()
    logs, ends = world.logs, [0] * world.sources
    if has_copies and not any(commit.empties for log in logs for commit in log):
        copied = [_with_copy(world, source) for source in range(world.sources)]
        logs, ends = [log for log, _ in copied], [end for _, end in copied]
    commits = sorted(
        (commit for log in logs for commit in log), key=lambda c: (c.stamp, c.source, c.seq)
    )
    places = [i + 1 for i, c in enumerate(commits) if c.seq <= ends[c.source]]
    batches: list[int] = []
    while sum(batches) < len(commits):
        batches.append(dice.choice((1, 2, 5, 30)))
    return History(world.sources, commits, world.live, batches, max(places, default=0))
