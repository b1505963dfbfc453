"""When a stream counts as held back: the same shards, and no progress in between."""

from topics.reading.followed_shards import Stall, Wait

BOTH = Wait("two shards are silent", ("-80", "80-"))
ONE = Wait("shard 80- is silent", ("80-",))


def test_shards_that_hold_a_stream_back_are_named_once() -> None:
    """C1: after the time given the shard is named, and not again while the same stall lasts."""
    stall = Stall(0)
    stall.observe(ONE, 7, 0)

    assert stall.news(2_000, 1_999) is None
    assert stall.news(2_000, 2_000) == "waiting for 80-: shard 80- is silent"
    assert stall.news(2_000, 9_000) is None
    assert stall.text(2_000, 9_000) == "waiting for 80-: shard 80- is silent"


def test_progress_ends_a_stall() -> None:
    """A batch, or a frontier that moves, starts the time again, and the next stall is news."""
    stall = Stall(0)
    stall.observe(ONE, 7, 0)
    assert stall.news(2_000, 2_000) is not None

    stall.observe(ONE, 8, 3_000)
    assert stall.text(2_000, 4_999) is None
    assert stall.news(2_000, 5_000) is not None

    stall.observe(None, 8, 6_000)
    assert stall.text(0, 6_000) is None


def test_only_shards_that_are_always_waited_for_are_named() -> None:
    """A shard that is slow for a moment is not the one that holds the stream back."""
    stall = Stall(0)
    stall.observe(BOTH, 7, 0)
    stall.observe(ONE, 7, 1_000)
    stall.observe(BOTH, 7, 2_000)

    assert stall.text(2_000, 2_000) == "waiting for 80-: two shards are silent"


def test_fewer_shards_are_news() -> None:
    """Who was told of both shards is told when only one of them is left, and once."""
    stall = Stall(0)
    stall.observe(BOTH, 7, 0)
    assert stall.news(2_000, 2_000) == "waiting for -80, 80-: two shards are silent"

    stall.observe(ONE, 7, 3_000)
    assert stall.news(2_000, 3_000) == "waiting for 80-: shard 80- is silent"
    stall.observe(BOTH, 7, 4_000)
    assert stall.news(2_000, 4_000) is None
