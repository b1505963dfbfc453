"""The time from COMMIT's return in MySQL until no old value can be a hit, beside the Subscriber's.

Both under the load of the latency benchmark, one after the other in each turn.
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Self

from benchmarks import latency
from benchmarks.binlog_fill import DATABASE
from benchmarks.caches.bench_cache import redis_url
from benchmarks.figures import Figure, Turn, figure, percentile
from benchmarks.stack import Stack
from benchmarks.two_shards import SHARDS, TwoShards
from caching.invalidating.invalidator import Invalidator, InvalidatorOptions, InvalidatorStatus
from caching.invalidating.log import LogStream, StartAt
from caching.key_map import KeyMap
from caching.protocol import CacheLayout
from caching.protocol.layout import BUCKETS_DEFAULT
from caching.steps import run_steps
from caching.stores.on_redis.store import RedisFloors
from caching.stores.opening import open_store
from caching.stores.store import Invalidated, KeyChange
from event_token import ClockUncertainty, KeyRange
from event_token.errors import Halt
from topics.schemas import open_schema_ids

NAME: Final = "cache.commit_to_invalidation"
PEER: Final = "Subscriber"
# Made by the invalidator at its first publication.
FLOORS_S_MAX: Final = 120.0
# The load takes half a minute.
APPLIED_S_MAX: Final = 300.0
POLL_S: Final = 0.05


def run(stack: Stack, _names: Sequence[str], *, runs: int, quick: bool) -> list[Figure]:
    """Measure `runs` times; return p50 and p99 in milliseconds."""
    measure_s = latency.MEASURE_S_QUICK if quick else latency.MEASURE_S
    p50: list[Turn] = []
    p99: list[Turn] = []
    warm_up_s = latency.BROKER_WARM_UP_S_QUICK
    for number in range(1, runs + 1):
        stack.report(f"{NAME}: turn {number} of {runs}")
        theirs_ms = latency.measure(stack, f"received{number}", warm_up_s, measure_s)
        warm_up_s = latency.WARM_UP_S
        ours_ms = latency.measure(
            stack,
            f"invalidated{number}",
            warm_up_s,
            measure_s,
            lambda shards: _Invalidated(stack, shards),
        )
        for turns, percent in ((p50, 50), (p99, 99)):
            turns.append(Turn(percentile(ours_ms, percent), percentile(theirs_ms, percent)))
    return [
        figure(f"{NAME}.p50", "ms", p50, peer=PEER),
        figure(f"{NAME}.p99", "ms", p99, peer=PEER),
    ]


class _TimedFloors(RedisFloors):
    """Notes when the change of each row was applied."""

    def __init__(
        self, layout: CacheLayout, url: str, applied_ns: dict[str, dict[int, int]]
    ) -> None:
        super().__init__(layout, url)
        self._applied_ns = applied_ns

    def invalidate(self, changes: Iterable[KeyChange]) -> Invalidated:
        """See `FloorStore.invalidate`."""
        taken = list(changes)
        done = super().invalidate(taken)
        now_ns = time.monotonic_ns()
        for change in taken:
            self._applied_ns[change.token.shard].setdefault(int(change.key), now_ns)
        return done


class _Invalidated:
    """An invalidator, in a thread, of a cache in which every bucket has a floor."""

    def __init__(self, stack: Stack, shards: TwoShards) -> None:
        self._shards = shards
        self._cache = shards.keyspace
        self._url = redis_url(stack.redis())
        self._applied_ns: dict[str, dict[int, int]] = {shard: {} for shard in SHARDS}
        keys = KeyMap()
        keys.of(f"{DATABASE}.{shards.keyspace}")(lambda row: [str(row["id"])])
        config = shards.client
        stream = LogStream(
            shards.keyspace,
            KeyRange.parse("-"),
            config,
            open_schema_ids(config, None),
            ClockUncertainty(),
        )
        self._invalidator = Invalidator(
            stream, keys, self._open_floors, InvalidatorOptions(start=StartAt.LATEST), self._note
        )
        self._status: InvalidatorStatus | None = None
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        with_floors = open_store(self._url, self._cache)
        run_steps(with_floors.want_floors(range(BUCKETS_DEFAULT)))
        run_steps(with_floors.close())
        self._wait(lambda: self._made() >= BUCKETS_DEFAULT, "floors are made", FLOORS_S_MAX)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join(FLOORS_S_MAX)
        if self._error is not None and exc_info[0] is None:
            raise self._error

    def receive(self, count: int) -> dict[str, dict[int, int]]:
        """See `latency.Receiver`."""

        def are_all_applied() -> bool:
            self._shards.check_alive()
            return all(len(each) >= count for each in self._applied_ns.values())

        self._wait(are_all_applied, "changes are applied", APPLIED_S_MAX)
        return self._applied_ns

    def _open_floors(self) -> RedisFloors:
        return _TimedFloors(CacheLayout(self._cache), self._url, self._applied_ns)

    def _note(self, status: InvalidatorStatus) -> None:
        self._status = status

    def _made(self) -> int:
        return self._status.floors_made if self._status else 0

    def _run(self) -> None:
        try:
            self._invalidator.run(self._stop)
        except BaseException as error:  # noqa: BLE001 - raised by the block
            self._error = error

    def _wait(self, done: Callable[[], bool], what: str, seconds_max: float) -> None:
        deadline_s = time.monotonic() + seconds_max
        while not done():
            if self._error is not None:
                raise self._error
            if time.monotonic() > deadline_s:
                raise Halt(f"the invalidator of {self._cache}: not all {what}: {self._status}")
            time.sleep(POLL_S)
