"""The checks of the demo's steps notice what they are for."""

import pytest

from shardstream.demo.cached.shop_cache import Answer, Origin
from shardstream.demo.cached.story import Seen, returns

OLD, NEW = "10.00", "10.10"


def _seen(*answers: tuple[Origin, str]) -> list[Seen]:
    return [
        Seen(at, Answer({"price": price}, origin)) for at, (origin, price) in enumerate(answers)
    ]


def test_old_answers_of_a_replica_are_allowed() -> None:
    """Old until it is invalidated, then as old as the replica is, then new for good."""
    seen = _seen(("cache", OLD), ("replica", OLD), ("primary", NEW), ("cache", NEW))

    assert returns(seen, NEW) == []


@pytest.mark.parametrize(
    "seen",
    [
        _seen(("cache", OLD), ("replica", OLD), ("cache", OLD), ("cache", NEW)),
        _seen(("cache", OLD), ("primary", NEW), ("cache", OLD)),
        _seen(("cache", OLD), ("cache", OLD)),
        _seen(("cache", OLD), ("replica", OLD)),
    ],
)
def test_an_old_answer_that_comes_back_is_noticed(seen: list[Seen]) -> None:
    """After it was removed, the cache has the old price no more; and in the end it has the new."""
    assert returns(seen, NEW) != []
