"""`shardstream produce`: one shard's producer as a process."""

import dataclasses
import json
import signal
import sys
import threading
import time
from types import FrameType

from rich.console import Console

from event_token import Flavor
from producers.settings import (
    ProducerState,
    ProducerStatus,
    ServerSettings,
    ShardProducerSettings,
    TlsSettings,
)
from producers.shard_producer import run_shard
from shardstream.keyspace_topology import ensure_topology
from shardstream.settings import ServerSection, Settings

# A status line a second is enough for people and for logs; changes of state are always told.
STATUS_INTERVAL_S = 1.0


def shard_producer_settings(
    settings: Settings, keyspace: str, shard: str, start: str = "tail"
) -> ShardProducerSettings:
    """The settings of one shard's producer; UsageError when the shard or a secret is unknown."""
    section = settings.shard(keyspace, shard)
    return ShardProducerSettings(
        keyspace=keyspace,
        shard=shard,
        flavor=Flavor(section.flavor),
        servers=tuple(_server(server, settings) for server in section.servers),
        kafka=settings.kafka_client(),
        registry_url=settings.kafka.schema_registry_url,
        start=start,
        replication_factor=settings.kafka.replication_factor,
        **settings.producer.model_dump(),
    )


def _server(section: ServerSection, settings: Settings) -> ServerSettings:
    tls = None
    if section.tls is not None:
        paths = section.tls
        tls = TlsSettings(
            ca=str(settings.folder / paths.ca),
            cert=None if paths.cert is None else str(settings.folder / paths.cert),
            key=None if paths.key is None else str(settings.folder / paths.key),
        )
    password = section.password(settings.folder).get_secret_value()
    return ServerSettings(section.host, section.port, section.user, password, tls)


def run_produce(
    settings: Settings, keyspace: str, shard: str, *, start: str, as_json: bool
) -> None:
    """Produce until SIGINT or SIGTERM; then end with what is committed."""
    producer_settings = shard_producer_settings(settings, keyspace, shard, start)
    ensure_topology(settings, keyspace)
    stop = threading.Event()

    def ask_to_stop(_signal: int, _frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGINT, ask_to_stop)
    signal.signal(signal.SIGTERM, ask_to_stop)
    run_shard(producer_settings, stop, _StatusPrinter(keyspace, as_json=as_json))


class _StatusPrinter:
    """Prints a status a second, and every change of state and note at once."""

    def __init__(self, keyspace: str, *, as_json: bool) -> None:
        self._keyspace = keyspace
        self._as_json = as_json
        self._console = Console(soft_wrap=True, highlight=False)
        self._last_state: ProducerState | None = None
        self._last_time_s = 0.0

    def __call__(self, status: ProducerStatus) -> None:
        now_s = time.monotonic()
        # Idle and streaming take turns many times a second; that is no change worth a line.
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
            f"{self._keyspace}/{status.shard} {status.state.value}: "
            f"{status.rows_total} rows, {status.rows_per_s:.0f} rows/s, lag {status.lag_ms} ms"
        )
        self._console.print(f"{line}; {status.note}" if status.note else line, markup=False)
