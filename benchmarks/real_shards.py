"""Looks at the topics of many shards on a real broker, as `serve` and `status` do."""

import time
from collections.abc import Sequence
from typing import Final

from benchmarks.figures import Figure, Turn, figure
from benchmarks.stack import Stack
from topics.fleet.look import FleetWatch
from topics.kafka.client import ClientConfig, Deadline, open_producer
from topics.kafka.provisioning import provision_keyspace, provision_schemas_topic, provision_shard
from topics.keyspace.topology import ShardEntry, Topology, update_topology
from topics.names import ShardTopics
from topics.progress.codec import PROGRESS_KEY, encode_progress
from topics.progress.record import Progress
from topics.schemas import TopicSchemaIds

NAME: Final = "scale.fleet"
SHARDS: Final = 100
KEYSPACE: Final = "fleet"
ROUNDS: Final = 10
_HEARTBEATS: Final = 8
_TIMEOUT_S: Final = 60.0


def measure(stack: Stack, names: Sequence[str], *, runs: int, quick: bool) -> list[Figure]:
    """Measure the first look of a process, and the ones after it while heartbeats come.

    `names`: of the shards.
    """
    config = ClientConfig({"bootstrap.servers": stack.kafka().bootstrap_servers})
    stack.report(f"making the topics of {len(names)} shards")
    make_keyspace(config, KEYSPACE, names)
    heartbeats = Heartbeats(config, names)
    for _ in range(_HEARTBEATS):
        heartbeats.write()
    first, later, busy = [], [], []
    for _ in range(runs):
        began_s = time.monotonic()
        with FleetWatch(config, TopicSchemaIds(config)) as watch:
            watch.look(KEYSPACE)
            first.append(Turn((time.monotonic() - began_s) * 1e3))
            turns = [_later(watch, heartbeats) for _ in range(1 if quick else ROUNDS)]
            later.append(Turn(sum(wall for wall, _ in turns) / len(turns) * 1e3))
            busy.append(Turn(sum(processor for _, processor in turns) / len(turns) * 1e3))
    return [
        figure(f"{NAME}.first", "ms", first),
        figure(f"{NAME}.look", "ms", later),
        figure(f"{NAME}.processor", "processor ms", busy),
    ]


class Heartbeats:
    """Writes progress of all shards in one transaction, as their producers do in many."""

    def __init__(self, config: ClientConfig, names: Sequence[str]) -> None:
        """Fence the producers of an earlier run."""
        self._topics = [ShardTopics(KEYSPACE, name).progress for name in names]
        self._schema_ids = TopicSchemaIds(config)
        self._producer = open_producer(
            config, transactional_id=f"{KEYSPACE}.benchmark", transaction_timeout_ms=60_000
        )
        self._producer.init_transactions(_TIMEOUT_S)

    def write(self) -> None:
        """Write a heartbeat of each shard."""
        now_us = time.time_ns() // 1_000
        progress = Progress(
            first_seq=1,
            last_seq=0,
            end_offset=0,
            flavor="mysql",
            position="00000000-0000-0000-0000-000000000001:1-1000000",
            head_us=now_us,
            ticks=(),
            mark=None,
            server="db-a:3306",
            server_time_us=now_us,
            lag_ms=0,
        )
        value = encode_progress(progress, self._schema_ids)
        self._producer.begin_transaction()
        for topic in self._topics:
            self._producer.produce(topic, value, PROGRESS_KEY, 0)
        self._producer.commit_transaction(_TIMEOUT_S)


def _later(watch: FleetWatch, heartbeats: Heartbeats) -> tuple[float, float]:
    """Return how long a look takes after new heartbeats, and how much of it is processor time."""
    heartbeats.write()
    deadline = Deadline(_TIMEOUT_S)
    while True:
        began_s, processor_s = time.monotonic(), time.process_time()
        view = watch.look(KEYSPACE)
        took = time.monotonic() - began_s, time.process_time() - processor_s
        if not view.held_by or deadline.passed:
            return took


def make_keyspace(config: ClientConfig, keyspace: str, names: Sequence[str]) -> None:
    """Make the topics of all shards, and the topology in which they serve."""
    provision_schemas_topic(config)
    provision_keyspace(config, keyspace)
    for name in names:
        provision_shard(config, ShardTopics(keyspace, name))
    update_topology(
        config, keyspace, lambda _: Topology(keyspace, 0, tuple(map(ShardEntry, names)))
    )
