"""The order of tokens: each rule by example, and its laws over generated histories."""

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from event_token import (
    ClockUncertainty,
    EventToken,
    Flavor,
    GtidSet,
    MariadbGtidSet,
    MysqlGtidSet,
    Order,
    compare,
)
from tests.event_token.histories import History, Logged
from tests.event_token.strategies import event_tokens
from tests.generated import examples

U = "3e11fa47-71ca-11e1-9e33-c80aa9429562"

TURNED = {
    Order.OLDER: Order.NEWER,
    Order.NEWER: Order.OLDER,
    Order.EQUAL: Order.EQUAL,
    Order.UNKNOWN: Order.UNKNOWN,
}

CLOCKS = (
    ClockUncertainty(),
    ClockUncertainty(uncertainty_us=5_000),
    ClockUncertainty(uncertainty_us=5_000, mariadb_longest_statement_us=2_000_000),
)


def _mysql(interval: str) -> GtidSet:
    return MysqlGtidSet.parse(f"{U}:{interval}")


def _mariadb(position: str) -> GtidSet:
    return MariadbGtidSet.parse(position)


@st.composite
def histories(
    draw: st.DrawFn, flavors: tuple[Flavor, ...], clock: ClockUncertainty, length: int
) -> list[Logged]:
    """Draw a history and return all tokens that its shards logged."""
    choices = st.tuples(st.integers(0, 7), st.integers(0, 3), st.integers(0, 5), st.integers(0, 4))
    history = History(flavors, clock)
    for choice in draw(st.lists(choices, min_size=length // 2, max_size=length)):
        history.play(choice)
    return history.logged


_any_setting = st.tuples(
    st.sampled_from(
        ((Flavor.MYSQL,), (Flavor.MARIADB,), (Flavor.MYSQL, Flavor.MARIADB, Flavor.MARIADB))
    ),
    st.sampled_from(CLOCKS),
)


@given(event_tokens, event_tokens, st.sampled_from(CLOCKS))
def test_turned_around_the_answer_is_turned(
    a: EventToken, b: EventToken, clock: ClockUncertainty
) -> None:
    """For any two tokens at all, compare is antisymmetric, and never raises."""
    assert compare(b, a, clock) is TURNED[compare(a, b, clock)]
    assert compare(a, a, clock) is Order.EQUAL


@given(st.data())
@settings(max_examples=examples(150))
def test_what_is_decided_is_true(data: st.DataObject) -> None:
    """In any history within the clocks' uncertainty, every decided answer is the true order."""
    flavors, clock = data.draw(_any_setting)
    logged = data.draw(histories(flavors, clock, 30))

    for a, b in permutations(logged, 2):
        match compare(a.token, b.token, clock):
            case Order.OLDER:
                assert a.truth < b.truth
            case Order.NEWER:
                assert a.truth > b.truth
            case Order.EQUAL:
                assert a.truth == b.truth
            case Order.UNKNOWN:
                pass


@given(st.data())
@settings(max_examples=examples(80))
def test_decided_answers_do_not_contradict(data: st.DataObject) -> None:
    """In any history, with clocks as far off as they like, decided answers form no circle."""
    flavors, real_clock = data.draw(_any_setting)
    logged = data.draw(histories(flavors, real_clock, 20))
    tokens = [each.token for each in logged]
    known_clock = data.draw(st.sampled_from(CLOCKS))
    order = {
        (i, j): compare(a, b, known_clock)
        for i, a in enumerate(tokens)
        for j, b in enumerate(tokens)
    }

    for i, j, k in permutations(range(len(tokens)), 3):
        if order[i, j] is Order.EQUAL and order[j, k] is not Order.UNKNOWN:
            assert order[i, k] in {order[j, k], Order.UNKNOWN}
        elif order[i, j] is Order.OLDER and order[j, k] in {Order.OLDER, Order.EQUAL}:
            assert order[i, k] in {Order.OLDER, Order.UNKNOWN}


@given(histories((Flavor.MYSQL,), ClockUncertainty(), 20))
@settings(max_examples=examples(80))
def test_order_is_transitive_on_mysql(logged: list[Logged]) -> None:
    """With trusted clocks, older than older is older, among all producers' tokens with a time."""
    tokens = [each.token for each in logged if each.token.timestamp_us is not None]
    order = {(i, j): compare(a, b) for i, a in enumerate(tokens) for j, b in enumerate(tokens)}

    for i, j, k in permutations(range(len(tokens)), 3):
        if order[i, j] is Order.OLDER and order[j, k] is Order.OLDER:
            assert order[i, k] is Order.OLDER


def test_same_shard_is_ordered_by_position_not_by_time() -> None:
    """Rule 1: on one shard the GTID sets decide, even where time says otherwise."""
    before = EventToken(9, "-80", _mysql("1-5"))
    after = EventToken(3, "-80", _mysql("1-6"))

    assert compare(after, before) is Order.NEWER
    assert compare(before, after) is Order.OLDER
    assert compare(before, EventToken(7, "-80", _mysql("1-5"))) is Order.EQUAL


def test_same_shard_with_split_histories_is_unknown() -> None:
    """Rule 1: sets that do not include each other are UNKNOWN, whatever the times say."""
    mine = EventToken(1, "-80", _mysql("1-5:7"))
    other = EventToken(9_000_000_000, "-80", _mysql("1-6"))

    assert compare(mine, other) is Order.UNKNOWN
    assert (
        compare(EventToken(1, "-", _mariadb("0-1-5")), EventToken(9, "-", _mariadb("0-2-5")))
        is Order.UNKNOWN
    )


def test_replicated_change_equals_its_source() -> None:
    """Rule 1: what a target replicated is the source's change, and is ordered there."""
    source = EventToken(3, "-", _mysql("1-5"))
    replicated = EventToken(8, "-80", _mysql("1-2"), origin=source)
    later = EventToken(2, "-", _mysql("1-6"))

    assert compare(replicated, source) is Order.EQUAL
    assert compare(replicated, later) is Order.OLDER


def test_replicated_from_two_sources_is_ordered_by_time_of_origin() -> None:
    """Rule 2 does not order two replicated changes: the merge put them as it liked."""
    first = EventToken(50, "-", _mysql("1"), origin=EventToken(9, "80-", _mysql("1-7")))
    second = EventToken(60, "-", _mysql("1-2"), origin=EventToken(4, "-80", _mysql("1-3")))

    assert compare(first, second) is Order.NEWER


def test_native_on_a_target_is_ordered_by_the_targets_log() -> None:
    """Rule 2: a native change of a serving target is ordered by its log against a copy."""
    replicated = EventToken(9, "-80", _mysql("1-5"), origin=EventToken(9, "-", _mysql("1-80")))
    native = EventToken(9, "-80", _mysql("1-6"))

    assert compare(native, replicated) is Order.NEWER
    assert compare(replicated, native) is Order.OLDER


def test_native_from_before_the_target_served_is_unknown() -> None:
    """A target's own change without a time says nothing about its sources."""
    replicated = EventToken(9, "-80", _mysql("1-5"), origin=EventToken(9, "-", _mysql("1-80")))
    early = EventToken(None, "-80", _mysql("1-6"))

    assert compare(early, replicated) is Order.UNKNOWN
    assert compare(early, EventToken(99, "80-", _mysql("1"))) is Order.UNKNOWN
    assert compare(early, EventToken(10, "-80", _mysql("1-7"))) is Order.OLDER


@pytest.mark.parametrize(
    ("a_us", "b_us", "uncertainty_us", "expected"),
    [
        (10, 11, 0, Order.OLDER),
        (11, 10, 0, Order.NEWER),
        (10, 10, 0, Order.UNKNOWN),
        (10, 15, 2, Order.OLDER),
        (10, 14, 2, Order.UNKNOWN),
        (14, 10, 2, Order.UNKNOWN),
        (15, 10, 2, Order.NEWER),
    ],
)
def test_other_shards_are_ordered_by_time_on_mysql(
    a_us: int, b_us: int, uncertainty_us: int, expected: Order
) -> None:
    """Rule 3: intervals of one microsecond, widened on both sides; equal times are UNKNOWN."""
    a = EventToken(a_us, "-80", _mysql("1-5"))
    b = EventToken(b_us, "80-", _mysql("1-5"))

    assert compare(a, b, ClockUncertainty(uncertainty_us)) is expected


@pytest.mark.parametrize(
    ("b_us", "clock", "expected"),
    [
        (1_000_000, ClockUncertainty(), Order.OLDER),
        (999_999, ClockUncertainty(), Order.UNKNOWN),
        (1_000_000, ClockUncertainty(1), Order.UNKNOWN),
        (1_000_002, ClockUncertainty(1), Order.OLDER),
        (3_999_999, ClockUncertainty(0, 3_000_000), Order.UNKNOWN),
        (4_000_000, ClockUncertainty(0, 3_000_000), Order.OLDER),
    ],
)
def test_mariadb_time_is_a_second_and_more(
    b_us: int, clock: ClockUncertainty, expected: Order
) -> None:
    """Rule 3: MariaDB's time is the second in which a statement began; it may commit later."""
    a = EventToken(0, "-80", _mariadb("0-1-5"))

    assert compare(a, EventToken(b_us, "80-", _mariadb("0-1-5")), clock) is expected
    assert compare(a, EventToken(b_us, "80-", _mysql("1")), clock) is expected


def test_longest_statement_does_not_touch_mysql() -> None:
    """MySQL's time is that of the commit, however long a statement may run."""
    clock = ClockUncertainty(mariadb_longest_statement_us=3_000_000)

    assert (
        compare(EventToken(0, "-80", _mysql("1")), EventToken(1, "80-", _mysql("1")), clock)
        is Order.OLDER
    )


def test_one_shard_of_two_flavors_is_unknown() -> None:
    """Sets of two families cannot be compared, and that is an answer, not an error."""
    assert (
        compare(EventToken(1, "-", _mysql("1")), EventToken(9, "-", _mariadb("0-1-1")))
        is Order.UNKNOWN
    )
