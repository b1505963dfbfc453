"""Invalidations per second of one and of two invalidators, and the memory that floors take."""

import multiprocessing
import random
import time
from collections.abc import Iterator, Sequence
from multiprocessing.synchronize import Barrier
from typing import Any, Final

from benchmarks.caches.bench_cache import (
    open_cache,
    open_invalidator,
    redis_client,
    redis_url,
    token,
)
from benchmarks.figures import Figure, Turn, figure
from benchmarks.stack import Stack
from caching.invalidating.invalidator import EVENTS_MAX
from caching.stores.store import KeyChange

ONE: Final = "cache.invalidations"
TWO: Final = "cache.invalidations.two_processes"
MEMORY: Final = "cache.floors_memory"
NAMES: Final = (ONE, TWO, MEMORY)
PEER: Final = "redis-py: DEL in pipelines"
KEYS: Final = 1_000_000
# Seconds of work on one core; each process of a turn applies as many.
CHANGES: Final = 40_000
CHANGES_QUICK: Final = 10_000
# A worker that has not begun by then never will.
BEGIN_S_MAX: Final = 120.0
NS_PER_S: Final = 1_000_000_000
SHARDS: Final = ("-80", "80-")
# Changes per call while only memory counts.
MEMORY_BATCH: Final = 10_000


def run(stack: Stack, names: Sequence[str], *, runs: int, quick: bool) -> list[Figure]:
    """Measure rates `runs` times in turn with the peer; memory once."""
    changes = CHANGES_QUICK if quick else CHANGES
    url = redis_url(stack.redis())
    figures = []
    for name, processes in ((ONE, 1), (TWO, 2)):
        if name in names:
            turns = []
            for number in range(runs):
                stack.report(f"{name}: turn {number + 1}, {processes} x {changes:,} changes")
                cache = f"{name}.{number}"
                open_cache(url, cache, token(1)).close()
                ours = _rate(apply_ours, processes, url, cache, changes)
                theirs = _rate(apply_deletes, processes, url, cache, changes)
                turns.append(Turn(ours, theirs))
            figures.append(figure(name, "changes of single rows/s", turns, peer=PEER))
    if MEMORY in names:
        figures.append(_memory(stack, url))
    return figures


def _batches(seed: int, changes: int) -> Iterator[list[KeyChange]]:
    """Yield batches as an invalidator takes them: transactions of one row, keys at random."""
    chosen = random.Random(seed)
    for begin in range(0, changes, EVENTS_MAX):
        yield [
            KeyChange(f"row:{chosen.randrange(KEYS)}", token(2 + number))
            for number in range(begin, min(begin + EVENTS_MAX, changes))
        ]


def apply_ours(url: str, cache: str, seed: int, changes: int, barrier: Barrier) -> tuple[int, int]:
    """Apply changes to floors and values; return when it began and ended (monotonic ns)."""
    floors = open_invalidator(url, cache)
    batches = list(_batches(seed, changes))
    barrier.wait(BEGIN_S_MAX)
    began_ns = time.monotonic_ns()
    for batch in batches:
        floors.invalidate(batch)
    return began_ns, time.monotonic_ns()


def apply_deletes(
    url: str, cache: str, seed: int, changes: int, barrier: Barrier
) -> tuple[int, int]:
    """Delete the keys of the same changes; return when it began and ended (monotonic ns)."""
    from redis import Redis  # noqa: PLC0415 - only these processes use it

    client = Redis.from_url(url)
    batches = list(_batches(seed, changes))
    barrier.wait(BEGIN_S_MAX)
    began_ns = time.monotonic_ns()
    for batch in batches:
        with client.pipeline(transaction=False) as pipeline:
            for change in batch:
                pipeline.delete(f"{cache}:{change.key}")
            pipeline.execute()
    return began_ns, time.monotonic_ns()


def _rate(apply: Any, processes: int, url: str, cache: str, changes: int) -> float:
    """Return the changes per second of all processes, from the first's begin to the last's end."""
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager, context.Pool(processes) as pool:
        barrier = manager.Barrier(processes)
        arguments = [(url, cache, seed, changes, barrier) for seed in range(processes)]
        times = pool.starmap(apply, arguments, chunksize=1)
    took_ns: int = max(end for _, end in times) - min(begin for begin, _ in times)
    return processes * changes * NS_PER_S / took_ns


def _memory(stack: Stack, url: str) -> Figure:
    """Return the memory of a server after a million keys of two shards have changed."""
    stack.report(f"{MEMORY}: {KEYS:,} keys of {len(SHARDS)} shards change")
    cache = "memory"
    with redis_client(stack.redis()) as client:
        client.flushall()
        before = int(client.info("memory")["used_memory"])
        open_cache(url, cache, *(token(1, shard) for shard in SHARDS)).close()
        floors = open_invalidator(url, cache)
        for begin in range(0, KEYS, MEMORY_BATCH):
            floors.invalidate(
                KeyChange(f"row:{number}", token(2 + begin, SHARDS[number % len(SHARDS)]))
                for number in range(begin, begin + MEMORY_BATCH)
            )
        floors.close()
        used = int(client.info("memory")["used_memory"]) - before
        client.flushall()
    return figure(MEMORY, "MB in Redis, 1 M changed keys", [Turn(used / 1e6)])
