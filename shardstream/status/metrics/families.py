"""Builds metric families and writes a registry as text; the metrics of a subscriber."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import TypeAlias

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from event_token.compiled import IS_COMPILED
from producers.session.context import Histogram
from topics.stream.subscriber import StreamSubscriber

Families: TypeAlias = Callable[[], Iterable[Metric]]
Labels: TypeAlias = Mapping[str, str]


class _Collector(Collector):
    """Asks for the families whenever it is scraped."""

    def __init__(self, families: Families) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """Return the families as they are now."""
        return [*self._families(), build_info()]


def scrape(families: Families) -> Callable[[], bytes]:
    """Return what answers a scrape: the families and the process's own, as text."""
    registry = CollectorRegistry()
    registry.register(_Collector(families))
    ProcessCollector(registry=registry)
    return lambda: generate_latest(registry)


def build_info() -> Metric:
    """Return the version, and whether the decoder is compiled."""
    decoder = "compiled" if IS_COMPILED else "python"
    info = {"version": version("shardstream"), "decoder": decoder}
    return InfoMetricFamily("shardstream_build", "The release, and how its decoder runs", info)


class Family:
    """Collects the samples of one metric, all with the same labels."""

    def __init__(
        self, kind: type[GaugeMetricFamily | CounterMetricFamily], name: str, says: str
    ) -> None:
        """No sample yet. `name` without `_total`."""
        self._kind = kind
        self._name = name
        self._says = says
        self._samples: list[tuple[Labels, float]] = []

    def add(self, labels: Labels, value: float) -> None:
        """Add a sample."""
        self._samples.append((labels, value))

    def metric(self) -> Metric:
        """Return the family with all samples; without any it has a name alone."""
        names = tuple(self._samples[0][0]) if self._samples else ()
        family = self._kind(self._name, self._says, labels=names)
        for labels, value in self._samples:
            family.add_metric([labels[name] for name in names], value)
        return family


def gauge(name: str, says: str) -> Family:
    """Return a family of values that go up and down."""
    return Family(GaugeMetricFamily, name, says)


def counter(name: str, says: str) -> Family:
    """Return a family of sums; its samples' names end with `_total`."""
    return Family(CounterMetricFamily, name, says)


def one(family: Family, labels: Labels, value: float) -> Metric:
    """Return a family with a single sample."""
    family.add(labels, value)
    return family.metric()


def state_set(
    name: str, says: str, states: Sequence[str], found: Sequence[tuple[Labels, str]]
) -> Metric:
    """Return a family with one sample per state, 1 for the present one; label `state` names it."""
    family = gauge(name, says)
    for labels, present in found:
        for state in states:
            family.add({**labels, "state": state}, float(state == present))
    return family.metric()


def histogram(name: str, says: str, labels: Labels, values: Histogram) -> Metric:
    """Return a family of a histogram."""
    family = HistogramMetricFamily(name, says, labels=tuple(labels))
    buckets, total = [], 0
    for bound, count in zip([*map(str, values.bounds), "+Inf"], values.counts, strict=True):
        total += count
        buckets.append((bound, float(total)))
    family.add_metric(list(labels.values()), buckets, values.sum)
    return family


class SubscriberMetrics(Collector):
    """Metrics of a subscriber, for a registry of prometheus-client.

    After `registry.register(SubscriberMetrics(subscriber, "billing"))` they are part of the
    application's own `/metrics`. The label `reader` distinguishes the subscribers of a process.
    Any thread may collect.
    """

    def __init__(self, subscriber: StreamSubscriber, reader: str) -> None:
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
