"""`shardstream produce`: the producer of one shard."""

import dataclasses
import logging
from collections.abc import Callable
from threading import Event

from event_token.errors import UsageError
from producers.preflight.warnings import server_warnings
from producers.session.counters import ProducerCounters
from producers.session.heartbeat_rows import heartbeat_warnings
from producers.session.status import STREAMS
from producers.session.supervisor import run_shard
from producers.session.waiting import wait_until_ready
from producers.settings import ProducerState, ProducerStatus, ShardProducerSettings
from shardstream.commands.declared_topology import ensure_topology
from shardstream.commands.findings import topic_warnings
from shardstream.commands.http.options import Metrics, observed
from shardstream.commands.http.probe import Probe, Watched
from shardstream.commands.preflight import refuse_problems
from shardstream.commands.status_lines import Status, StatusLines, warn
from shardstream.commands.stop_signals import stop_on_signals
from shardstream.settings.model import Settings
from shardstream.settings.producer_settings import shard_producer_settings
from topics.keyspace.topology import Topology
from topics.start.start_forms import parse_producer_start

# An idle producer streams too, and has nothing to publish.
_STATES = {
    ProducerState.IDLE: "streaming (idle)",
    ProducerState.WAITING_FOR_KAFKA: "waiting for Kafka",
}
_WARNED = {ProducerState.RECONNECTING, ProducerState.WAITING_FOR_KAFKA}


def run_produce(
    settings: Settings,
    keyspace: str,
    shard: str,
    *,
    start: str,
    as_json: bool,
    every_s: float | None = None,
) -> None:
    """Produce until SIGINT or SIGTERM."""
    parse_producer_start(start, "--from")
    producer_settings = shard_producer_settings(settings, keyspace, shard, start)
    stop = stop_on_signals()
    counters = ProducerCounters()
    probe = Probe(lambda: counters.turned_s, is_ready=False)
    printer = _StatusPrinter(keyspace, StatusLines(as_json=as_json, every_s=every_s))
    watched = Watched(printer, probe, _fault)

    def families() -> Metrics:
        from shardstream.status.metrics.producer import producer_families

        return producer_families(keyspace, shard, counters, watched.last)

    with observed(probe, families):
        ready = ready_settings(settings, producer_settings, stop, watched, as_json=as_json)
        if ready is not None:
            run_shard(ready, stop, watched, counters)


def ready_settings(
    settings: Settings,
    producer_settings: ShardProducerSettings,
    stop: Event,
    tell: Callable[[ProducerStatus], None],
    *,
    as_json: bool,
) -> ShardProducerSettings | None:
    """Return the settings with the topology's vindexes, once all is ready; None if stopped."""
    keyspace, shard = producer_settings.keyspace, producer_settings.shard
    topology = _prepared(settings, producer_settings, stop, tell, as_json=as_json)
    if topology is None:
        return None
    if shard not in {entry.name for entry in topology.shards}:
        raise UsageError(
            f"{keyspace}/{shard}: the topology has no such shard; `shardstream reshard create` "
            f"adds it as the target of a reshard"
        )
    return dataclasses.replace(producer_settings, vindexes=topology.vindexes)


def _prepared(
    settings: Settings,
    producer_settings: ShardProducerSettings,
    stop: Event,
    tell: Callable[[ProducerStatus], None],
    *,
    as_json: bool,
) -> Topology | None:
    """Wait until servers and topics are as they must be; None if stopped before."""
    keyspace, shard = producer_settings.keyspace, producer_settings.shard

    def say(state: ProducerState, text: str) -> None:
        tell(ProducerStatus(shard, "", 0, 0, 0, 0.0, state, text))

    def prepare() -> Topology:
        servers = ", ".join(server.name for server in producer_settings.servers)
        brokers = producer_settings.kafka.brokers
        say(ProducerState.STARTING, f"checking {servers}, and Kafka at {brokers}")
        # Everything is checked before the first topic is created.
        refuse_problems(settings, producer_settings)
        warnings = topic_warnings(settings, keyspace, [shard])
        warnings += heartbeat_warnings(producer_settings) + server_warnings(producer_settings)
        for text in warnings:
            warn(f"{keyspace}/{shard}", text, as_json=as_json)
        return ensure_topology(settings, keyspace)

    return wait_until_ready(
        f"{keyspace}/{shard}",
        prepare,
        stop,
        lambda fault: say(ProducerState.RECONNECTING, fault),
    )


def _fault(status: ProducerStatus) -> str:
    """What keeps the producer from publishing, "" if nothing does."""
    if status.state in STREAMS:
        return ""
    return f"{status.state.value}: {status.note}" if status.note else status.state.value


class _StatusPrinter:
    """Prints every state change and note at once, and progress when a line is due."""

    def __init__(self, keyspace: str, lines: StatusLines) -> None:
        self._keyspace = keyspace
        self._lines = lines
        self._last_state: ProducerState | None = None

    def __call__(self, status: ProducerStatus) -> None:
        # Idle and streaming alternate many times a second.
        changed = status.state is not self._last_state and not {
            status.state,
            self._last_state,
        }.issubset(STREAMS)
        self._last_state = status.state
        text = _STATES.get(status.state, status.state.value)
        if status.head_us:  # before, nothing is known of the log
            text += (
                f", {status.rows_total:,} rows, {status.rows_per_s:,.0f} rows/s, "
                f"lag {status.lag_ms:,} ms"
            )
        if status.skipped is not None:
            text += f", {status.skipped}"
        line = Status(
            f"{self._keyspace}/{status.shard}",
            f"{text}; {status.note}" if status.note else text,
            {"keyspace": self._keyspace, **dataclasses.asdict(status)},
            progress=status.rows_total,
            level=logging.WARNING if status.state in _WARNED else logging.INFO,
        )
        self._lines.report(line, at_once=changed or bool(status.note))
