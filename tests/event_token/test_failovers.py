"""What positions of MariaDB prove where failovers lose transactions."""

from itertools import pairwise, permutations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from event_token import EventToken, MariadbGtidSet, Order, compare
from tests.event_token.mariadb_servers import Cluster, Written
from tests.generated import examples

# What a token says, and the transactions that it stands for.
Claim = tuple[EventToken, frozenset[Written]]

_choices = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 2), st.integers(0, 3)), min_size=8, max_size=40
)


def _claims(cluster: Cluster) -> list[Claim]:
    """A read of each server, its newest write without any trail, and the primary's log."""
    found: list[Claim] = []
    for server in cluster.servers:
        truth = frozenset(server.history)
        found.append((_token(server.position()), truth))
        if server.history:
            bare = MariadbGtidSet.of({0: server.history[-1]})
            found.append((_token(bare), truth))
    log = _token(cluster.primary.logged_position())
    return [*found, (log, frozenset(cluster.primary.history))]


def _token(position: MariadbGtidSet) -> EventToken:
    return EventToken(None, "-", position)


def _check(claims: list[Claim]) -> None:
    for (a, truth_a), (b, truth_b) in permutations(claims, 2):
        match compare(a, b):
            case Order.NEWER | Order.EQUAL:
                assert truth_a >= truth_b, (str(a.position), str(b.position))
            case Order.OLDER:
                assert truth_a <= truth_b, (str(a.position), str(b.position))
            case Order.UNKNOWN:
                pass


@given(choices=_choices, logs_updates=st.booleans())
@settings(max_examples=examples(300))
def test_no_position_passes_for_a_history_that_it_lacks(
    choices: list[tuple[int, int, int]], *, logs_updates: bool
) -> None:
    """Whatever fails over, is lost or written on a demoted server: reads, own writes and logs."""
    cluster = Cluster(logs_updates=logs_updates)
    claims: list[Claim] = []
    for choice in choices:
        cluster.play(choice)
        claims += [each for each in _claims(cluster) if each not in claims]

    _check(claims)


@given(_choices)
@settings(max_examples=examples(200))
def test_logs_tell_histories_apart_whatever_ids_come_back(
    choices: list[tuple[int, int, int]],
) -> None:
    """A log names each change of writer, so it does not take a lost number for a later reign's.

    Unless the very GTID is given again, which nothing tells but its commit time.
    """
    cluster = Cluster(new_ids=False)
    claims: list[Claim] = []
    for choice in choices:
        cluster.play(choice)
        each = cluster.primary
        claims.append((_token(each.logged_position()), frozenset(each.history)))
    assume(len(set(cluster.written)) == len(cluster.written))

    _check(claims)


@given(_choices)
@settings(max_examples=examples(200))
def test_a_log_orders_all_of_its_history(choices: list[tuple[int, int, int]]) -> None:
    """Without a loss nothing is UNKNOWN among a log's positions, whoever writes in turn."""
    cluster = Cluster()
    positions: list[MariadbGtidSet] = []
    for choice in choices:
        cluster.play(choice, lossy=False)
        positions.append(cluster.primary.logged_position())

    for earlier, later in pairwise(positions):
        assert later.includes(earlier)
    for position in positions:
        assert positions[-1].includes(position)


@given(_choices, st.data())
@settings(max_examples=examples(200))
def test_reads_hold_the_log_after_a_failover(
    choices: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    """A read of any server that has the newest change is NEWER or EQUAL, from any failover on."""
    cluster = Cluster(logs_updates=data.draw(st.booleans()))
    for choice in choices:
        cluster.play(choice)
    cluster.failover(data.draw(st.integers(0, 2)), lossy=data.draw(st.booleans()))
    cluster.primary.write()
    log = cluster.primary.logged_position()
    for server in cluster.servers:
        if server.follows(cluster.primary):
            server.replicate(cluster.primary, len(cluster.primary.history))
            assert server.position().includes(log)
            assert log.includes(server.position())
    cluster.primary.write()
    assert cluster.primary.position().includes(log)


@pytest.mark.parametrize("lossy", [False, True])
def test_one_failover_leaves_nothing_unknown_that_both_have(*, lossy: bool) -> None:
    """Reads of a replica that logs its updates are ordered with all that was read before."""
    cluster = Cluster()
    old, new = cluster.primary, cluster.servers[1]
    before: list[MariadbGtidSet] = []
    for _ in range(3):
        old.write()
        cluster.replicate(1, 1)
        before += [old.position(), old.logged_position(), new.position()]
    old.write()
    cluster.failover(1, lossy=lossy)
    lost = old.position()
    new.write()

    assert all(new.position().includes(position) for position in before)
    assert new.position().includes(lost) is not lossy
    assert not lost.includes(new.position())
