"""The rule of a merge, over histories, and what goes wrong with each simpler one."""

import random

import pytest

from tests.resharding.merge.histories import History, history_of
from tests.resharding.merge.model import ModelTarget, Rule, reader_behind_a_hop, unlike_changes

SEEDS = range(600)
MANY_SEEDS = range(40_000)
# How often a target's server is lost, or the applier killed, in a history with faults.
FAULTS = 0.2


def ends_right(history: History, rule: Rule) -> ModelTarget | None:
    """The target at the end of a history; None if it does not have the sources' rows."""
    target = ModelTarget(rule)
    for size in history.batches:
        target.apply(history.commits[target.place : target.place + size])
    return target if target.rows() == history.union(len(history.commits)) else None


@pytest.mark.parametrize(
    "seeds", [SEEDS, pytest.param(MANY_SEEDS, marks=pytest.mark.full)], ids=["some", "many"]
)
def test_no_row_is_lost(seeds: range) -> None:
    """At each position the table and the rows aside are the sources' rows, and all fit in the end.

    Whatever clocks, batches, kills, failovers to a replica that is behind, TRUNCATE and copies do,
    and wherever a cancel stops it.
    """
    set_aside = 0
    for seed in seeds:
        history = history_of(seed, has_copies=seed % 3 == 0)
        dice = random.Random(-seed)
        target = ModelTarget(Rule.NEWER_ASIDE)
        replica = target.copy()
        sizes = [*history.batches, *([1] * len(history.commits))]
        while target.place < len(history.commits):
            size = sizes[target.place % len(history.batches)]
            if dice.random() < FAULTS:
                target = replica.copy()  # a kill loses the batch alone
            if dice.random() < FAULTS:
                replica = target.copy()
            target.apply(history.commits[target.place : target.place + size])
            if target.place >= history.exact_at:
                assert target.rows() == history.union(target.place), seed
        assert not target.aside, seed
        assert set(target.table.values()) == {
            (source, row) for source, rows in enumerate(history.live) for row in rows.values()
        }
        set_aside += target.set_aside
    assert set_aside > len(seeds) / 10


@pytest.mark.parametrize(
    ("rule", "lost"),
    [(Rule.REPLACED, 0.1), (Rule.OWN_DELETES, 0.1), (Rule.OLDER_ASIDE, 0), (Rule.NEWER_ASIDE, 0)],
)
def test_rules_that_are_too_simple(rule: Rule, lost: float) -> None:
    """A target that forgets which row another one has pushed away loses rows."""
    wrong = [seed for seed in SEEDS if ends_right(history_of(seed), rule) is None]

    assert len(wrong) >= lost * len(SEEDS)
    assert bool(wrong) is bool(lost)


@pytest.mark.parametrize("rule", [Rule.NEWER_ASIDE, Rule.OLDER_ASIDE])
def test_a_hop_without_marks(rule: Rule) -> None:
    """What is set aside and comes back looks like changes of its own source in the target's log.

    Where it is the older row that is set aside, live rows are deleted, and by another source.
    """
    wrong = 0
    for seed in SEEDS:
        history = history_of(seed)
        target = ends_right(history, rule)
        assert target is not None
        wanted = history.union(len(history.commits))
        for place in (0, len(target.log) // 2, len(target.log) - 1):
            assert reader_behind_a_hop(history, target, place) == wanted
        wrong += bool(unlike_changes(history, target))
    assert bool(wrong) is (rule is Rule.OLDER_ASIDE)
