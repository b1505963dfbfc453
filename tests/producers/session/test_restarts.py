"""When another session would not help: what is counted, and what counts as getting on."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from databases.errors import LoginRefused, ServerLost
from databases.server import OUTAGE_S
from event_token import Rebuild, Retry, ShardstreamError, UsageError
from producers.decoder.errors import RolledBack
from producers.errors import AnswerTooLate, PublisherSpent, StopsBehindOthers, TransactionTooLong
from producers.session.supervisor import (
    LASTS_S,
    RESTARTS_IN_PLACE_MAX,
    Ended,
    Restarts,
    may_pass,
)
from topics.errors import NoBrokerAnswers
from topics.kafka.errors import AuthenticationFailed, LoginEnded, TopicMissing

HERE = Ended("0-1-7", streams=True, is_live=False, rows=0, lasted_s=1.0)
FAULTS: list[ShardstreamError] = [
    Rebuild("a"),
    Retry("b"),
    PublisherSpent("c"),
    ServerLost("d"),
    TopicMissing("e"),
    RolledBack("0-1-8"),
    StopsBehindOthers("0-1-9", UsageError("f")),
]


@given(
    st.lists(st.sampled_from(FAULTS), min_size=RESTARTS_IN_PLACE_MAX + 3, max_size=40),
    st.lists(st.booleans(), min_size=40, max_size=40),
)
def test_sessions_that_do_not_get_on_are_bounded(
    faults: list[ShardstreamError], committed: list[bool]
) -> None:
    """However faults mix, and whatever a session commits before it fails in the same place."""
    restarts = Restarts(0.0, OUTAGE_S)
    enough = []
    for number, fault in enumerate(faults):
        restarts.add(fault, replace(HERE, rows=int(committed[number])), float(number))
        enough.append(restarts.are_enough(float(number)))

    # A rollback and a stop behind others have an answer once.
    assert any(enough[: RESTARTS_IN_PLACE_MAX + 3])
    assert not any(enough[:RESTARTS_IN_PLACE_MAX])


@pytest.mark.parametrize(
    "got_on",
    [
        replace(HERE, position="0-1-8"),
        replace(HERE, is_live=True),
        replace(HERE, rows=1, lasted_s=LASTS_S),
    ],
    ids=["moved", "live", "copies"],
)
def test_a_session_that_gets_on_begins_the_count_again(got_on: Ended) -> None:
    """The position has moved, or was that of the server; or a copy has gone on for long."""
    restarts = Restarts(0.0, OUTAGE_S)
    for _ in range(RESTARTS_IN_PLACE_MAX):
        restarts.add(Rebuild(""), HERE, 1.0)
    restarts.add(Rebuild(""), got_on, 2.0)

    assert (restarts.count, restarts.are_enough(2.0)) == (1, False)


def test_an_outage_is_bounded_by_time() -> None:
    """No server, or none that takes the password; a session that streamed ends an outage."""
    away = Ended("", streams=False, is_live=False, rows=0, lasted_s=0.1)
    for fault in (ServerLost(""), LoginRefused(""), LoginEnded("")):
        restarts = Restarts(0.0, OUTAGE_S)
        restarts.add(fault, HERE, 100.0)
        for number in range(1_000):
            restarts.add(fault, away, 100.0 + number * OUTAGE_S / 1_000)
        assert not restarts.are_enough(100.0 + OUTAGE_S)
        assert restarts.are_enough(101.0 + OUTAGE_S)


def test_a_transaction_that_is_too_long_twice_is_enough() -> None:
    """The brokers may have ended the first one; each attempt takes a quarter of an hour."""
    restarts = Restarts(0.0, OUTAGE_S)
    restarts.add(TransactionTooLong(""), HERE, 1.0)
    assert not restarts.are_enough(1.0)
    restarts.add(TransactionTooLong(""), HERE, 2.0)
    assert restarts.are_enough(2.0)


def test_rollbacks_of_other_transactions_are_no_restarts_in_one_place() -> None:
    """The next session leaves the rows of each out; a second time would be one."""
    restarts = Restarts(0.0, OUTAGE_S)
    for number in range(100):
        restarts.add(RolledBack(f"0-1-{number}"), HERE, 1.0)
    assert (restarts.count, restarts.pause_s(RolledBack(""))) == (0, 0.0)
    restarts.add(RolledBack("0-1-99"), HERE, 1.0)
    assert restarts.count == 1


def test_a_question_that_is_not_answered_yet_is_no_restart_in_one_place() -> None:
    """The next session goes on with it, so it ends; other faults are counted beside it."""
    restarts = Restarts(0.0, OUTAGE_S)
    for _ in range(100):
        restarts.add(AnswerTooLate(""), HERE, 1.0)
    assert (restarts.count, restarts.are_enough(1.0)) == (0, False)
    for _ in range(RESTARTS_IN_PLACE_MAX + 1):
        restarts.add(AnswerTooLate(""), HERE, 1.0)
        restarts.add(Rebuild(""), HERE, 1.0)
    assert restarts.are_enough(1.0)


def test_what_may_pass() -> None:
    """Brokers that are away may; a password that never worked does not."""
    for fault in (*FAULTS, NoBrokerAnswers(""), LoginEnded("")):
        assert may_pass(fault, has_streamed=False)
    assert not may_pass(UsageError(""), has_streamed=True)
    assert may_pass(LoginRefused(""), has_streamed=True)
    for refused in (LoginRefused(""), AuthenticationFailed("")):
        assert not may_pass(refused, has_streamed=False)
