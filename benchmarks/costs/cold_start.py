"""Cold starts: a producer from its start to its first commit, a reader to its first event."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Final

from confluent_kafka import TopicPartition

from benchmarks.binlog_fill import create_table, executed_set, fill
from benchmarks.figures import Figure, Turn, figure
from benchmarks.our_producer import BenchKeyspace, OurProducer
from benchmarks.stack import Stack
from benchmarks.two_shards import TwoShards
from benchmarks.watch import TopicEnd
from benchmarks.workloads import Workload
from event_token.errors import Halt
from topics.kafka.client import open_consumer

PRODUCE: Final = "start.produce"
SUBSCRIBER: Final = "start.subscriber"
NAMES: Final = (PRODUCE, SUBSCRIBER)
# One shard with the whole key range.
ALL: Final = "-"
# A start is short, and varies with what else the machine does.
STARTS: Final = 5
STARTS_QUICK: Final = 3
START_S_MAX: Final = 120.0
POLL_S: Final = 0.05
FETCH_WAIT_MS: Final = 10
TRANSACTIONS: Final = 10
NS_PER_S: Final = 1_000_000_000


def run(stack: Stack, names: tuple[str, ...], *, runs: int, quick: bool) -> list[Figure]:
    """Measure starts; one is a turn of its own."""
    starts = STARTS_QUICK if quick else STARTS * runs
    figures: list[Figure] = []
    if PRODUCE in names:
        figures += _produce(stack, starts)
    if SUBSCRIBER in names:
        figures += _subscribe(stack, starts)
    return figures


def _produce(stack: Stack, starts: int) -> list[Figure]:
    """Measure the first start of a producer, whose log is empty, and one that resumes."""
    stack.report(f"{PRODUCE}: {starts} first starts, and as many that resume")
    server = stack.mysql(0)
    workload = Workload("start.produce_rows", TRANSACTIONS, 1)
    create_table(server, workload)
    begin = executed_set(server)
    fill(server, workload)
    taken: dict[str, list[tuple[float, float]]] = {"first": [], "again": []}
    for number in range(starts):
        keyspace = BenchKeyspace(
            stack.folder, f"start{number}", stack.kafka().bootstrap_servers, {ALL: server}
        )
        producer = OurProducer(keyspace, ALL, start=f"gtid:{begin}")
        for each in taken.values():
            each.append(first_commit(keyspace, producer))
            with server.connect(database="bench") as connection, connection.cursor() as cursor:
                cursor.execute(f"UPDATE {workload.table} SET customer = customer + 1")
    return [
        figure(f"{PRODUCE}.{kind}{suffix}", unit, [Turn(each[part]) for each in found])
        for kind, found in taken.items()
        for part, suffix, unit in ((0, "", "s"), (1, ".cpu", "processor s"))
    ]


def first_commit(keyspace: BenchKeyspace, producer: OurProducer) -> tuple[float, float]:
    """Return the seconds until a reader sees a row, and the processor's; the producer has ended."""
    end = TopicEnd(keyspace.client, producer.topics.log)
    consumer = open_consumer(keyspace.client, fetch_wait_ms=FETCH_WAIT_MS)
    try:
        consumer.assign([TopicPartition(producer.topics.log, 0, end())])
        begun_s = time.monotonic()
        producer.start()
        while True:
            message = consumer.poll(POLL_S)
            if message is not None and message.error() is None:
                taken = time.monotonic() - begun_s, producer.cpu_s()
                break
            producer.check_alive()
            if time.monotonic() - begun_s > START_S_MAX:
                raise Halt(f"{producer.topics.log}: no row {START_S_MAX:g} s after a start")
        producer.stop()
    finally:
        producer.kill()
        consumer.close()
        end.close()
    return taken


def _subscribe(stack: Stack, starts: int) -> list[Figure]:
    stack.report(f"{SUBSCRIBER}: {starts} starts")
    shards = TwoShards.filled(stack, "started", Workload("start.first_rows", TRANSACTIONS, 1))
    taken = [_first_event(shards) for _ in range(starts)]
    kinds: list[tuple[str, str, Callable[[dict[str, float]], float]]] = [
        (SUBSCRIBER, "s", lambda each: each["event_s"]),
        (f"{SUBSCRIBER}.imported", "s", lambda each: each["imported_s"]),
        (f"{SUBSCRIBER}.cpu", "processor s", lambda each: each["cpu_s"]),
    ]
    return [figure(name, unit, [Turn(part(e)) for e in taken]) for name, unit, part in kinds]


def _first_event(shards: TwoShards) -> dict[str, float]:
    """Start `benchmarks.costs.first_event`; return the seconds since then of what it says."""
    command = [
        *(sys.executable, "-m", "benchmarks.costs.first_event"),
        *(shards.keyspace, shards.client.brokers),
    ]
    begun_ns = time.monotonic_ns()
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=START_S_MAX
        )
    except subprocess.TimeoutExpired as slow:
        raise Halt(f"a Subscriber has no event {START_S_MAX:g} s after its start") from slow
    if done.returncode != 0:
        raise Halt(f"a Subscriber ended with status {done.returncode}:\n{done.stderr}")
    said: dict[str, int] = json.loads(done.stdout)
    return {
        "imported_s": (said["imported_ns"] - begun_ns) / NS_PER_S,
        "event_s": (said["event_ns"] - begun_ns) / NS_PER_S,
        "cpu_s": said["cpu_ns"] / NS_PER_S,
    }
