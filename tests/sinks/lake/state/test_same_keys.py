"""Which keys a target knows to have live rows on several shards, after each batch."""

from pathlib import Path

import pytest

from sinks.lake.state.frontiers import Frontiers
from sinks.rule.policy import OnSameKey
from sinks.same_keys import SameKey
from tests.sinks.lake.state.batch_queries import Query
from tests.sinks.rule.batches import Source, change, statement
from topics.records.vevent import Row, VEvent

A, B = b"\x10", b"\x90"
BOTH = (SameKey("shop.orders", "[1]", ("-80", "80-")),)


@pytest.fixture
def query(tmp_path: Path) -> Query:
    """A query that has a row of each shard with key 1, and one with key 2."""
    found = Query(tmp_path, Source())
    apply(found, *(change("-80", i, 100, None, order(i), ids=(None, A)) for i in (1, 2)))
    assert same_keys(found) == ()
    apply(found, change("80-", 1, 200, None, order(1), ids=(None, B)))
    return found


def order(number: int, value: int = 7) -> Row:
    return {"id": number, "value": value}


def apply(query: Query, *events: VEvent) -> None:
    query.run(query.source.rows(events))


def same_keys(query: Query) -> tuple[SameKey, ...]:
    newest = Frontiers(query.target.path, {}).newest()
    assert newest is not None
    return newest.same_keys


def test_a_key_is_known_until_one_of_its_rows_is_gone(query: Query) -> None:
    """Changes of other keys, and of the row itself, leave it known; a DELETE ends it."""
    assert same_keys(query) == BOTH
    apply(query, change("-80", 3, 300, order(2), order(2, 8), ids=(A, A)))
    assert same_keys(query) == BOTH
    apply(query, change("-40", 1, 400, order(1), order(1, 8), ids=(A, A)))
    assert same_keys(query) == (SameKey("shop.orders", "[1]", ("-40", "80-")),)
    apply(query, change("80-", 2, 500, order(1), None, ids=(B, None)))

    assert same_keys(query) == ()


@pytest.mark.parametrize("shard", ["-80", "80-"])
def test_a_truncate_of_either_shard_ends_it(query: Query, shard: str) -> None:
    """The row of the other shard is the only one left, whether it was hidden or not."""
    apply(query, statement(shard, 9, 300, "TRUNCATE orders"))

    assert same_keys(query) == ()


def test_a_row_that_moves_within_a_batch_is_never_known(query: Query) -> None:
    """INSERT and DELETE in one batch, whatever the clocks say."""
    apply(
        query,
        change("80-", 2, 300, None, order(2), ids=(None, B)),
        change("-80", 4, 310, order(2), None, ids=(A, None)),
    )

    assert same_keys(query) == BOTH


def test_a_query_that_shows_the_newest_row_lists_no_keys(query: Query) -> None:
    """Nobody waits for the list."""
    query.choose(on_same_key=OnSameKey.NEWEST)
    apply(query, change("-80", 3, 300, order(1), order(1, 8), ids=(A, A)))

    assert same_keys(query) == ()
