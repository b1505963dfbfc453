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
from shardstream.local.processes import with_parent_guard
from topics.stream.subscriber import StreamSubscriber

NAME = "latency.commit_to_subscriber"
PER_SHARD_PER_S = 1_000
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


def run(stack: Stack, *, runs: int, quick: bool) -> list[Figure]:
    """Measure `runs` times; return p50 and p99 in milliseconds."""
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
) -> list[float]:
    """Return the delays of all events after the warm-up, in milliseconds.

    `receiver` makes what the rows reach; None: a Subscriber.
    """
    count = (warm_up_s + measure_s) * PER_SHARD_PER_S
    for index in range(len(SHARDS)):
        create_table(stack.mysql(index), Workload(f"latency.{keyspace}", 0, 1))
    with TwoShards(stack, keyspace) as shards:
        # Both have caught up before the first write.
        shards.wait_for_heads(time.time_ns() // 1000)
        with (receiver or _Subscribed)(shards) as receiving:
            writers = [
                [_start_writer(server, keyspace, count, nth) for nth in range(WRITERS_PER_SHARD)]
                for server in shards.servers
            ]
            try:
                arrived_ns = receiving.receive(count)
                committed_ns = [_times_of(each, count) for each in writers]
            finally:
                for writer in chain.from_iterable(writers):
                    writer.kill()
                    writer.wait()
    first = warm_up_s * PER_SHARD_PER_S
    return [
        (arrived_ns[shard][number] - committed_ns[index][number]) / NS_PER_MS
        for index, shard in enumerate(SHARDS)
        for number in range(first, count)
    ]


def _start_writer(server: MysqlServer, table: str, count: int, nth: int) -> "subprocess.Popen[str]":
    """Start the writer of every WRITERS_PER_SHARDth of a shard's rows, from the `nth` on."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.paced_writer",
        f"--host={server.host}",
        f"--port={server.port}",
        f"--user={server.root_user}",
        f"--database={DATABASE}",
        f"--table={table}",
        f"--first={nth}",
        f"--step={WRITERS_PER_SHARD}",
        f"--end={count}",
        f"--per-s={PER_SHARD_PER_S / WRITERS_PER_SHARD}",
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
