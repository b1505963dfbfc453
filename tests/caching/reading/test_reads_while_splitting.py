"""Random histories of reads of a keyspace while a shard is split: what each answer must hold."""

import random
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from caching.errors import NotServing, Stale, TooOld
from caching.reading import keyspace_reader
from caching.reading.fresh_reader import FreshReader
from caching.reading.keyspace_reader import KeyspaceReader, KeyspaceRows
from caching.reading.own_writes import ReadYourWrites
from caching.reading.reader import FreshRows
from caching.reading.snapshots import ReadTransaction
from tests.caching.reading.keyspace_world import (
    OTHER,
    ROWS,
    SOURCE,
    TARGETS,
    World,
    model_reader,
    write_own,
)
from topics.errors import BrokersUnreachable
from topics.records.values import EPOCH_UTC

HISTORIES = 40
STEPS = 40
MAX_AGE_MS = 2_000
# A query of the model: it answers with the names and versions of rows.
QUERY = "SELECT"


class History:
    """Reads of one world and their answers; `violations`: those that hold less than they must."""

    def __init__(self, seed: int, patch: pytest.MonkeyPatch) -> None:
        """Create the world."""
        self.choose = random.Random(seed).randrange
        self.world = World(self.choose)
        self.patch = patch
        self.session = ReadYourWrites()
        self.written = dict.fromkeys(ROWS, 0)
        self.answers: Counter[Any] = Counter()
        self.violations: list[str] = []

    def run(self) -> None:
        """Write as a session, and read by every demand."""
        with model_reader(self.world, self.patch) as reader:
            for _ in range(STEPS):
                self.world.pass_time()
                if self.choose(3):
                    self._read(reader)
                    continue
                row = self._row()
                with suppress(BrokersUnreachable):
                    version = write_own(self.world, reader, self.session, row)
                    self.written[row] = version or self.written[row]

    def _row(self) -> str:
        return list(ROWS)[self.choose(len(ROWS))]

    def _read(self, reader: KeyspaceReader) -> None:
        begun_us = self.world.now_us
        past = EPOCH_UTC + timedelta(microseconds=begun_us - self.choose(500_000))
        demands: list[dict[str, Any]] = [
            {},
            {"server": "primary"},
            {"at_least": self.session},
            {"at_least": past},
            {"max_age_ms": MAX_AGE_MS},
        ]
        demand = demands[self.choose(len(demands))]
        row = self._row()
        found: FreshRows | KeyspaceRows
        shards: tuple[str, ...]
        try:
            if self.choose(2):
                found = reader.execute(QUERY, (row,), on=ROWS[row], **demand)
                wanted, shards = {row}, (found.token.shard,) if found.token else ()
            else:
                found = reader.scatter(QUERY, **demand)
                wanted, shards = set(ROWS), tuple(found.tokens)
                if set(shards) not in ({SOURCE, OTHER}, {*TARGETS, OTHER}):
                    self.violations.append(f"{shards} were read")
        except (NotServing, Stale, TooOld, BrokersUnreachable) as fault:
            self.answers[type(fault)] += 1
            return
        self.answers.update((shard, *demand) for shard in shards)
        self._check(found, wanted, demand, begun_us)

    def _check(
        self,
        found: FreshRows | KeyspaceRows,
        wanted: set[str],
        demand: dict[str, Any],
        begun_us: int,
    ) -> None:
        """Compare an answer with what was committed by the times that it has to hold."""
        versions = dict(found.rows)
        if versions.keys() != wanted or len(found.rows) != len(wanted):
            self.violations.append(f"{found} for {wanted}")
            return
        at_least = demand.get("at_least")
        held_us = [0.0]
        if found.complete_to is not None and found.age_ms is not None:
            held_us.append((found.complete_to - EPOCH_UTC) / timedelta(microseconds=1))
            held_us.append(begun_us - found.age_ms * 1_000)
            self.answers["timed"] += 1
        if "server" in demand:
            held_us.append(begun_us)
        if "max_age_ms" in demand:
            held_us.append(begun_us - MAX_AGE_MS * 1_000)
        if at_least not in {None, self.session}:
            held_us.append((at_least - EPOCH_UTC) / timedelta(microseconds=1))
        for row, version in versions.items():
            must_have = self.world.version_at(row, max(held_us))
            if at_least is self.session:
                must_have = max(must_have, self.written[row])
            if version < must_have:
                self.violations.append(f"{row}@{version} instead of @{must_have}: {found}")


def played(seed: int, patch: pytest.MonkeyPatch) -> History:
    """A random history."""
    history = History(seed, patch)
    history.run()
    return history


def test_answers_hold_what_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row once, own writes, all up to the time and the age, and all there is on a primary.

    Sources and targets answer by every demand.
    """
    answers: Counter[Any] = Counter()
    for seed in range(HISTORIES):
        history = played(seed, monkeypatch)
        assert history.violations == [], f"seed {seed}"
        answers += history.answers

    for shard in (SOURCE, *TARGETS):
        for demand in ((), ("server",), ("at_least",), ("max_age_ms",)):
            assert answers[(shard, *demand)] > 0, (shard, demand)
    for kind in (TooOld, "timed"):
        assert answers[kind] > 0, kind


def without_journal(patch: pytest.MonkeyPatch) -> None:
    """Read servers that do not prove that their shard serves."""

    class Unproven(FreshReader):
        def __init__(self, *arguments: Any, was_target: bool | None, **options: Any) -> None:
            del was_target
            super().__init__(*arguments, **options)

    patch.setattr(keyspace_reader, "FreshReader", Unproven)


def without_uncertainty(patch: pytest.MonkeyPatch) -> None:
    """Take this host's clock for true, where ages are measured."""
    bound = ReadTransaction.bound
    patch.setattr(
        ReadTransaction,
        "bound",
        lambda opening, begun_us, opened_us, _off_us: bound(opening, begun_us, opened_us, 0),
    )


@pytest.mark.parametrize("leave_out", [without_journal, without_uncertainty])
def test_what_is_left_out_is_missed(leave_out: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a rule, the same histories have answers that hold less than they say."""
    leave_out(monkeypatch)

    assert any(played(seed, monkeypatch).violations for seed in range(HISTORIES))
