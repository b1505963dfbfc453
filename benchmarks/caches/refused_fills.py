"""The share of fills that are refused because the replica that was read lags."""

import math
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

from benchmarks.binlog_fill import DATABASE, create_table, executed_set, fill
from benchmarks.caches.bench_cache import ALL, open_cache, redis_url
from benchmarks.caches.delaying_proxy import DelayingProxy
from benchmarks.figures import Figure, Turn, figure
from benchmarks.stack import Stack
from benchmarks.workloads import Workload
from caching.protocol.layout import BUCKETS_DEFAULT
from caching.steps import run_steps
from event_token.errors import Halt
from shardstream import Cache, CacheOptions, FreshReader, Read
from shardstream.local.database_server import MysqlServer

LAGS_MS: Final = (0, 50, 1_000)
NAMES: Final = tuple(f"cache.refused_fills.lag_{lag}_ms" for lag in LAGS_MS)
PEER: Final = "1 - exp(-changes/s * lag / buckets)"
ROWS: Final = 1_000
FILLS: Final = 5_000
FILLS_QUICK: Final = 1_000
CHANGES_PER_S: Final = 500
CATCH_UP_S_MAX: Final = 120.0
POLL_S: Final = 0.05
_TABLE: Final = Workload("cache.lagging", ROWS // 100, 100)
_QUERY: Final = f"SELECT title, amount FROM {DATABASE}.{_TABLE.table} WHERE id = %s"
_CHANGE: Final = f"UPDATE {DATABASE}.{_TABLE.table} SET amount = amount + 1 WHERE id = %s"
_FOLLOW: Final = (
    "CHANGE REPLICATION SOURCE TO SOURCE_HOST = %s, SOURCE_PORT = %s, SOURCE_USER = %s, "
    "SOURCE_PASSWORD = %s, SOURCE_AUTO_POSITION = 1, GET_SOURCE_PUBLIC_KEY = 1"
)


def run(stack: Stack, names: Sequence[str], *, runs: int, quick: bool) -> list[Figure]:
    """Measure the shares in per cent at each lag, `runs` times in turn."""
    turns: dict[str, list[Turn]] = {name: [] for name in names}
    with ExitStack() as cleanup:
        primary = stack.mysql(0)
        create_table(primary, _TABLE)
        fill(primary, _TABLE)
        proxy = cleanup.enter_context(DelayingProxy(primary.port))
        replica = stack.replica_of(primary)
        _follow(replica, primary, proxy.port)
        for number in range(runs):
            for lag_ms, name in zip(LAGS_MS, NAMES, strict=True):
                if name in names:
                    stack.report(f"{name}: turn {number + 1}")
                    proxy.lag_s = lag_ms / 1_000
                    load = _Load(stack, primary, replica, f"{name}.{number}")
                    fills = FILLS_QUICK if quick else FILLS
                    turns[name].append(load.measure(fills, proxy.lag_s))
    return [figure(name, "% of fills", turns[name], peer=PEER) for name in names]


class _Load:
    """Rows change and are invalidated at once, while others are read from the replica."""

    def __init__(self, stack: Stack, primary: MysqlServer, replica: MysqlServer, name: str) -> None:
        _wait_caught_up(replica, executed_set(primary))
        self._primary = primary
        self._stop = threading.Event()
        self._changes = 0
        self._reader = FreshReader("bench", ALL, [replica.connect], flavor="mysql")
        now = self._reader.execute("SELECT 1").token
        assert now is not None  # noqa: S101 - MySQL always gives one
        self._store = open_cache(redis_url(stack.redis()), name, now)
        options = CacheOptions(max_behind_s=86_400, lease_ms=0)
        self._cache = Cache(self._store, {ALL: self._reader}, options)
        self._error: Exception | None = None

    def measure(self, fills: int, lag_s: float) -> Turn:
        """Return the share of refused fills in per cent, beside the one that is to be expected."""
        writer = threading.Thread(target=self._write, daemon=True)
        writer.start()
        # Until the replica lags behind changes that are applied.
        time.sleep(lag_s + 1)
        before, began_s = self._changes, time.monotonic()
        for number in range(fills):
            load = partial(_page, row_id=number % ROWS + 1)
            self._cache.get_or_load(f"page:{number}", load)
        per_s = (self._changes - before) / (time.monotonic() - began_s)
        self._stop.set()
        writer.join(CATCH_UP_S_MAX)
        counted = self._cache.counters()
        self._reader.close()
        run_steps(self._store.close())
        if self._error is not None:
            raise self._error
        refused = sum(n for name, n in counted.items() if name.startswith("fills_refused"))
        total = refused + counted.get("fills", 0)
        if total != fills:
            raise Halt(f"{fills} fills were tried, {total:.0f} counted: {dict(counted)}")
        expected = 1 - math.exp(-per_s * lag_s / BUCKETS_DEFAULT)
        return Turn(100 * refused / total, 100 * expected)

    def _write(self) -> None:
        primary_reader = FreshReader("bench", ALL, [self._primary.connect], flavor="mysql")
        try:
            with primary_reader, self._primary.connect() as connection:
                self._write_paced(primary_reader, connection)
        except Exception as error:  # noqa: BLE001 - raised by `measure`
            self._error = error

    def _write_paced(self, reader: FreshReader, connection: Any) -> None:
        due_s = time.monotonic()
        while not self._stop.wait(max(0.0, due_s - time.monotonic())):
            due_s = max(due_s + 1 / CHANGES_PER_S, time.monotonic() - 1)
            with connection.cursor() as cursor:
                cursor.execute(_CHANGE, (self._changes % ROWS + 1,))
            # Keys of their own, all over the buckets.
            self._cache.invalidate([f"changed:{self._changes}"], reader.committed(connection))
            self._changes += 1


def _page(read: Read, *, row_id: int) -> str:
    return str(read(_QUERY, row_id))


def _follow(replica: MysqlServer, primary: MysqlServer, port: int) -> None:
    source = (primary.host, port, primary.user, primary.password)
    with replica.connect() as connection, connection.cursor() as cursor:
        cursor.execute(_FOLLOW, source)
        cursor.execute("START REPLICA")


def _wait_caught_up(replica: MysqlServer, wanted: str) -> None:
    deadline_s = time.monotonic() + CATCH_UP_S_MAX
    with replica.connect() as connection, connection.cursor() as cursor:
        while True:
            cursor.execute("SELECT GTID_SUBSET(%s, @@GLOBAL.gtid_executed)", (wanted,))
            row = cursor.fetchone()
            if row is not None and row[0]:
                return
            if time.monotonic() > deadline_s:
                raise Halt(f"{replica.name} has not reached {wanted}; its log: {replica.log_path}")
            time.sleep(POLL_S)
