"""The checks of the demo's steps notice what they are for."""

import pytest

from shardstream.demo.cached.caches import Origin, PageView
from shardstream.demo.cached.steps import AgedRead, SeenPage, old_prices_back, wrong_ages

OLD, NEW = "10.00", "10.10"


def _seen(*answers: tuple[Origin, str]) -> list[SeenPage]:
    return [
        SeenPage(at, PageView({"price": price}, origin))
        for at, (origin, price) in enumerate(answers)
    ]


def test_old_answers_of_a_replica_are_allowed() -> None:
    """Old until it is invalidated, then as old as the replica is, then new for good."""
    seen = _seen(("cache", OLD), ("replica", OLD), ("primary", NEW), ("cache", NEW))

    assert old_prices_back(seen, NEW) == []


@pytest.mark.parametrize(
    "seen",
    [
        _seen(("cache", OLD), ("replica", OLD), ("cache", OLD), ("cache", NEW)),
        _seen(("cache", OLD), ("primary", NEW), ("cache", OLD)),
        _seen(("cache", OLD), ("cache", OLD)),
        _seen(("cache", OLD), ("replica", OLD)),
    ],
)
def test_an_old_answer_that_comes_back_is_noticed(seen: list[SeenPage]) -> None:
    """After it was removed, the cache has the old price no more; and in the end it has the new."""
    assert old_prices_back(seen, NEW) != []


def test_answers_that_are_too_old_are_noticed() -> None:
    """A replica may lack sales up to the age that was asked for, the primary none."""
    fresh, lagging = AgedRead(0, 100.0, is_primary=True), AgedRead(40, 2_100.0, is_primary=False)

    assert wrong_ages([fresh, lagging], None) == wrong_ages([fresh, lagging], 3_000) == []
    assert wrong_ages([fresh, lagging], 1_500) != []
    assert wrong_ages([AgedRead(1, 100.0, is_primary=True)], None) != []
