"""Which shards have stood still, as the page lists them."""

from shardstream.status.refresh import STOPS_MAX, Stop, next_stops
from tests.shardstream.status.views import now_us, two_shards
from topics.fleet.view import keyspace_view
from topics.keyspace.topology import ShardEntry, Topology


def test_a_stop_begins_and_ends() -> None:
    """One entry per stop, from the last progress to the look that sees it advance again."""
    first = next_stops((), two_shards("shop", high=41), 1_000)
    same = next_stops(first, two_shards("shop", high=42), 2_000)
    over = next_stops(same, two_shards("shop"), 3_000)
    second = next_stops(over, two_shards("shop", low=41, high=41), 4_000)

    assert [(stop.shard, stop.until_us, stop.server) for stop in first] == [
        ("80-", None, "db-a:3306")
    ]
    assert same == first
    assert [(stop.since_us, stop.until_us) for stop in over] == [(first[0].since_us, 3_000)]
    assert [(stop.shard, stop.until_us) for stop in second] == [
        ("-80", None),
        ("80-", None),
        ("80-", 3_000),
    ]


def test_only_the_last_stops_are_kept() -> None:
    """A night of restarts does not fill the memory."""
    stops = tuple(Stop("-80", n, n + 1, "db-a:3306") for n in range(STOPS_MAX))

    found = next_stops(stops, two_shards("shop", high=41), 1_000)

    assert len(found) == STOPS_MAX
    assert found[0].shard == "80-"
    assert found[-1].since_us == STOPS_MAX - 2


def test_a_shard_that_has_never_written_has_not_stopped() -> None:
    """A shard that waits for its first producer is in the sentence, not among the stops."""
    view = keyspace_view(Topology("shop", 0, (ShardEntry("-"),)), {}, now_us())

    assert view.held_by == ("-",)
    assert next_stops((), view, 1_000) == ()
