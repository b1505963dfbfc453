"""`shardstream produce`: the producer of one shard."""

import dataclasses
import json
import sys
import time

from rich.console import Console

from event_token.errors import UsageError
from producers.session.supervisor import run_shard
from producers.session.waiting import wait_until_ready
from producers.settings import ProducerState, ProducerStatus
from shardstream.commands.declared_topology import ensure_topology
from shardstream.commands.preflight import (
    print_warnings,
    refuse_problems,
    server_warnings,
    topic_warnings,
)
from shardstream.commands.stop_signals import stop_on_signals
from shardstream.settings.model import Settings
from shardstream.settings.producer_settings import shard_producer_settings
from topics.keyspace.topology import Topology
from topics.start.start_forms import parse_producer_start

# One status line per second is enough for people and logs; state changes are always printed.
STATUS_INTERVAL_S = 1.0

# An idle producer streams too, and has nothing to publish.
_STATES = {ProducerState.IDLE: "streaming (idle)"}


def run_produce(
    settings: Settings, keyspace: str, shard: str, *, start: str, as_json: bool
) -> None:
    """Produce until SIGINT or SIGTERM."""
    parse_producer_start(start, "--from")
    producer_settings = shard_producer_settings(settings, keyspace, shard, start)
    stop = stop_on_signals()
    printer = _StatusPrinter(keyspace, as_json=as_json)

    def prepare() -> Topology:
        # Everything is checked before the first topic is created.
        refuse_problems(settings, producer_settings)
        print_warnings(topic_warnings(settings, keyspace, [shard]))
        print_warnings(server_warnings(settings, keyspace, [shard]))
        return ensure_topology(settings, keyspace)

    topology = wait_until_ready(
        f"{keyspace}/{shard}",
        prepare,
        stop,
        lambda fault: printer(
            ProducerStatus(shard, "", 0, 0, 0, 0.0, ProducerState.RECONNECTING, fault)
        ),
    )
    if topology is None:
        return
    if shard not in {entry.name for entry in topology.shards}:
        raise UsageError(
            f"{keyspace}/{shard}: the topology has no such shard; `shardstream reshard create` "
            f"adds it as the target of a reshard"
        )
    producer_settings = dataclasses.replace(producer_settings, vindexes=topology.vindexes)
    run_shard(producer_settings, stop, printer)


class _StatusPrinter:
    """Prints a status per second, and every state change and note at once."""

    def __init__(self, keyspace: str, *, as_json: bool) -> None:
        self._keyspace = keyspace
        self._as_json = as_json
        self._console = Console(soft_wrap=True, highlight=False)
        self._last_state: ProducerState | None = None
        self._last_time_s = 0.0

    def __call__(self, status: ProducerStatus) -> None:
        now_s = time.monotonic()
        # Idle and streaming alternate many times a second.
        active = {ProducerState.IDLE, ProducerState.STREAMING}
        changed = status.state is not self._last_state and not {
            status.state,
            self._last_state,
        }.issubset(active)
        if not (changed or status.note or now_s - self._last_time_s >= STATUS_INTERVAL_S):
            return
        self._last_state, self._last_time_s = status.state, now_s
        if self._as_json:
            sys.stdout.write(json.dumps(dataclasses.asdict(status)) + "\n")
            sys.stdout.flush()
            return
        line = (
            f"{self._keyspace}/{status.shard} {_STATES.get(status.state, status.state.value)}: "
            f"{status.rows_total} rows, {status.rows_per_s:.0f} rows/s, lag {status.lag_ms} ms"
        )
        self._console.print(f"{line}; {status.note}" if status.note else line, markup=False)
