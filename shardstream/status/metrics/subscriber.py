"""The metrics of a subscriber, for the registry of the application that it is part of."""

from collections.abc import Iterator
from typing import Protocol

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from event_token import StreamPosition
from shardstream.status.metrics.families import counter, gauge, one
from topics.reading.followed_shards import Wait
from topics.stream.subscriber import ReaderStats


class Reads(Protocol):
    """What a subscriber tells of itself, to any thread."""

    keyspace: str

    @property
    def stats(self) -> ReaderStats:
        """What it has read."""
        ...

    @property
    def waiting(self) -> Wait | None:
        """The shards that hold it back."""
        ...

    @property
    def position(self) -> StreamPosition | None:
        """Where it is."""
        ...


class SubscriberMetrics(Collector):
    """Tells a registry of prometheus-client what a subscriber has read.

    `registry.register(SubscriberMetrics(subscriber, "billing"))`: from then on the application's
    own `/metrics` has it. The label `reader` tells the subscribers of a process apart. Any thread
    may collect.
    """

    def __init__(self, subscriber: Reads, reader: str) -> None:
        """Nothing is read before a scrape."""
        self._subscriber = subscriber
        self._labels = {"keyspace": subscriber.keyspace, "reader": reader}

    def describe(self) -> Iterator[Metric]:
        """Name nothing: a registry then takes several of these."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield the families of a scrape."""
        name, labels = "shardstream_subscriber", self._labels
        stats = self._subscriber.stats
        for suffix, says, value in (
            ("events", "Events read", stats.events),
            ("late", "Events that came after newer ones, in mode MaxHold", stats.late),
            (
                "possible_duplicates",
                "Events that may have been delivered before a reshard without marks",
                stats.possible_duplicates,
            ),
            ("hops", "Reshards that it has followed", stats.hops),
        ):
            yield one(counter(f"{name}_{suffix}", says), labels, value)
        waiting = gauge(f"{name}_waiting", "1 for each shard that holds the stream back")
        wait = self._subscriber.waiting
        for shard in () if wait is None else wait.shards:
            waiting.add({**labels, "shard": shard}, 1)
        yield waiting.metric()
        position = self._subscriber.position
        if position is not None:
            says = "The subscriber has everything that is older"
            at = gauge(f"{name}_position_timestamp_seconds", says)
            yield one(at, labels, position.frontier_us / 1e6)
