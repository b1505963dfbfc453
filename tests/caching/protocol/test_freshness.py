"""What tokens prove: reads against floors, values against changes, floors joined by changes."""

import pytest

from caching.protocol import Freshness, freshness, holds, joined, lacks
from caching.protocol.freshness import holds_writes, is_not_older, oldest
from event_token import ClockUncertainty, EventToken, MysqlGtidSet
from tests.caching.protocol.tokens import OTHER_SERVER, SERVER, TRUSTED, by_shard, token


@pytest.mark.parametrize(
    ("read", "floor", "expected"),
    [
        ([token("-", 5)], [token("-", 5)], Freshness.FRESH),
        ([token("-", 6)], [token("-", 5)], Freshness.FRESH),
        ([token("-", 4)], [token("-", 5)], Freshness.OLDER),
        ([token("-", 5, sid=OTHER_SERVER)], [token("-", 5)], Freshness.UNKNOWN),
        ([], [token("-", 5)], Freshness.UNCOVERED),
        ([token("-", 5)], [], Freshness.UNCOVERED),
        ([token("-", 5)], [token("-80", 5)], Freshness.UNCOVERED),
        ([token("-80", 5)], [token("-80", 5), token("80-", 9)], Freshness.FRESH),
        ([token("-80", 5), token("80-", 8)], [token("-80", 5), token("80-", 9)], Freshness.OLDER),
        # Targets of a split that have begun: one read of the source, whose time ended before.
        ([token("-", 5, 50)], [token("-80", 1, 60), token("80-", 1, 61)], Freshness.OLDER),
        # A target that has not begun gives no time.
        ([token("-80", 1, None)], [token("-", 5, 50)], Freshness.UNKNOWN),
        ([token("-80", 1, 60)], [token("-", 5, 50)], Freshness.FRESH),
    ],
)
def test_a_read_against_a_floor(
    read: list[EventToken], floor: list[EventToken], expected: Freshness
) -> None:
    """Only what is proven on every shard that was read may be filled in."""
    assert freshness(by_shard(read), by_shard(floor), TRUSTED) is expected


@pytest.mark.parametrize(
    ("tokens", "change", "expected"),
    [
        ([token("-", 5)], token("-", 5), True),
        ([token("-", 6)], token("-", 5), True),
        ([token("-", 4)], token("-", 5), False),
        ([token("-80", 5)], token("80-", 1), False),
        ([token("-80", 4), token("80-", 9)], token("80-", 9), True),
        ([token("-", 5, sid=OTHER_SERVER)], token("-", 5), False),
        ([token("-80", 1, 60), token("80-", 1, 40)], token("-", 5, 50), False),
        ([], token("-", 1), False),
    ],
)
def test_a_value_against_a_change(
    tokens: list[EventToken], change: EventToken, *, expected: bool
) -> None:
    """A value stays only if all its tokens that overlap the change's shard hold it."""
    assert holds(by_shard(tokens), change, TRUSTED) is expected


def test_a_replay_never_lowers_a_floor() -> None:
    """R07: an older change and a repeated one leave the floor as it is."""
    floor = by_shard([token("-80", 5), token("80-", 7)])

    assert joined(floor, token("-80", 4)) == floor
    assert joined(floor, token("-80", 5)) == floor
    assert joined(floor, token("-80", 6)) == by_shard([token("-80", 6), token("80-", 7)])


def test_a_source_leaves_the_floor_when_all_targets_have_begun() -> None:
    """R11, R12: BEGIN of one target keeps the source's token, BEGIN of the last one removes it."""
    source, first, last = token("-", 5, 50), token("-80", 1, 60), token("80-", 1, 61)

    once = joined(by_shard([source]), first)
    assert once == by_shard([source, first])
    assert joined(once, last) == by_shard([first, last])
    # A change of the source that is replayed afterwards does not come back.
    assert joined(by_shard([first, last]), token("-", 4, 40)) == by_shard([first, last])


def test_diverged_histories_need_both() -> None:
    """Changes that GTID sets do not order are joined: only a read of both is fresh."""
    mine, theirs = token("-", 5), token("-", 3, 55, sid=OTHER_SERVER)
    both = joined(by_shard([mine]), theirs)["-"]

    assert both.position == mine.position.union(theirs.position)
    assert both.timestamp_us == 55
    assert freshness(by_shard([mine]), {"-": both}, TRUSTED) is Freshness.OLDER
    assert freshness({"-": both}, {"-": both}, TRUSTED) is Freshness.FRESH


def test_several_reads_hold_what_all_hold() -> None:
    """R16: the oldest token per shard; of diverged servers the transactions that both have."""
    assert oldest([token("-80", 5), token("80-", 9), token("-80", 4)]) == by_shard(
        [token("-80", 4), token("80-", 9)]
    )
    diverged = oldest([token("-", 5), token("-", 3, sid=OTHER_SERVER)])["-"]
    assert diverged == EventToken(None, "-", MysqlGtidSet())


def test_an_older_read_does_not_replace_a_value() -> None:
    """On every shard that both know, the new value has to be at least as new."""
    present = by_shard([token("-80", 5), token("80-", 7)])

    assert is_not_older(by_shard([token("-80", 5)]), present, TRUSTED)
    assert is_not_older(by_shard([token("-80", 6), token("80-", 7)]), present, TRUSTED)
    assert not is_not_older(by_shard([token("-80", 6), token("80-", 6)]), present, TRUSTED)
    assert not is_not_older(by_shard([token("-80", 9, sid=OTHER_SERVER)]), present, TRUSTED)
    assert SERVER != OTHER_SERVER


@pytest.mark.parametrize(("off_us", "is_known"), [(0, True), (5, True), (6, False), (99, False)])
def test_clocks_that_may_be_off_prove_less(off_us: int, *, is_known: bool) -> None:
    """A read 11 us from a change of another shard is neither before nor after it with 6 us."""
    clock, change = ClockUncertainty(off_us), token("-", 5, 50)
    after, before = by_shard([token("-80", 1, 61)]), by_shard([token("-80", 1, 39)])

    assert holds(after, change, clock) is is_known
    assert holds_writes(after, [change], clock) is is_known
    assert is_not_older(after, by_shard([change]), clock) is is_known
    assert lacks(before, change, clock) is is_known
    known = [Freshness.FRESH, Freshness.OLDER] if is_known else [Freshness.UNKNOWN] * 2
    assert [freshness(each, by_shard([change]), clock) for each in (after, before)] == known


def test_clocks_say_nothing_about_one_shard() -> None:
    """GTID sets decide there, and floors are joined by the order of the logs."""
    clock = ClockUncertainty(10**9)
    read, change = by_shard([token("-80", 6, 50)]), token("-80", 5, 50)

    assert holds(read, change, clock)
    assert not lacks(read, change, clock)
    assert freshness(read, by_shard([change]), clock) is Freshness.FRESH
    targets = [token("-40", 1, 51), token("40-80", 1, 51)]
    assert joined(joined(by_shard([change]), targets[0]), targets[1]) == by_shard(targets)
