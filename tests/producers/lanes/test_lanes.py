"""What the model of lanes shows: nothing is lost, repeated or stuck, and each rule is needed."""

from random import Random
from typing import Final

import pytest

from tests.producers.lanes.kafka import NOBODY
from tests.producers.lanes.lanes import (
    NOWHERE,
    Action,
    Faults,
    Model,
    Operation,
    Rules,
    Setting,
)
from tests.producers.state_search import Found, Search


def fences(lane: int, ids: int = 2) -> tuple[Operation, ...]:
    """Take all ids of a lane, as an operator's command does it."""
    return tuple(Operation(Action.FENCE, 0, lane, number) for number in range(ids))


def move(shard: int, old: int, new: int, ids: int = 2) -> tuple[Operation, ...]:
    """The command that moves a shard to another lane."""
    return (
        Operation(Action.TOPOLOGY, shard, NOWHERE),
        *fences(old, ids),
        Operation(Action.CHECK, shard, old),
        Operation(Action.STABLE, shard, old),
        Operation(Action.SETTLE, shard, old),
        Operation(Action.COMMIT, shard, old),
        Operation(Action.STABLE, shard, old),
        Operation(Action.TOPOLOGY, shard, new),
        *fences(new, ids),
    )


def comes(shard: int, lane: int, ids: int = 2) -> tuple[Operation, ...]:
    """The target of a reshard comes, and a command appends a mark to its log."""
    return (
        Operation(Action.TOPOLOGY, shard, lane),
        *fences(lane, ids),
        Operation(Action.CHECK, shard, lane),
        Operation(Action.STABLE, shard, lane),
        Operation(Action.MARK, shard, lane),
        Operation(Action.COMMIT, shard, lane),
        Operation(Action.STABLE, shard, lane),
        *fences(lane, ids),
    )


def goes(shard: int, lane: int, ids: int = 2) -> tuple[Operation, ...]:
    """The source of a reshard goes, once its log has all that it will ever have."""
    return (
        Operation(Action.OVER, shard, lane),
        Operation(Action.TOPOLOGY, shard, NOWHERE),
        *fences(lane, ids),
    )


SETTINGS: Final = {
    "zombies": Setting((0, 0), Faults(assignments=1)),
    "zombies that own again": Setting((0,), Faults(assignments=2)),
    "deaths": Setting((0, 0), Faults(deaths=1, expiries=1)),
    "late markers": Setting((0,), Faults(assignments=1, late=1)),
    "lost markers": Setting((0,), Faults(deaths=1, lost=2)),
    "three ids": Setting((0,), Faults(lost=1), ids=3, rows=(2,)),
    "a move": Setting((0,), Faults(), lane_count=2, script=move(0, 0, 1)),
    "by hand": Setting((0, 0), Faults(), rows=(1, 0), hand=0),
    "a reshard": Setting((NOWHERE,), Faults(), script=comes(0, 0)),
    "a reader": Setting((0,), Faults(assignments=1), has_reader=True),
}

LEFT_OUT: Final = {
    "fences beats alone": (Rules(fences="beats"), "zombies", "no producer: WAITING"),
    "does not look whether it still has the first id": (
        Rules(checks=False),
        "zombies",
        "is before",
    ),
    "fences rows alone": (Rules(fences="rows"), "zombies", "no producer: WAITING"),
    "reads before the last stable offset is the end": (
        Rules(waits=False),
        "late markers",
        "disagree|has records",
    ),
    "waits for what others have open": (
        Rules(gives_up=False),
        "zombies",
        "no producer: WAITING",
    ),
    "does not abort what is open in beats": (
        Rules(covers_beats=False),
        "lost markers",
        "no producer: WAITING",
    ),
    "goes on from the heads of progress alone": (Rules(reads_beats=False), "zombies", "is before"),
    "drops a lane for good": (Rules(returns=False), "zombies", "no producer: DROPPED"),
    "moves a shard and fences the old lane alone": (Rules(moves="old"), "a move", "serves"),
    "moves a shard and fences the new lane alone": (Rules(moves="new"), "a move", "has records"),
    "moves a shard without its last head": (Rules(settles=False), "a move", "is before"),
    "changes a shard's id before all is visible": (
        Rules(keeps_id=False),
        "three ids",
        "has records|shows",
    ),
    "leaves an idle shard's progress open": (Rules(heals=False), "lost markers", "stands still"),
    "applies heads without their seq": (Rules(waits_for_seq=False), "a reader", "frontier"),
}


LARGE: Final = Setting(
    (0, 0, 1, NOWHERE),
    Faults(assignments=4, deaths=1, late=1, lost=1, expiries=1),
    lane_count=3,
    processes=3,
    ids=3,
    rows=(3, 1, 1, 1),
    hand=1,
    script=(*move(0, 0, 2, 3), *comes(3, 2, 3), *goes(2, 1, 3)),
    has_reader=True,
)
WALKS: Final = 12
STEPS: Final = 150


@pytest.mark.parametrize("name", SETTINGS)
def test_every_state_of_a_small_setting_is_right_and_comes_to_rest(name: str) -> None:
    """All interleavings of calls and faults: served once, and no lane is taken over twice."""
    setting = SETTINGS[name]
    searched = Search(Model(setting)).everything()

    # Each call by which a command, or a producer by hand, fences a lane may cost one more.
    others = sum(op.action is Action.FENCE for op in setting.script)
    others += setting.ids * (setting.hand != NOBODY)
    assert searched.takeovers <= setting.lane_count + others


@pytest.mark.parametrize("rule", LEFT_OUT)
def test_each_rule_is_needed(rule: str) -> None:
    """A process that does not keep the rule breaks a property in some state."""
    rules, setting, broken = LEFT_OUT[rule]

    with pytest.raises(Found, match=broken):
        Search(Model(SETTINGS[setting], rules)).everything()


def test_random_histories_of_more_lanes_end_right() -> None:
    """Three processes and lanes, with a move, a reshard, a producer by hand and all faults."""
    search = Search(Model(LARGE))
    for seed in range(WALKS):
        search.walk(Random(seed), STEPS)
