"""When a key that has live rows on two shards stops a query."""

import pytest

from sinks.errors import SameKeys
from sinks.rule.policy import OnSameKey
from sinks.same_keys import (
    SAME_KEYS_MAX,
    SameKey,
    SameKeyWatch,
    known_after,
    same_keys_of,
    same_keys_text,
)

KEY = SameKey("shop.orders", "[1]", ("-80", "80-"))
OTHER = SameKey("shop.orders", "[2]", ("-80", "80-"))
FAR_US = 2**60


def test_a_key_stops_the_query_at_the_next_frontier() -> None:
    """The DELETE of a move may come a batch after the INSERT; one frontier says nothing new."""
    watch = SameKeyWatch("lake")
    watch.see(0, ())
    watch.see(100, [KEY])
    watch.see(100, [KEY])

    with pytest.raises(SameKeys, match=r"lake: .*shop\.orders, key \[1\], on shards -80 and 80-\."):
        watch.see(200, [KEY, OTHER])


def test_a_row_that_has_moved_stops_nothing() -> None:
    """Its DELETE came with the next batch, and the next move begins again."""
    watch = SameKeyWatch("lake")
    watch.see(0, ())
    for frontier_us in range(100, 500, 100):
        watch.see(frontier_us, [KEY] if frontier_us % 200 else [OTHER])
    watch.end()


def test_a_start_catches_up_before_it_stops_again() -> None:
    """An operator may have deleted one of the rows: the DELETE is still to come."""
    watch = SameKeyWatch("lake")
    watch.see(100, [KEY])
    watch.see(200, [KEY])

    with pytest.raises(SameKeys):
        watch.see(FAR_US, [KEY])
    watch = SameKeyWatch("lake")
    watch.see(100, [KEY])
    watch.see(FAR_US, [])
    watch.end()


def test_a_run_to_the_end_stops_if_the_key_was_there_before() -> None:
    """A run for cron may end before it has reached its own start."""
    watch = SameKeyWatch("lake")
    watch.see(100, [KEY])
    watch.end()
    watch.see(200, [KEY])

    with pytest.raises(SameKeys, match=r"--key-scope shard; or .*--on-same-key newest"):
        watch.end()


def test_the_newest_row_may_be_accepted() -> None:
    """Then such keys stop nothing."""
    watch = SameKeyWatch("lake", OnSameKey.NEWEST)
    for frontier_us in (100, 200, FAR_US):
        watch.see(frontier_us, [KEY])
    watch.end()


def test_keys_are_kept_until_their_rows_are_compared_again() -> None:
    """Other keys stay; of very many, some are enough."""
    assert known_after([KEY, OTHER], {("shop.orders", "[1]")}, []) == (OTHER,)
    assert known_after([OTHER], {("shop.orders", "[1]")}, [KEY]) == (KEY, OTHER)
    many = [SameKey("shop.orders", f"[{i}]", ("-80", "80-")) for i in range(2 * SAME_KEYS_MAX)]
    assert len(known_after([], (), many)) == SAME_KEYS_MAX
    assert same_keys_of(same_keys_text([OTHER, KEY])) == (KEY, OTHER)
