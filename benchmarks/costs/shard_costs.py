"""What shards cost: with 1, 4 and 16 real producers on one broker, and with generated progress.

The real producers read the binlog of one server, which is enough: each has a log, commits and
heartbeats of its own. Idle shards of one process without Kafka are connections to one server, too.
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from confluent_kafka import TopicPartition

from benchmarks.binlog_fill import DATABASE, executed_set
from benchmarks.figures import Figure, Turn, figure
from benchmarks.fleet_scale import PlannedShards, shard_names
from benchmarks.our_producer import BenchKeyspace, OurProducer
from benchmarks.stack import Stack
from benchmarks.watch import handles
from event_token import KeyRange
from event_token.errors import Halt
from event_token.position import ShardPosition, StreamPosition
from shardstream.local.database_server import MysqlServer
from topics.kafka.client import open_consumer
from topics.names import ShardTopics
from topics.progress.codec import decode_progress
from topics.reading.planner import Batch, Planner
from topics.schemas import open_schema_ids

REAL: Final = "shards.real"
GENERATED: Final = "shards.generated"
IDLE: Final = "shards.idle"
NAMES: Final = (REAL, GENERATED, IDLE)
REAL_COUNTS: Final = (1, 4, 16)
GENERATED_COUNTS: Final = (16, 256, 1_000)
IDLE_COUNTS: Final = (10, 50, 100, 200)
IDLE_WAYS: Final = ("threads", "loop")
IDLE_S: Final = 10.0
# Two per shard, and a few of others.
CONNECTIONS: Final = 3 * max(IDLE_COUNTS)
# A small system: each producer commits as often, since all read the same binlog.
TRANSACTIONS_PER_S: Final = 10
MEASURE_S: Final = 5.0
READY_S_MAX: Final = 240.0
POLL_S: Final = 0.05
TAKE_MAX: Final = 500
BATCHES: Final = 20
# The broker's folder of a topic's only partition, below the cluster's.
_SEGMENTS: Final = "broker-1/data/{topic}-0"


def run(stack: Stack, names: tuple[str, ...], *, runs: int, quick: bool) -> list[Figure]:
    """Measure each number of shards; once, as its producers are started for it."""
    del runs, quick
    figures: list[Figure] = []
    if REAL in names:
        for count in REAL_COUNTS:
            stack.report(f"{REAL}: {count} producers of one server")
            figures += _real(stack, count)
    if GENERATED in names:
        for count in GENERATED_COUNTS:
            figures += _generated(count)
    if IDLE in names:
        for way in IDLE_WAYS:
            for count in IDLE_COUNTS:
                stack.report(f"{IDLE}: {count} shards, {way}")
                figures += _idle(stack, way, count)
    return figures


def _generated(count: int) -> list[Figure]:
    """Plan batches of which each has 25 grid cells with rows of every shard."""
    planned = PlannedShards(shard_names(count))
    planned.batch()
    begun_s = time.process_time()
    for _ in range(BATCHES):
        planned.batch()
    took_ms = (time.process_time() - begun_s) * 1e3 / BATCHES
    return [figure(f"{GENERATED}.{count}.planner", "processor ms/batch", [Turn(took_ms)])]


def _idle(stack: Stack, way: str, count: int) -> list[Figure]:
    """Run `benchmarks.costs.idle_job`."""
    server = stack.mysql(0)
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET GLOBAL max_connections = %s", (CONNECTIONS,))
    found = _job(
        "idle_job",
        *(way, str(count), str(IDLE_S), server.host, str(server.port), server.user),
        secret=server.password,
    )
    lines = (
        ("beat", "processor ms per beat", found["cpu_ms_per_s"] / found["beats_per_s"]),
        ("memory", "MB per shard", found["mb"] / count),
        ("beats", "beats/s per shard", found["beats_per_s"] / count),
        ("threads", "of the process", found["threads"]),
        ("handles", "of the process", found["handles"]),
    )
    return [
        figure(f"{IDLE}.{way}.{count}.{name}", unit, [Turn(value)]) for name, unit, value in lines
    ]


def _real(stack: Stack, count: int) -> list[Figure]:
    server = stack.mysql(0)
    shards = shard_names(count)
    keyspace = BenchKeyspace(
        stack.folder,
        f"shards{count}",
        stack.kafka().bootstrap_servers,
        dict.fromkeys(shards, server),
    )
    producers = [
        OurProducer(keyspace, shard, start=f"gtid:{executed_set(server)}") for shard in shards
    ]
    with ExitStack() as started:
        for producer in producers:
            started.callback(producer.kill)
            producer.start()
        started.enter_context(_writing(server, f"shards{count}"))
        deadline_s = time.monotonic() + READY_S_MAX
        for producer in producers:
            while producer.last_seq() == 0:
                producer.check_alive()
                if time.monotonic() > deadline_s:
                    raise Halt(f"{producer.topics.log} is empty after {READY_S_MAX:g} s")
                time.sleep(POLL_S)
        figures = _measured(stack, keyspace, producers)
        for producer in producers:
            producer.stop()
    return figures


def _measured(stack: Stack, keyspace: BenchKeyspace, producers: list[OurProducer]) -> list[Figure]:
    """Measure one after the other, so that they do not slow each other down."""
    count = len(producers)
    folder = stack.kafka().folder
    stored, cpu_s, begun_s = _stored(folder, producers), _cpu_s(producers), time.monotonic()
    planner_us = _planner_us(keyspace, [each.topics for each in producers])
    took_s = time.monotonic() - begun_s
    stored = _stored(folder, producers) - stored
    cpu_s = _cpu_s(producers) - cpu_s
    reader = _read(keyspace)
    broker = stack.kafka().brokers[0].pid
    lines: list[tuple[str, str, float]] = [
        ("planner", "processor us/batch", planner_us),
        ("progress", "bytes/s per shard", stored / took_s / count),
        ("producer.cpu", "processor ms/s per shard", cpu_s * 1e3 / took_s / count),
        ("producer.handles", "of one producer", producers[0].handles()),
        ("broker.handles", "of the broker", 0 if broker is None else handles(broker)),
        ("reader.handles", "of a Subscriber", reader["handles"]),
        ("reader.threads", "of a Subscriber", reader["threads"]),
        ("reader.memory", "MB, peak", reader["peak_mb"]),
        ("reader.cpu", "processor ms/s", reader["cpu_share"] * 1e3),
    ]
    return [figure(f"{REAL}.{count}.{name}", unit, [Turn(value)]) for name, unit, value in lines]


@contextmanager
def _writing(server: MysqlServer, table: str) -> Iterator[None]:
    """Commit single rows at a steady rate until the block ends."""
    ended = threading.Event()

    def write() -> None:
        with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
            while not ended.wait(1 / TRANSACTIONS_PER_S):
                cursor.execute(f"INSERT INTO {DATABASE}.{table} VALUES ()")

    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE IF NOT EXISTS {DATABASE}")
        cursor.execute(f"CREATE TABLE {DATABASE}.{table} (id INT AUTO_INCREMENT PRIMARY KEY)")
    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _stored(folder: Path, producers: list[OurProducer]) -> int:
    """Return the bytes of all progress on the broker's disk, with Kafka's own."""
    return sum(
        segment.stat().st_size
        for producer in producers
        for segment in (folder / _SEGMENTS.format(topic=producer.topics.progress)).glob("*.log")
    )


def _cpu_s(producers: list[OurProducer]) -> float:
    return sum(producer.cpu_s() for producer in producers)


def _planner_us(keyspace: BenchKeyspace, topics: list[ShardTopics]) -> float:
    """Plan batches from the progress that arrives; return the planner's processor time of one."""
    start = {each.shard: ShardPosition(0, 0, None) for each in topics}
    planner = Planner(StreamPosition(0, time.time_ns() // 1000, start), KeyRange.parse("-"))
    shard_of = {each.progress: each.shard for each in topics}
    schema_ids = open_schema_ids(keyspace.client, None)
    consumer = open_consumer(keyspace.client)
    consumer.assign([TopicPartition(topic, 0, 0) for topic in shard_of])
    batches, spent_ns = 0, 0
    # The first fetch brings what was there before.
    counts_from_s = time.monotonic() + 1
    try:
        while time.monotonic() < counts_from_s + MEASURE_S:
            messages = [each for each in consumer.consume(TAKE_MAX, POLL_S) if not each.error()]
            found = [
                (shard_of[str(each.topic())], decode_progress(each.value(), schema_ids))
                for each in messages
            ]
            begun_ns, now_ms = time.thread_time_ns(), time.monotonic_ns() // 1_000_000
            for shard, progress in found:
                planner.observe(shard, progress, now_ms)
            batch = planner.next_batch(now_ms)
            if isinstance(batch, Batch):
                planner.advance(batch)
            if time.monotonic() >= counts_from_s:
                batches += isinstance(batch, Batch)
                spent_ns += time.thread_time_ns() - begun_ns
    finally:
        consumer.close()
    if not batches:
        raise Halt(f"{keyspace.name}: no batch could be planned within {MEASURE_S:g} s")
    return spent_ns / batches / 1e3


def _read(keyspace: BenchKeyspace) -> dict[str, float]:
    """Run `benchmarks.costs.reading_job`."""
    return _job("reading_job", keyspace.name, keyspace.client.brokers, str(MEASURE_S / 2))


def _job(job: str, *arguments: str, secret: str = "") -> dict[str, float]:
    """Run a program of this folder; `secret` goes to its stdin.

    Halt when it fails or does not end.
    """
    command = (sys.executable, "-m", f"benchmarks.costs.{job}", *arguments)
    try:
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            timeout=READY_S_MAX,
            input=secret,
        )
    except subprocess.TimeoutExpired as slow:
        raise Halt(f"{job} has not ended after {READY_S_MAX:g} s") from slow
    if done.returncode != 0:
        raise Halt(f"{job} ended with status {done.returncode}:\n{done.stderr}")
    said: dict[str, float] = json.loads(done.stdout)
    return said
