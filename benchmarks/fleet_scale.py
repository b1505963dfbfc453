"""The pure parts at 1,000 shards and 5,000 tables, fed with generated progress.

Also what counting for metrics costs a producer per commit, and looks at real topics.
"""

import json
import time
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Final

from benchmarks import fleet_reader, real_shards
from benchmarks.figures import Figure, Turn, figure
from benchmarks.stack import Stack
from event_token import KeyRange
from event_token.position import ShardPosition, StreamPosition
from producers.session.context import ProducerCounters
from producers.settings import ProducerState, ProducerStatus
from shardstream.status.keyspace_report import keyspace_json
from shardstream.status.metrics.families import scrape
from shardstream.status.metrics.fleet import fleet_families
from shardstream.status.metrics.processes import producer_families
from shardstream.status.refresh import FleetState, KeyspaceState
from topics.fleet.view import KeyspaceView, ShardEnds, keyspace_view
from topics.keyspace.topology import (
    ShardEntry,
    TableVindex,
    Topology,
    topology_from_json,
    topology_to_json,
)
from topics.progress.copy_topic import CopyState, TableCopy
from topics.progress.record import GRID_US, Progress, Tick
from topics.reading.planner import Batch, Planner

VIEW: Final = "scale.view"
PLANNER: Final = "scale.planner"
TOPOLOGY: Final = "scale.topology"
METRICS: Final = "scale.count_commit"
NAMES: Final = (VIEW, PLANNER, TOPOLOGY, METRICS, real_shards.NAME, fleet_reader.NAME)
SHARDS: Final = 1_000
TABLES: Final = 5_000
# What a producer of a busy shard writes four times a second.
TICKS: Final = 25
ROWS_PER_TICK: Final = 10
ROUNDS: Final = 10
COMMITS: Final = 100_000
_START_US: Final = 1_700_000_000_000_000
_BOUND_BYTES: Final = 2


def run(stack: Stack, names: Sequence[str], *, runs: int, quick: bool) -> list[Figure]:
    """Measure time and memory, `runs` times."""
    rounds = 1 if quick else ROUNDS
    figures = []
    if VIEW in names:
        view = _look()
        figures += [
            _timed(f"{VIEW}.look", "processor ms", runs, rounds, _look),
            _timed(
                f"{VIEW}.json",
                "processor ms",
                runs,
                rounds,
                lambda: json.dumps(keyspace_json(view)),
            ),
            _timed(f"{VIEW}.scrape", "processor ms", runs, rounds, _scraped(view)),
            _peak(f"{VIEW}.memory", runs, _look),
        ]
    if PLANNER in names:
        planned = PlannedShards(shard_names())
        figures.append(_timed(f"{PLANNER}.batch", "processor ms", runs, rounds, planned.batch))
        figures.append(
            _peak(f"{PLANNER}.memory", runs, lambda: PlannedShards(shard_names()).batch())
        )
    if TOPOLOGY in names:
        topology = _topology()
        value = topology_to_json(topology)
        read = lambda: topology_from_json(value, topology.keyspace, "the benchmark")  # noqa: E731
        figures.append(_timed(f"{TOPOLOGY}.read", "processor ms", runs, rounds, read))
        size = [Turn(len(value) / 1e6) for _ in range(runs)]
        figures.append(figure(f"{TOPOLOGY}.record", "MB", size))
    if METRICS in names:
        counters = ProducerCounters()
        count = lambda: _count(counters)  # noqa: E731
        us = [Turn(_seconds(count, 1) * 1e6 / COMMITS) for _ in range(runs)]
        figures.append(figure(METRICS, "processor us", us))
        answer = scrape(lambda: producer_families("commerce", "-80", counters, _STATUS))
        figures.append(_timed(f"{METRICS}.scrape", "processor ms", runs, rounds, answer))
    if real_shards.NAME in names:
        shards = shard_names(real_shards.SHARDS)
        figures += real_shards.measure(stack, shards, runs=runs, quick=quick)
    if fleet_reader.NAME in names:
        figures += fleet_reader.measure(stack, shard_names(fleet_reader.SHARDS), runs=runs)
    return figures


_STATUS: Final = ProducerStatus("-80", "", 0, 0, 0, 0.0, ProducerState.STREAMING)


def _timed(name: str, unit: str, runs: int, rounds: int, call: Callable[[], object]) -> Figure:
    turns = [Turn(_seconds(call, rounds) * 1e3) for _ in range(runs)]
    return figure(name, unit, turns)


def _seconds(call: Callable[[], object], rounds: int) -> float:
    """The processor time of a call: nothing here waits."""
    began_s = time.process_time()
    for _ in range(rounds):
        call()
    return (time.process_time() - began_s) / rounds


def _peak(name: str, runs: int, call: Callable[[], object]) -> Figure:
    """The most memory that a call holds at once."""
    turns = []
    for _ in range(runs):
        tracemalloc.start()
        call()
        turns.append(Turn(tracemalloc.get_traced_memory()[1] / 1e6))
        tracemalloc.stop()
    return figure(name, "MB at most", turns)


def shard_names(shards: int = SHARDS) -> list[str]:
    """The names of shards of equal size."""
    step = 256**_BOUND_BYTES
    bounds = [
        (n * step // shards).to_bytes(_BOUND_BYTES).rstrip(b"\0").hex() for n in range(shards)
    ]
    bounds[0] = ""
    return [f"{low}-{high}" for low, high in zip(bounds, [*bounds[1:], ""], strict=True)]


def _topology() -> Topology:
    vindexes = tuple(TableVindex("shop", f"table_{n}", ("id",), "xxhash") for n in range(TABLES))
    return Topology("commerce", 1, tuple(map(ShardEntry, shard_names())), vindexes)


def _progress(step: int) -> Progress:
    """What every shard reports in a step."""
    before, rows = step * TICKS * ROWS_PER_TICK, TICKS * ROWS_PER_TICK
    at_us = _START_US + step * TICKS * GRID_US
    return Progress(
        first_seq=before + 1,
        last_seq=before + rows,
        end_offset=before + rows,
        flavor="mysql",
        position="00000000-0000-0000-0000-000000000001:1-1000000",
        head_us=at_us + TICKS * GRID_US,
        ticks=tuple(Tick(at_us + n * GRID_US, before + n * ROWS_PER_TICK) for n in range(TICKS)),
        mark=None,
        server="db-a:3306",
        server_time_us=at_us,
        lag_ms=0,
    )


def _look() -> KeyspaceView:
    """A view with a copy of every table, each on one shard."""
    names = shard_names()
    copies = [
        TableCopy("shop", f"table_{n}", str(n), CopyState.COPYING, 1, 1, rows=n, rows_estimated=n)
        for n in range(TABLES)
    ]
    per_shard = TABLES // SHARDS
    progress = _progress(1)
    looks = {
        name: ShardEnds(
            progress, progress.head_us, 1.0, tuple(copies[n * per_shard : (n + 1) * per_shard])
        )
        for n, name in enumerate(names)
    }
    return keyspace_view(_topology(), looks, progress.head_us)


def _scraped(view: KeyspaceView) -> Callable[[], bytes]:
    state = FleetState(1, (KeyspaceState("commerce", view, 0.0),), _START_US, 1.0)
    return scrape(lambda: fleet_families(state))


class PlannedShards:
    """A planner of shards with generated progress, and the steps of its batches."""

    def __init__(self, names: Sequence[str]) -> None:
        """Begin without progress."""
        self._names = names
        start = {name: ShardPosition(0, 0, None) for name in self._names}
        self._planner = Planner(StreamPosition(0, _START_US, start), KeyRange.parse("-"))
        self._step = 0

    def batch(self) -> None:
        """Take what all shards report, and plan a batch of it."""
        progress = _progress(self._step)
        for name in self._names:
            self._planner.observe(name, progress, self._step)
        batch = self._planner.next_batch(self._step)
        if not isinstance(batch, Batch) or len(batch.ranges) != len(self._names):
            raise AssertionError(batch)  # the figure would be of something else
        self._planner.advance(batch)
        self._step += 1


def _count(counters: ProducerCounters) -> None:
    for _ in range(COMMITS):
        counters.turn()
        counters.binlog_bytes += 1
        counters.committed(records=1_000, transactions=10, size=64_000, took_s=0.01)
        counters.event_age_s.observe(0.05)
