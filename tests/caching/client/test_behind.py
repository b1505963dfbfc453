"""R23: a cache whose invalidator has died silently is noticed by the client's own clock."""

from dataclasses import dataclass, replace
from typing import Literal

import pytest

from caching.client.core import PositionWatch
from tests.caching.client.model import Model
from tests.caching.stores.opened import RANGE


@dataclass
class Clock:
    """A monotonic clock that stands still."""

    now_s: float = 100.0

    def __call__(self) -> float:
        return self.now_s


def publish(model: Model, text: bytes) -> None:
    """Store a position on all nodes."""
    nodes = model.opened.store.nodes
    seen = {node: model.opened.store.position(node, RANGE) for node in nodes}
    lost = model.opened.floors.publish(RANGE, {node: (seen[node], text) for node in nodes})
    assert lost == {}


@pytest.mark.parametrize("on_behind", ["serve", "bypass"])
def test_a_position_that_does_not_move(
    model: Model, on_behind: Literal["serve", "bypass"], monkeypatch: pytest.MonkeyPatch
) -> None:
    """R23: hits are counted, or no longer returned, until the position moves again."""
    clock = Clock()
    monkeypatch.setattr("time.monotonic", clock)
    model.options = replace(model.options, on_behind=on_behind, max_behind_s=10)
    cache = model.cache()
    publish(model, b"1")
    for _ in range(3):
        model.get(cache, "r20")
        clock.now_s += 4
    assert cache.counters()["hits"] == 2
    assert cache.counters()["behind_hits"] == 0

    model.get(cache, "r20")

    if on_behind == "serve":
        assert cache.counters()["behind_hits"] == 1
    else:
        assert cache.counters()["bypassed"] == 1
        assert model.queries() == 2
        assert cache.get_many(["r20"], lambda *_: {}) == {"r20": None}
        assert cache.counters()["fills"] == 1
    hits = cache.counters()["hits"]
    publish(model, b"2")
    clock.now_s += 4
    assert model.get(cache, "r20") == {"r20": 1}
    assert cache.counters()["hits"] == hits + 1
    assert cache.counters().get("behind_hits", 0) == (on_behind == "serve")


def test_positions_are_looked_at_ten_times_within_the_limit() -> None:
    """R18, R23: each place by itself; one that never existed is behind after the limit."""
    clock = Clock(0)
    watch = PositionWatch(10, clock)
    a, b = ("a", "-"), ("b", "-")

    assert watch.is_due(a)
    assert not watch.is_due(a)
    assert watch.is_due(b)
    clock.now_s = 0.9
    assert not watch.is_due(a)
    clock.now_s = 1
    assert watch.is_due(a)
    watch.look(a, b"1")
    clock.now_s = 10
    assert not watch.is_behind(b)
    clock.now_s = 11
    watch.look(a, b"1")
    assert (watch.is_behind(a), watch.is_behind(b)) == (False, True)
    clock.now_s = 11.5
    assert watch.is_behind(a)
    watch.look(a, b"2")
    assert not watch.is_behind(a)
    assert not watch.is_behind(("c", "-"))
