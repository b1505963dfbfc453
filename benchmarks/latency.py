"""Measures the time from COMMIT's return in MySQL to the event in Subscriber, on two shards."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Protocol, Self

from benchmarks.binlog_fill import DATABASE, create_table
from benchmarks.figures import Figure, Turn, figure, percentile
from benchmarks.stack import Stack
from benchmarks.two_shards import SHARDS, TwoShards
from benchmarks.workloads import Workload
from event_token.errors import Halt
from shardstream.local.database_server import MysqlServer
from shardstream.local.kafka_cluster import KafkaCluster
from shardstream.local.processes import with_parent_guard
from topics.stream.subscriber import StreamSubscriber

NAME = "latency.commit_to_subscriber"
THREE_BROKERS = "latency.three_brokers"
NAMES = (NAME, THREE_BROKERS)
PER_SHARD_PER_S = 1_000
# Three brokers copy every record twice, on the same two cores.
PER_SHARD_PER_S_THREE = 200
# A connection that waits for each commit would be late for the next one at that rate.
WRITERS_PER_SHARD = 2
# A connection's first statements and a reader's first fetches are not steady state.
WARM_UP_S = 12
# Nor is a broker whose code is being compiled, which takes half a core for more than a minute of
# such load. A broker in production is past that.
BROKER_WARM_UP_S = 90
BROKER_WARM_UP_S_QUICK = 30
MEASURE_S = 15
MEASURE_S_QUICK = 8
# After the last commit: what has not arrived by then is lost.
ARRIVE_S_MAX = 60.0
NS_PER_MS = 1_000_000


def run(stack: Stack, names: Sequence[str], *, runs: int, quick: bool) -> list[Figure]:
    """Measure `runs` times each; return p50 and p99 in milliseconds."""
    figures = []
    if NAME in names:
        figures += _one_broker(stack, runs=runs, quick=quick)
    if THREE_BROKERS in names:
        figures += _three_brokers(stack, runs=runs, quick=quick)
    return figures


def _three_brokers(stack: Stack, *, runs: int, quick: bool) -> list[Figure]:
    """Measure three brokers and one in turn, at the same rate."""
    measure_s = MEASURE_S_QUICK if quick else MEASURE_S
    warm_up_s = BROKER_WARM_UP_S_QUICK if quick else BROKER_WARM_UP_S
    turns: dict[int, list[Turn]] = {50: [], 99: []}
    for number in range(1, runs + 1):
        stack.report(f"{THREE_BROKERS}: run {number} of {runs}, beside one broker")
        ours_ms, theirs_ms = (
            measure(
                stack,
                f"{name}{number}",
                warm_up_s,
                measure_s,
                kafka=kafka,
                per_s=PER_SHARD_PER_S_THREE,
            )
            for name, kafka in (("three", stack.three_brokers()), ("one", stack.kafka()))
        )
        warm_up_s = WARM_UP_S
        for percent, each in turns.items():
            each.append(Turn(percentile(ours_ms, percent), percentile(theirs_ms, percent)))
    stack.stop_three_brokers()
    return [
        figure(f"{THREE_BROKERS}.p{percent}", "ms", each, peer="one broker")
        for percent, each in turns.items()
    ]


def _one_broker(stack: Stack, *, runs: int, quick: bool) -> list[Figure]:
    measure_s = MEASURE_S_QUICK if quick else MEASURE_S
    warm_up_s = BROKER_WARM_UP_S_QUICK if quick else BROKER_WARM_UP_S
    p50, p99 = [], []
    for number in range(1, runs + 1):
        stack.report(f"{NAME}: run {number} of {runs}, {len(SHARDS)} x {PER_SHARD_PER_S}/s")
        delays_ms = measure(stack, f"latency{number}", warm_up_s, measure_s)
        warm_up_s = WARM_UP_S
        p50.append(Turn(percentile(delays_ms, 50)))
        p99.append(Turn(percentile(delays_ms, 99)))
    return [figure(f"{NAME}.p50", "ms", p50), figure(f"{NAME}.p99", "ms", p99)]


class Receiver(Protocol):
    """Something that rows reach; it is open before the first row is written."""

    def __enter__(self) -> Self:
        """Open it."""

    def __exit__(self, *exc_info: object) -> None:
        """Close it."""

    def receive(self, count: int) -> dict[str, dict[int, int]]:
        """Return when each of `count` rows per shard arrived (monotonic ns), by shard and id.

        Raises Halt if one arrives twice, or if not all arrive in time.
        """


def measure(
    stack: Stack,
    keyspace: str,
    warm_up_s: int,
    measure_s: int,
    receiver: "Callable[[TwoShards], Receiver] | None" = None,
    *,
    kafka: KafkaCluster | None = None,
    per_s: int = PER_SHARD_PER_S,
) -> list[float]:
    """Return the delays of all events after the warm-up, in milliseconds.

    `receiver` makes what the rows reach; None: a Subscriber. `kafka`: None for the one broker.
    `per_s`: transactions of each shard.
    """
    count = (warm_up_s + measure_s) * per_s
    for index in range(len(SHARDS)):
        create_table(stack.mysql(index), Workload(f"latency.{keyspace}", 0, 1))
    with TwoShards(stack, keyspace, kafka) as shards:
        # Both have caught up before the first write.
        shards.wait_for_heads(time.time_ns() // 1000)
        with (receiver or _Subscribed)(shards) as receiving:
            writers = [
                [
                    start_writer(server, keyspace, range(nth, count, WRITERS_PER_SHARD), per_s)
                    for nth in range(WRITERS_PER_SHARD)
                ]
                for server in shards.servers
            ]
            try:
                arrived_ns = receiving.receive(count)
                committed_ns = [_times_of(each, count) for each in writers]
            finally:
                for writer in chain.from_iterable(writers):
                    writer.kill()
                    writer.wait()
    first = warm_up_s * per_s
    return [
        (arrived_ns[shard][number] - committed_ns[index][number]) / NS_PER_MS
        for index, shard in enumerate(SHARDS)
        for number in range(first, count)
    ]


def start_writer(
    server: MysqlServer, table: str, ids: range, per_s: int
) -> "subprocess.Popen[str]":
    """Start one of WRITERS_PER_SHARD, for the rows with these ids of all `per_s` a second.

    In the end it prints the times of its commits.
    """
    command = [
        sys.executable,
        "-m",
        "benchmarks.paced_writer",
        f"--host={server.host}",
        f"--port={server.port}",
        f"--user={server.root_user}",
        f"--database={DATABASE}",
        f"--table={table}",
        f"--first={ids.start}",
        f"--step={ids.step}",
        f"--end={ids.stop}",
        f"--per-s={per_s / WRITERS_PER_SHARD}",
    ]
    return subprocess.Popen(with_parent_guard(command), stdout=subprocess.PIPE, text=True)


def _times_of(writers: "Sequence[subprocess.Popen[str]]", count: int) -> list[int]:
    """Return when the commits of a shard's rows returned (monotonic ns), by id."""
    times = [0] * count
    for nth, writer in enumerate(writers):
        try:
            said, _ = writer.communicate(timeout=ARRIVE_S_MAX)
        except subprocess.TimeoutExpired as slow:
            message = f"a writer has not ended {ARRIVE_S_MAX:.0f} s after its last row arrived"
            raise Halt(message) from slow
        if writer.returncode != 0:
            message = f"a writer ended with status {writer.returncode}"
            raise Halt(message)
        told: list[int] = json.loads(said)
        wanted = len(range(nth, count, len(writers)))
        if len(told) != wanted:
            message = f"a writer committed {len(told)} of {wanted} rows"
            raise Halt(message)
        times[nth :: len(writers)] = told
    return times


class _Subscribed:
    """A Subscriber of the whole keyspace."""

    def __init__(self, shards: TwoShards) -> None:
        self._shards = shards
        self._subscriber = StreamSubscriber(
            shards.keyspace, start="earliest", config=shards.client, idle_timeout_s=ARRIVE_S_MAX
        )

    def __enter__(self) -> Self:
        self._subscriber.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._subscriber.__exit__(*exc_info)

    def receive(self, count: int) -> dict[str, dict[int, int]]:
        """See Receiver."""
        arrived_ns: dict[str, dict[int, int]] = {shard: {} for shard in SHARDS}
        missing = count * len(SHARDS)
        for event in self._subscriber:
            now_ns = time.monotonic_ns()
            if event.table != self._shards.keyspace or event.after is None:
                continue
            number = event.after["id"]
            assert isinstance(number, int)  # noqa: S101 - the column is a BIGINT
            if number in arrived_ns[event.shard]:
                message = f"row {number} of shard {event.shard} arrived twice"
                raise Halt(message)
            arrived_ns[event.shard][number] = now_ns
            missing -= 1
            if missing == 0:
                return arrived_ns
        # If a producer has ended, that is the reason.
        self._shards.check_alive()
        message = f"the stream ended with {missing} of {count * len(SHARDS)} rows missing"
        raise Halt(message)
