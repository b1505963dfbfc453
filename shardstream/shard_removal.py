"""Deletes the topics of a shard that has ended, or empties them so that a new log begins."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from event_token.errors import UsageError
from producers.publisher import Publisher
from shardstream.settings.model import Settings
from shardstream.status.refresh import open_fleet
from topics.fleet.view import SILENT_MS
from topics.kafka.client import ClientConfig, open_admin
from topics.kafka.provisioning import delete_topics, empty_topic
from topics.keyspace.topology import (
    UNDER_WAY,
    ShardState,
    Topology,
    read_topology,
    require_topology,
)
from topics.named_readers import ReaderRecord, not_passed, read_readers
from topics.names import ShardTopics
from topics.progress.shard_claim import ShardClaim


@dataclass(frozen=True, slots=True)
class Retirement:
    """A removal that passed its checks: the topics, and who has `passed` the shard."""

    config: ClientConfig
    topics: tuple[str, ...]
    passed: str


def plan_retire(settings: Settings, keyspace: str, shard: str) -> Retirement:
    """Check an ended shard.

    UsageError while its topics are needed: by a shard that serves, a reshard that is not over, a
    producer that runs, or a named reader.
    """
    client = settings.kafka_client()
    topology = require_topology(read_topology(client, keyspace), keyspace)
    check_is_over(topology, shard)
    _check_producer(settings, keyspace, shard)
    readers = read_readers(client, keyspace)
    _check_readers(keyspace, shard, not_passed(readers, topology, shard))
    topics = ShardTopics(keyspace, shard)
    # Progress goes first: a reader that starts at earliest goes back to a shard that has it.
    names = (topics.progress, topics.copy, topics.log)
    passed = f"{len(readers)} named readers have passed it" if readers else "no reader has a name"
    return Retirement(client, names, f"{keyspace}/{shard} has ended; {passed}")


def run_retire(planned: Retirement) -> str:
    """Delete the topics; return what to print."""
    deleted = delete_topics(planned.config, planned.topics)
    said = ", ".join(deleted) or "nothing, because its topics did not exist"
    return f"{planned.passed}; deleted {said}"


def check_is_over(topology: Topology, shard: str) -> None:
    """Raise UsageError unless the shard has ended, and its reshards are completed."""
    state = _state_of(topology, shard)
    if state is not ShardState.RETIRED:
        raise UsageError(
            f"keyspace {topology.keyspace}, shard {shard}: it is {state.value}, and only a RETIRED "
            f"shard can be deleted"
        )
    complete = f"run shardstream reshard complete {topology.keyspace} {{id}} first"
    _check_reshards(topology, shard, complete)


def _state_of(topology: Topology, shard: str) -> ShardState:
    states = {entry.name: entry.state for entry in topology.shards}
    if shard not in states:
        raise UsageError(
            f"keyspace {topology.keyspace}, shard {shard}: there is no such shard (shards: "
            f"{', '.join(states)})"
        )
    return states[shard]


def _check_reshards(topology: Topology, shard: str, fix: str) -> None:
    """Raise UsageError with the fix (in which {id} is the reshard's) while one is not over."""
    for reshard in topology.reshards:
        if reshard.state in UNDER_WAY and shard in {*reshard.sources, *reshard.targets}:
            raise UsageError(
                f"keyspace {topology.keyspace}, shard {shard}: reshard {reshard.reshard_id} is "
                f"{reshard.state}: {fix.format(id=reshard.reshard_id)}"
            )


def _check_producer(settings: Settings, keyspace: str, shard: str) -> None:
    """Raise UsageError while the producer of a shard writes progress."""
    with open_fleet(settings) as fleet:
        [view] = [view for view in fleet.look(keyspace).shards if view.shard == shard]
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


# For one aborted transaction without rows.
_TRANSACTION_MS = 60_000


@dataclass(frozen=True, slots=True)
class Reset:
    """A reset that passed its checks; `loses` says what it deletes, and who reads it."""

    config: ClientConfig
    topics: ShardTopics
    loses: str


def plan_reset(settings: Settings, keyspace: str, shard: str) -> Reset:
    """Check a shard. UsageError while it is resharded, has ended, or has a running producer."""
    client = settings.kafka_client()
    topics = ShardTopics(keyspace, shard)
    topology = require_topology(read_topology(client, keyspace), keyspace)
    if _state_of(topology, shard) is ShardState.RETIRED:
        raise UsageError(
            f"keyspace {keyspace}, shard {shard}: it has ended: run shardstream topology retire"
        )
    _check_reshards(topology, shard, "cancel or complete it first")
    _check_producer(settings, keyspace, shard)
    readers = sorted({r.name for r in not_passed(read_readers(client, keyspace), topology, shard)})
    read_by = f"named readers {', '.join(readers)}" if readers else "no named reader"
    loses = (
        f"{keyspace}/{shard}: all records of {topics.log}, its progress and its copies are lost. "
        f"{read_by} and readers without a name that have not read to its end miss the rest; all of "
        f"them stop with LogShrank, and start again at copy or earliest"
    )
    return Reset(client, topics, loses)


def run_reset(reset: Reset, reason: str) -> str:
    """Fence the producer and empty the topics; return what to print. Can be run again.

    The copy topic is deleted first: a new log must not take the copies of the old one for its own.
    Without progress a producer refuses a log that has records, so no state in between passes for
    a log. The log itself is emptied rather than deleted: offsets continue to grow, so positions of
    the old log are recognised. Fenced when a producer takes the shard over; Retry when the brokers
    do not answer.
    """
    config, topics = reset.config, reset.topics
    existing = open_admin(config).list_topics().topics.keys()
    publisher = Publisher(config, topics, _TRANSACTION_MS, lambda: False)
    try:
        if topics.copy in existing:  # or an earlier attempt has deleted it
            claim = ShardClaim(config, topics)
            claim.make()
            publisher.fence(claim.check)
        else:
            publisher.fence()
        if existing >= set(topics.written):
            publisher.abort_open()  # what the brokers may have left open
        delete_topics(config, (topics.copy, topics.progress))
        start = empty_topic(config, topics.log) if topics.log in existing else 0
    finally:
        publisher.close()
    return (
        f"{topics.keyspace}/{topics.shard}: emptied; the next log begins at offset {start} "
        f"(reason: {reason}). Start it: shardstream produce {topics.keyspace} {topics.shard} "
        f"--from ..., then copy the tables: shardstream copy start {topics.keyspace}"
    )
