"""`shardstream produce`: the producer of one shard."""

import dataclasses
import logging
from collections.abc import Callable
from threading import Event
from typing import Annotated

import typer

from event_token.errors import UsageError
from producers.session.context import STREAMS, ProducerCounters
from producers.session.supervisor import run_shard, wait_until_ready
from producers.settings import ProducerState, ProducerStatus, ShardProducerSettings
from shardstream.commands.options import (
    SHARD_NAMES,
    CommandLine,
    Config,
    Keyspace,
    Metrics,
    ReportOptions,
    observed,
    takes_fields,
)
from shardstream.commands.status_lines import Status, StatusLines, warn
from shardstream.preflight import refuse_problems
from shardstream.settings.model import Settings, load_settings
from shardstream.settings.producer_settings import ensure_topology, shard_producer_settings
from shardstream.status.probe import Probe, StatusRelay
from shardstream.stop_signals import stop_on_signals
from topics.kafka.client import one_admin
from topics.keyspace.topology import Topology
from topics.start.start_forms import parse_producer_start

# An idle producer streams too, and has nothing to publish.
_STATES = {
    ProducerState.IDLE: "streaming (idle)",
    ProducerState.WAITING_FOR_KAFKA: "waiting for Kafka",
}
_WARNED = {ProducerState.RECONNECTING, ProducerState.WAITING_FOR_KAFKA}

app = CommandLine()


@app.command(context_settings=SHARD_NAMES)
@takes_fields
def produce(
    keyspace: Keyspace,
    shard: Annotated[
        str | None, typer.Argument(help="Shard, e.g. -80; or write both as KEYSPACE:SHARD")
    ] = None,
    config: Config = None,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            help="Where an empty log starts: latest, earliest, a time (2026-01-31T12:00:00Z) or "
            "gtid:SET; a log that has records resumes at its end",
        ),
    ] = "latest",
    *,
    report: ReportOptions,
) -> None:
    """Run the producer of one shard: publish its binlog to its log on Kafka."""
    if shard is None:
        keyspace, colon, shard = keyspace.partition(":")
        if not colon:
            raise UsageError(f"which shard of {keyspace}? shardstream produce {keyspace} SHARD")
    settings = load_settings(config)
    parse_producer_start(start, "--from")
    producer_settings = shard_producer_settings(settings, keyspace, shard, start)
    stop = stop_on_signals()
    counters = ProducerCounters()
    probe = Probe(lambda: counters.turned_s, is_ready=False)
    printer = _StatusPrinter(keyspace, report.lines())
    watched = StatusRelay(printer, probe, _fault)

    def families() -> Metrics:
        from shardstream.status.metrics.processes import producer_families

        return producer_families(keyspace, shard, counters, watched.last)

    with observed(report.http, probe, families):
        ready = ready_settings(settings, producer_settings, stop, watched, as_json=report.as_json)
        if ready is not None:
            run_shard(ready, stop, watched, counters)


def ready_settings(
    settings: Settings,
    producer: ShardProducerSettings,
    stop: Event,
    on_status: Callable[[ProducerStatus], None],
    *,
    as_json: bool,
) -> ShardProducerSettings | None:
    """Wait until servers and topics can be used; return the settings with the topology's vindexes.

    None if `stop` was set before.
    """
    where = f"{producer.keyspace}/{producer.shard}"

    def report(state: ProducerState, text: str) -> None:
        on_status(ProducerStatus(producer.shard, "", 0, 0, 0, 0.0, state, text))

    @one_admin()
    def prepare() -> Topology:
        servers = ", ".join(server.name for server in producer.servers)
        brokers = producer.kafka.brokers
        report(ProducerState.STARTING, f"checking {servers}, and Kafka at {brokers}")
        # Everything is checked before the first topic is created.
        for text in refuse_problems(settings, producer):
            warn(where, text, as_json=as_json)
        return ensure_topology(settings, producer.keyspace)

    def report_fault(fault: str) -> None:
        report(ProducerState.RECONNECTING, fault)

    topology = wait_until_ready(where, prepare, stop, report_fault, producer.outage_s)
    if topology is None:
        return None
    if producer.shard not in {entry.name for entry in topology.shards}:
        raise UsageError(
            f"{where}: the topology has no such shard; `shardstream reshard create` adds it as the "
            f"target of a reshard"
        )
    return dataclasses.replace(producer, vindexes=topology.vindexes)


def _fault(status: ProducerStatus) -> str:
    """Return why the producer does not publish, "" if it does."""
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
