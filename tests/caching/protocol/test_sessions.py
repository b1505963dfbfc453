"""Rule 15 in histories of sessions that write on several shards, through splits and merges."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caching.protocol import holds
from caching.protocol.freshness import Tokens
from event_token import ClockUncertainty, EventToken, Flavor, Order, ShardName, compare
from tests.caching.protocol.sessions import Rule, SessionHistory
from tests.caching.protocol.tokens import TRUSTED
from tests.generated import examples

STEPS = 120
HISTORIES = 100

AT_LEAST = {Order.NEWER, Order.EQUAL}


def some_token_overlaps(tokens: Tokens, writes: tuple[EventToken, ...]) -> bool:
    """Stricter: a write on a shard that no row was read on makes a miss, too."""
    return all(holds(tokens, write, TRUSTED) for write in writes)


def same_shard_alone(tokens: Tokens, writes: tuple[EventToken, ...]) -> bool:
    """Wrong: only the token of the write's own shard counts, so a reshard hides the write."""
    return all(
        compare(tokens[write.shard], write) in AT_LEAST for write in writes if write.shard in tokens
    )


def unknown_passes(tokens: Tokens, writes: tuple[EventToken, ...]) -> bool:
    """Wrong: what is not proven to be older passes."""
    return not any(
        compare(token, write) is Order.OLDER
        for write in writes
        for token in tokens.values()
        if overlap(token.shard, write.shard)
    )


def overlap(shard: str, other: str) -> bool:
    return ShardName.parse(shard).key_range.overlaps(ShardName.parse(other).key_range)


def played(
    seed: int, flavor: Flavor, *rules: Rule, clock: ClockUncertainty = TRUSTED
) -> tuple[SessionHistory, list[list[bool]]]:
    """A random history, and what the rules answered."""
    history = SessionHistory(random.Random(seed).randrange, flavor, clock)
    return history, [answers for answers in history.run(STEPS, *rules) if answers]


@pytest.mark.parametrize("flavor", list(Flavor))
def test_sessions_read_their_writes_on_all_shards(flavor: Flavor) -> None:
    """No stale hit and no stale fill; and hits that a write elsewhere would have refused."""
    more = hits = fills = 0
    for seed in range(HISTORIES):
        history, answers = played(seed, flavor, some_token_overlaps)
        assert history.violations == [], f"seed {seed}"
        fills += history.fills
        for is_old_hit, is_hit, _ in answers:
            assert is_hit or not is_old_hit, f"seed {seed}"
            hits += is_hit
            more += is_hit and not is_old_hit

    assert fills > HISTORIES
    assert hits > more > HISTORIES


@pytest.mark.parametrize("flavor", list(Flavor))
def test_clocks_that_may_be_off_only_take_hits_away(flavor: Flavor) -> None:
    """No stale hit and no stale fill, and every hit is one with clocks that are trusted, too."""
    hits = fills = fewer = 0
    for seed in range(HISTORIES):
        trusting, of_trusting = played(seed, flavor)
        history, answers = played(seed, flavor, clock=ClockUncertainty(3_000_000))
        assert history.violations == [], f"seed {seed}"
        fills += history.fills
        fewer += history.fills < trusting.fills
        for (was_hit, _), (is_hit, _) in zip(of_trusting, answers, strict=True):
            assert was_hit or not is_hit, f"seed {seed}"
            hits += is_hit
            fewer += was_hit and not is_hit

    assert min(hits, fills) > HISTORIES
    assert fewer


@settings(max_examples=examples(50))
@given(choices=st.data(), flavor=st.sampled_from(Flavor))
def test_session_histories_that_shrink(choices: st.DataObject, flavor: Flavor) -> None:
    """The same over histories that Hypothesis chooses, so that a failure is short."""
    history = SessionHistory(lambda below: choices.draw(st.integers(0, below - 1)), flavor)
    history.run(STEPS // 2)

    assert history.violations == []


@pytest.mark.parametrize("wrong", [same_shard_alone, unknown_passes])
def test_a_weaker_rule_is_caught(wrong: Rule) -> None:
    """Each of the two returns a value that lacks a session's own write."""
    caught = 0
    for seed in range(HISTORIES):
        _, answers = played(seed, Flavor.MYSQL, wrong)
        caught += any(is_wrong_hit and is_stale for is_wrong_hit, _, is_stale in answers)

    assert caught
