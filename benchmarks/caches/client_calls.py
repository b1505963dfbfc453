"""Hits, and misses with their fills, beside plain cache-aside with redis-py."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from decimal import Decimal
from statistics import median
from typing import Any, Final

from benchmarks.binlog_fill import DATABASE, create_table, fill
from benchmarks.caches.bench_cache import ALL, open_cache, redis_client, redis_url
from benchmarks.figures import Figure, Turn, figure
from benchmarks.stack import Stack
from benchmarks.workloads import Workload
from caching.steps import run_steps
from shardstream import Cache, CacheOptions, FreshReader

HIT: Final = "cache.hit"
FILL: Final = "cache.miss_and_fill"
NAMES: Final = (HIT, FILL)
PEER: Final = "redis-py: GET, SELECT, SETEX"
ROWS: Final = 1_000
TTL_S: Final = 3_600
# A turn alternates this often between ours and the peer's, so that both have the same machine.
ROUNDS: Final = 15
ROUNDS_QUICK: Final = 5
HITS_PER_ROUND: Final = 2_000
FILLS_PER_ROUND: Final = 200
_TABLE: Final = Workload("cache.pages", ROWS // 100, 100)
_QUERY: Final = f"SELECT id, title, amount, note FROM {DATABASE}.{_TABLE.table} WHERE id = %s"

Call = Callable[[str, int], object]


def run(stack: Stack, names: Sequence[str], *, runs: int, quick: bool) -> list[Figure]:
    """Measure calls per second of one client, `runs` times."""
    server, redis = stack.mysql(0), stack.redis()
    create_table(server, _TABLE)
    fill(server, _TABLE)
    reader = FreshReader("bench", ALL, [server.connect], flavor="mysql")
    rounds = ROUNDS_QUICK if quick else ROUNDS
    plain = closing(redis_client(redis))
    with reader, server.connect(autocommit=True) as connection, plain as client:
        # As an application would keep it.
        now = reader.execute("SELECT 1").token
        assert now is not None  # noqa: S101 - MySQL always gives one
        store = open_cache(redis_url(redis), "calls", now)
        cache = Cache(store, {ALL: reader}, CacheOptions(ttl_s=TTL_S, max_behind_s=86_400))
        calls = _Calls(cache, client, connection)
        figures = []
        if HIT in names:
            turns = [_turn(stack, calls, HIT, each, rounds) for each in range(runs)]
            figures.append(figure(HIT, "calls/s of one client", turns, peer=PEER))
        if FILL in names:
            turns = [_turn(stack, calls, FILL, each, rounds) for each in range(runs)]
            figures.append(figure(FILL, "calls/s of one client", turns, peer=PEER))
        run_steps(store.close())
    return figures


class _Calls:
    """The same page, through either cache."""

    def __init__(self, cache: Cache, redis: Any, connection: Any) -> None:
        self._cache = cache
        self._redis = redis
        self._connection = connection

    def ours(self, key: str, row_id: int) -> object:
        """Return a page through shardstream's cache."""
        return self._cache.get_or_load(key, lambda read: _page(read(_QUERY, row_id)))

    def theirs(self, key: str, row_id: int) -> object:
        """Return a page by cache-aside."""
        stored = self._redis.get(key)
        if stored is not None:
            return json.loads(stored)
        with self._connection.cursor() as cursor:
            cursor.execute(_QUERY, (row_id,))
            page = _page(cursor.fetchall())
        self._redis.setex(key, TTL_S, json.dumps(page))
        return page


def _turn(stack: Stack, calls: _Calls, name: str, number: int, rounds: int) -> Turn:
    stack.report(f"{name}: turn {number + 1}")
    count = HITS_PER_ROUND if name == HIT else FILLS_PER_ROUND
    both = (calls.ours, calls.theirs)
    ours: list[float] = []
    theirs: list[float] = []
    if name == HIT:
        for call in both:
            _per_s(call, _keys("hit", ROWS))
    for each in range(rounds):
        prefix = "hit" if name == HIT else f"fill:{number}:{each}"
        for call, rates in zip(both, (ours, theirs), strict=True):
            rates.append(_per_s(call, _keys(prefix, count)))
    ratio = median(a / b for a, b in zip(ours, theirs, strict=True))
    rate = median(theirs)
    return Turn(rate * ratio, rate)


def _keys(prefix: str, count: int) -> Iterator[tuple[str, int]]:
    return ((f"{prefix}:{n if prefix != 'hit' else n % ROWS}", n % ROWS + 1) for n in range(count))


def _per_s(call: Call, keys: Iterator[tuple[str, int]]) -> float:
    asked = list(keys)
    began_s = time.perf_counter()
    for key, row_id in asked:
        call(key, row_id)
    return len(asked) / (time.perf_counter() - began_s)


def _page(rows: Sequence[Any]) -> Mapping[str, object] | None:
    if not rows:
        return None
    row_id, title, amount, note = rows[0]
    assert isinstance(amount, Decimal)  # noqa: S101 - the column's type
    return {"id": row_id, "title": title, "amount": str(amount), "note": note}
