"""`shardstream topology retire`: the topics of a shard that nobody needs any more."""

import time
from collections.abc import Sequence

from event_token.errors import UsageError
from shardstream.settings.model import Settings
from topics.fleet.limits import SILENT_MS
from topics.fleet.look import FleetWatch
from topics.fleet.view import ShardView
from topics.kafka.deletion import delete_topics
from topics.keyspace.topology import UNDER_WAY, ShardState, Topology, read_topology
from topics.names import ShardTopics
from topics.readers.feed import read_readers
from topics.readers.passed import not_passed
from topics.readers.record import ReaderRecord
from topics.schemas.registry import open_schema_ids


def run_retire(settings: Settings, keyspace: str, shard: str, *, is_confirmed: bool) -> str:
    """Delete the topics of an ended shard, or say what would be deleted; return what to print.

    UsageError while something needs them: serving applications, a reshard that is not over, its
    producer, or a named reader.
    """
    client = settings.kafka_client()
    topology = read_topology(client, keyspace)
    if topology is None:
        raise UsageError(f"keyspace {keyspace} has no topology: start a producer of it first")
    check_is_over(topology, shard)
    schema_ids = open_schema_ids(client, settings.kafka.schema_registry_url)
    with FleetWatch(client, schema_ids) as fleet:
        shards = {view.shard: view for view in fleet.look(keyspace).shards}
    check_producer(keyspace, shards[shard])
    readers = read_readers(client, keyspace)
    _check_readers(keyspace, shard, not_passed(readers, topology, shard))
    topics = ShardTopics(keyspace, shard)
    # Progress goes first: a reader that starts at earliest goes back to a shard that has it.
    names = (topics.progress, topics.copy, topics.log)
    passed = f"{len(readers)} named readers have passed it" if readers else "no reader has a name"
    if not is_confirmed:
        return (
            f"{keyspace}/{shard} has ended; {passed}, and readers without a name are not known. "
            f"Run it again with --yes to delete {', '.join(names)}, with all changes from before "
            f"the reshard"
        )
    deleted = ", ".join(delete_topics(client, names)) or "nothing: its topics were gone"
    return f"{keyspace}/{shard}: {passed}; deleted {deleted}"


def check_is_over(topology: Topology, shard: str) -> None:
    """Raise UsageError unless the shard has ended, and its reshards are completed."""
    where = f"keyspace {topology.keyspace}, shard {shard}"
    states = {entry.name: entry.state for entry in topology.shards}
    if shard not in states:
        raise UsageError(f"{where}: there is no such shard (shards: {', '.join(states)})")
    if states[shard] is not ShardState.RETIRED:
        raise UsageError(f"{where}: it is {states[shard].value}, and only a RETIRED one can go")
    for reshard in topology.reshards:
        if reshard.state in UNDER_WAY and shard in {*reshard.sources, *reshard.targets}:
            raise UsageError(
                f"{where}: reshard {reshard.reshard_id} is {reshard.state}: run shardstream "
                f"reshard complete {topology.keyspace} {reshard.reshard_id} first"
            )


def check_producer(keyspace: str, view: ShardView) -> None:
    """Raise UsageError while the producer of a shard writes progress."""
    if view.silent_ms is not None and view.silent_ms < SILENT_MS:
        raise UsageError(
            f"keyspace {keyspace}, shard {view.shard}: its producer still runs (progress "
            f"{view.silent_ms / 1_000:.1f} s ago, from {view.server}): stop it first"
        )


def _check_readers(keyspace: str, shard: str, behind: Sequence[ReaderRecord]) -> None:
    if not behind:
        return
    now_us = time.time_ns() // 1_000
    readers = "\n".join(
        f"  {report.name} on {report.host}, last report "
        f"{max(0, now_us - report.at_us) / 1e6:.0f} s ago"
        for report in behind
    )
    raise UsageError(
        f"keyspace {keyspace}, shard {shard}: named readers have not passed its end:\n{readers}\n"
        f"Wait until they have; forget a reader that is gone for good: shardstream readers forget "
        f"{keyspace} NAME"
    )
