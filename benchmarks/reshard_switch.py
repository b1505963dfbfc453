"""Splits a shard under a steady write load: how long writes stop, how long a reader waits."""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise
from typing import Any, Final, Self, TypeVar

import pymysql

from benchmarks.binlog_fill import executed_set
from benchmarks.figures import Figure, Turn, figure
from benchmarks.our_producer import BenchKeyspace, OurProducer
from benchmarks.stack import Stack
from event_token import Flavor, KeyRange
from event_token.errors import Halt, Retry, UsageError
from resharding.apply.applier import ApplierSettings, run_applier
from resharding.bookkeeping import ReshardPlan
from resharding.create import CreateRequest, create_reshard
from resharding.servers import ReshardServer
from resharding.switch.executor import run_switch
from resharding.switch.shard_writes import SwitchSettings
from resharding.verification import VerifySettings, verify_target
from shardstream.local.database_server import MysqlServer
from topics.kafka.client import ClientConfig
from topics.keyspace.vindexes import vindex_named
from topics.stream.subscriber import StreamSubscriber

WRITE_STOP: Final = "reshard.write_stop"
HOP_PAUSE: Final = "reshard.hop_pause"
NAMES: Final = (WRITE_STOP, HOP_PAUSE)
SOURCE: Final = "-"
TARGETS: Final = ("-80", "80-")
SHARDS: Final = (SOURCE, *TARGETS)
TABLE: Final = "orders"
VINDEX: Final = "hash"
# Single-row transactions, each by one connection that waits for its commit.
WRITES_PER_S: Final = 200
# Rows before the split begins, and after the switch.
ROWS_BEFORE: Final = 2_000
ROWS_AFTER: Final = 1_000
# A refused write is retried after this time, on the shard that serves then.
REFUSED_S: Final = 0.005
# After this time a step hangs.
STEP_S_MAX: Final = 120.0
# A target may lag at the moment of the switch or of the comparison, which then changes nothing.
TRIES_MAX: Final = 20
AGAIN_S: Final = 0.5
POLL_S: Final = 0.01
# How soon a reader notices that it should stop.
IDLE_S: Final = 0.5
APP: Final = "bench_app"
APP_PASSWORD: Final = "of-the-benchmark"  # noqa: S105 - of a server that lives for a minute

T = TypeVar("T")


def run(stack: Stack, names: tuple[str, ...], *, runs: int) -> list[Figure]:
    """Split a shard `runs` times; return milliseconds, where less is better."""
    turns: dict[str, list[Turn]] = {name: [] for name in NAMES}
    for number in range(1, runs + 1):
        stack.report(f"{', '.join(names)}: split {number} of {runs} at {WRITES_PER_S} writes/s")
        stopped_ms, paused_ms = _Split(stack, f"switch{number}").measure()
        turns[WRITE_STOP].append(Turn(stopped_ms))
        turns[HOP_PAUSE].append(Turn(paused_ms))
    return [figure(name, "ms", turns[name]) for name in names]


class _Split:
    """One keyspace on three servers, with one shard that becomes two."""

    def __init__(self, stack: Stack, name: str) -> None:
        self.name = name
        self.servers = {shard: stack.mysql(index) for index, shard in enumerate(SHARDS)}
        for shard, server in self.servers.items():
            _make_ready(server, locked=shard != SOURCE)
        with self.servers[SOURCE].connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {name}")
            cursor.execute(f"CREATE TABLE {name}.{TABLE} (id BIGINT PRIMARY KEY, at DATETIME(6))")
        # The log holds all of its rows, but not the statement that created the table.
        starts = {shard: executed_set(server) for shard, server in self.servers.items()}
        self.keyspace = BenchKeyspace(
            stack.folder,
            name,
            stack.kafka().bootstrap_servers,
            {SOURCE: self.servers[SOURCE]},
            targets={shard: self.servers[shard] for shard in TARGETS},
            settings=(
                f'[[keyspaces.{name}.vindexes]]\ndatabase = "{name}"\ntable = "{TABLE}"\n'
                f'column = "id"\nvindex = "{VINDEX}"\n'
            ),
        )
        self.producers = {
            shard: OurProducer(self.keyspace, shard, start=f"gtid:{start}")
            for shard, start in starts.items()
        }

    def measure(self) -> tuple[float, float]:
        """Return how long writes were stopped, and the stream's longest pause at the hop, in ms."""
        with ExitStack() as stack:
            for producer in self.producers.values():
                stack.callback(producer.kill)
            self.producers[SOURCE].start()
            reader = stack.enter_context(_Reader(self.keyspace))
            writer = stack.enter_context(_Writer(self.name, self.servers))
            _wait(lambda: reader.rows >= ROWS_BEFORE, "rows before the split", reader, writer)
            plan = create_reshard(
                CreateRequest(
                    reshard_id=self.name,
                    keyspace=self.name,
                    sources=(SOURCE,),
                    targets=TARGETS,
                    servers={shard: self._admin(shard) for shard in SHARDS},
                    kafka=self.keyspace.client,
                    from_log=True,
                )
            ).plan
            for target in TARGETS:
                self.producers[target].start()
                stack.enter_context(_Applier(plan, self._admin(target), self.keyspace.client))
            _again(lambda: self._verify(plan))
            settings = SwitchSettings(
                self.name, self.name, self._admin, (f"{APP}@%",), self.keyspace.client
            )
            report = _again(lambda: run_switch(settings, lambda _: None))
            until = reader.rows + ROWS_AFTER
            _wait(lambda: reader.rows >= until, "rows after the switch", reader, writer)
            writer.end()
            _wait(lambda: reader.rows >= writer.rows, "the last rows", reader)
        reader.check(writer.rows)
        if report.stopped_ms is None:
            raise Halt(f"{self.name}: the switch took more than one attempt, so it has no duration")
        return float(report.stopped_ms), reader.longest_pause_ms()

    def _admin(self, shard: str) -> ReshardServer:
        server = self.servers[shard]
        return ReshardServer(
            server.host, server.port, server.root_user, "", shard=shard, flavor=Flavor.MYSQL
        )

    def _verify(self, plan: ReshardPlan) -> None:
        sources = {SOURCE: self._admin(SOURCE)}
        for target in TARGETS:
            found = verify_target(
                VerifySettings(plan, self._admin(target), sources, self.keyspace.client)
            )
            if found.differing:
                raise Halt(f"{target}: {found.differing} rows differ: {found.named}")


class _Working(ABC):
    """Work in a separate thread; `check` and the end of the block raise its error."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self.end(check=error is None)

    def end(self, *, check: bool = True) -> None:
        """Stop it and wait."""
        self.stop.set()
        self._thread.join(STEP_S_MAX)
        if check:
            self.check()

    def check(self) -> None:
        """Raise Halt if it has failed."""
        if self._error is not None:
            raise Halt(f"{type(self).__name__[1:].lower()}: {self._error}") from self._error

    def _work(self) -> None:
        try:
            self.work()
        except BaseException as error:  # noqa: BLE001 - raised by `check`
            self._error = error

    @abstractmethod
    def work(self) -> None:
        """Run in the thread until stopped."""


class _Applier(_Working):
    def __init__(self, plan: ReshardPlan, target: ReshardServer, kafka: ClientConfig) -> None:
        super().__init__()
        self._settings = ApplierSettings(plan, target, kafka)

    def work(self) -> None:
        run_applier(self._settings, self.stop)


class _Writer(_Working):
    """The application: writes each row to the serving shard, and retries when refused."""

    def __init__(self, database: str, servers: dict[str, MysqlServer]) -> None:
        super().__init__()
        self.rows = 0
        self._insert = f"INSERT INTO {database}.{TABLE} VALUES (%s, NOW(6))"
        self._servers = servers
        self._sessions: dict[str, Any] = {}
        self._vindex = vindex_named(VINDEX)
        self._ranges = {target: KeyRange.parse(target) for target in TARGETS}
        self._is_split = False

    def work(self) -> None:
        """Write rows 0, 1, ... at a steady rate."""
        begun_s = time.monotonic()
        while not self.stop.wait(max(0.0, begun_s + self.rows / WRITES_PER_S - time.monotonic())):
            while not self._wrote(self.rows):
                if self.stop.wait(REFUSED_S):
                    return
            self.rows += 1
        for session in self._sessions.values():
            session.close()

    def _wrote(self, number: int) -> bool:
        """Return whether the serving shard accepted the row; targets are tried after the source."""
        keyspace_id = self._vindex.keyspace_id(number)
        [target] = [shard for shard, part in self._ranges.items() if part.contains(keyspace_id)]
        shard = target if self._is_split else SOURCE
        try:
            if shard not in self._sessions:
                server = self._servers[shard]
                self._sessions[shard] = pymysql.connect(
                    host=server.host,
                    port=server.port,
                    user=APP,
                    password=APP_PASSWORD,
                    autocommit=True,
                )
            with self._sessions[shard].cursor() as cursor:
                cursor.execute(self._insert, (number,))
        except pymysql.err.MySQLError:
            # Locked out, killed or read-only: never open on both sides, so trying is safe.
            if (session := self._sessions.pop(shard, None)) is not None:
                session._force_close()  # noqa: SLF001 - it may have been killed
            self._is_split = not self._is_split
            return False
        return True


class _Reader(_Working):
    """A Subscriber across the split: when each row arrived, and from which shard."""

    def __init__(self, keyspace: BenchKeyspace) -> None:
        super().__init__()
        self._keyspace = keyspace
        self._came: list[tuple[float, str, int]] = []

    @property
    def rows(self) -> int:
        """How many rows have arrived."""
        return len(self._came)

    def work(self) -> None:
        """Receive rows until stopped."""
        name = self._keyspace.name
        with StreamSubscriber(
            name, start="earliest", config=self._keyspace.client, idle_timeout_s=IDLE_S
        ) as stream:
            while not self.stop.is_set():
                for event in stream:
                    if event.table == TABLE and event.after is not None:
                        number = event.after["id"]
                        assert isinstance(number, int)  # noqa: S101 - the column is a BIGINT
                        self._came.append((time.monotonic(), event.shard, number))
                    if self.stop.is_set():
                        break

    def check(self, rows: int | None = None) -> None:
        """Raise Halt if it has failed or, given `rows`, did not receive each exactly once."""
        super().check()
        if rows is not None and sorted(number for *_, number in self._came) != list(range(rows)):
            raise Halt(
                f"{self._keyspace.name}: {self.rows} events arrived, {rows} rows were written"
            )

    def longest_pause_ms(self) -> float:
        """Return the longest pause from the source's last second to the targets' first, in ms."""
        hop = next(n for n, (_, shard, _id) in enumerate(self._came) if shard != SOURCE)
        near = self._came[max(0, hop - WRITES_PER_S) : hop + WRITES_PER_S]
        return 1_000 * max(b - a for (a, *_), (b, *_) in pairwise(near))


def _make_ready(server: MysqlServer, *, locked: bool) -> None:
    """Remove what the previous turn left, and create the application's account."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("DROP DATABASE IF EXISTS _shardstream")
        cursor.execute(f"DROP USER IF EXISTS '{APP}'@'%'")
        lock = "LOCK" if locked else "UNLOCK"
        cursor.execute(f"CREATE USER '{APP}'@'%' IDENTIFIED BY '{APP_PASSWORD}' ACCOUNT {lock}")
        cursor.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON *.* TO '{APP}'@'%'")


def _again(step: Callable[[], T]) -> T:
    """Repeat a step, which changes nothing while a target lags, until it succeeds."""
    for _ in range(TRIES_MAX - 1):
        try:
            return step()
        except (Retry, UsageError):
            time.sleep(AGAIN_S)
    return step()


def _wait(is_done: Callable[[], bool], what: str, *working: _Working) -> None:
    deadline_s = time.monotonic() + STEP_S_MAX
    while not is_done():
        for each in working:
            each.check()
        if time.monotonic() > deadline_s:
            raise Halt(f"{what} have not arrived within {STEP_S_MAX:g} s")
        time.sleep(POLL_S)
