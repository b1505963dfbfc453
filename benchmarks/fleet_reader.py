"""A reader of many real shards with few rows each: how soon it has the first, and what it takes."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaError, Message

from benchmarks.figures import Figure, Turn, figure
from benchmarks.own_memory import peak_mb
from benchmarks.real_shards import make_keyspace
from benchmarks.stack import Stack
from event_token import StreamPosition
from topics.kafka.client import ClientConfig, open_producer
from topics.names import ShardTopics
from topics.progress.codec import PROGRESS_KEY, encode_progress
from topics.progress.record import GRID_US, Progress, Tick
from topics.records.statement_record import JOURNAL_KEY, encode_journal
from topics.records.vevent import TokenText
from topics.schemas import TopicSchemaIds
from topics.stream.subscriber import StreamSubscriber

NAME: Final = "scale.reader"
SHARDS: Final = 300
KEYSPACE: Final = "many"
_TRANSACTIONS: Final = 4
_ROWS: Final = 25  # of a shard in a transaction, each in its own grid cell
_START_US: Final = 1_700_000_000_000_000
_GTIDS: Final = "00000000-0000-0000-0000-000000000001:1-1000000"
_TIMEOUT_S: Final = 120.0


def measure(stack: Stack, names: Sequence[str], *, runs: int) -> list[Figure]:
    """Measure a reader in a new process, from the beginning and from a position in the middle.

    `names`: of the shards.
    """
    brokers = stack.kafka().bootstrap_servers
    stack.report(f"writing the logs of {len(names)} shards")
    write_logs(ClientConfig({"bootstrap.servers": brokers}), names)
    rows = str(len(names) * _TRANSACTIONS * _ROWS)
    found: dict[str, list[Turn]] = {}
    for _ in range(runs):
        command = [sys.executable, "-m", "benchmarks.fleet_reader", brokers, rows]
        taken = subprocess.run(command, check=True, capture_output=True, text=True)
        for name, value in json.loads(taken.stdout).items():
            found.setdefault(name, []).append(Turn(value))
    units = {name: name.rpartition("_")[2] for name in found}
    return [figure(f"{NAME}.{name}", units[name], turns) for name, turns in found.items()]


def write_logs(config: ClientConfig, names: Sequence[str]) -> None:
    """Write rows of all shards and their progress, in a few transactions for all of them."""
    make_keyspace(config, KEYSPACE, names)
    schema_ids = TopicSchemaIds(config)
    producer = open_producer(
        config, transactional_id=f"{KEYSPACE}.benchmark", transaction_timeout_ms=60_000
    )
    producer.init_transactions(_TIMEOUT_S)
    for transaction in range(_TRANSACTIONS):
        first_seq = transaction * _ROWS + 1
        offsets: dict[str, list[int]] = {name: [] for name in names}
        shards = {ShardTopics(KEYSPACE, name).log: name for name in names}

        def delivered(
            error: KafkaError | None,
            message: Message,
            offsets: dict[str, list[int]] = offsets,
            shards: dict[str, str] = shards,
        ) -> None:
            if error is not None:
                raise AssertionError(error)
            offsets[shards[str(message.topic())]].append(message.offset() or 0)

        producer.begin_transaction()
        times_us = [_START_US + (first_seq + n) * GRID_US for n in range(_ROWS)]
        for name in names:
            for n, time_us in enumerate(times_us):
                value = encode_journal(
                    "{}",
                    seq=first_seq + n,
                    token=TokenText(time_us, name, _GTIDS, None),
                    schema_ids=schema_ids,
                )
                topic = ShardTopics(KEYSPACE, name).log
                producer.produce(topic, value, JOURNAL_KEY, 0, on_delivery=delivered)
                producer.poll(0)
        producer.flush(_TIMEOUT_S)
        for name, found in offsets.items():
            progress = Progress(
                first_seq=first_seq,
                last_seq=first_seq + _ROWS - 1,
                end_offset=found[-1] + 1,
                flavor="mysql",
                position=_GTIDS,
                head_us=times_us[-1] + GRID_US,
                ticks=tuple(map(Tick, times_us, found)),
                mark=None,
                server="db-a:3306",
                server_time_us=times_us[-1],
                lag_ms=0,
            )
            producer.produce(
                ShardTopics(KEYSPACE, name).progress,
                encode_progress(progress, schema_ids),
                PROGRESS_KEY,
                0,
                timestamp=progress.head_us // 1_000,
            )
        producer.commit_transaction(_TIMEOUT_S)


def _read(brokers: str, rows: int) -> dict[str, float]:
    """Read half of the rows from the beginning, and the rest from the position reached."""
    config = ClientConfig({"bootstrap.servers": brokers})
    found: dict[str, float] = {}
    start: StreamPosition | str = "earliest"
    for half in ("earliest", "position"):
        began_s, processor_s = time.monotonic(), time.process_time()
        with StreamSubscriber(KEYSPACE, start=start, config=config) as stream:
            next(stream)
            found[f"{half}.first_s"] = time.monotonic() - began_s
            found[f"{half}.first_processor_s"] = time.process_time() - processor_s
            for _ in range(rows // 2 - 1):
                event = next(stream)
            found[f"{half}.all_s"] = time.monotonic() - began_s
            found[f"{half}.all_processor_s"] = time.process_time() - processor_s
            found[f"{half}.threads"] = len(list(Path("/proc/self/task").iterdir()))
            found[f"{half}.files"] = len(list(Path("/proc/self/fd").iterdir()))
            found[f"{half}.peak_MB"] = peak_mb()
            start = event.position or start
    return found


if __name__ == "__main__":
    print(json.dumps(_read(sys.argv[1], int(sys.argv[2]))))
