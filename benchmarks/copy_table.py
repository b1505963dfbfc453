"""Copies a filled table to Kafka: ours beside Debezium's initial and incremental snapshots."""

import json
import time
from collections.abc import Callable, Sequence

from benchmarks.binlog_fill import DATABASE
from benchmarks.debezium import PEER, Debezium, Endpoints
from benchmarks.figures import DrainRates, Figure, Turn, drain_rates, figure
from benchmarks.our_producer import BenchKeyspace, OurProducer
from benchmarks.paced_writer import write_paced
from benchmarks.repeated_copies import ANSWER_S_MAX, RepeatedCopies
from benchmarks.stack import Stack
from benchmarks.watch import TopicEnd, create_topic, sample_until
from event_token.errors import Halt
from topics.kafka.client import ClientConfig
from topics.progress.copy_topic import CopyAction, CopyRequest, CopyState, ask_and_wait, read_copies

INITIAL = "copy.beside_initial_snapshot"
INCREMENTAL = "copy.beside_incremental_snapshot"
WRITES = "copy.concurrent_writes"
NAMES = (INITIAL, INCREMENTAL, WRITES)

ROWS = 2_000_000
ROWS_QUICK = 200_000
TABLE = "stress_test_pk"
SIGNALS = "signals"
WRITTEN = "written_beside"
ALL = "-"
# The cost of a copy shows over many chunks and commits, not over half a second.
WRITE_S = 15.0
BURST = 500
# A writer without pauses: its rate tells how much the copy costs.
UNPACED_PER_S = 1_000_000


def run(stack: Stack, names: Sequence[str], *, runs: int, quick: bool) -> list[Figure]:
    """Measure `runs` times in turn. Raises Halt if a copy loses or repeats rows."""
    return CopyBenchmark(stack, ROWS_QUICK if quick else ROWS).run(names, runs)


class CopyBenchmark:
    """A table on one server, and the systems that copy it."""

    def __init__(self, stack: Stack, rows: int) -> None:
        """Start the servers and fill the table."""
        self._stack = stack
        self._rows = rows
        self._server = stack.mysql(0)
        self._brokers = stack.kafka().bootstrap_servers
        self._client = ClientConfig({"bootstrap.servers": self._brokers})
        self._turns = 0
        self._fill()

    def _fill(self) -> None:
        self._stack.report(f"copy: filling a table with {self._rows:,} rows")
        with self._server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE IF NOT EXISTS {DATABASE}")
            cursor.execute(f"USE {DATABASE}")
            cursor.execute(
                f"CREATE TABLE {TABLE} (id BIGINT NOT NULL, sig VARCHAR(40), "
                "c CHAR(8) NOT NULL DEFAULT '', PRIMARY KEY (id, c))"
            )
            cursor.execute(
                f"CREATE TABLE {SIGNALS} (id VARCHAR(42) PRIMARY KEY, type VARCHAR(32), "
                "data VARCHAR(2048))"
            )
            row = "LEFT(SHA2({0}, 256), 40), LEFT(SHA2({0}, 256), 8)"
            cursor.execute(f"INSERT INTO {TABLE} SELECT 1, {row.format(1)}")
            count = 1
            while count < self._rows:
                added = min(count, self._rows - count)
                number = f"id + {count}"
                cursor.execute(
                    f"INSERT INTO {TABLE} SELECT {number}, {row.format(number)} "
                    f"FROM {TABLE} WHERE id <= {added}"
                )
                count += added
            cursor.execute(f"ANALYZE TABLE {TABLE}")

    def run(self, names: Sequence[str], runs: int) -> list[Figure]:
        """Ours and the peer, one after the other, `runs` times."""
        figures = []
        for name, peer in ((INITIAL, self._initial), (INCREMENTAL, self._incremental)):
            if name in names:
                figures += self._beside(name, peer, runs)
        if WRITES in names:
            figures += self._writes(runs)
        return figures

    def _beside(self, name: str, peer: Callable[[], DrainRates], runs: int) -> list[Figure]:
        pairs = []
        for number in range(1, runs + 1):
            self._stack.report(f"{name}: run {number} of {runs}")
            pairs.append((self._ours(), peer()))
        steady = [Turn(a.steady_per_s, b.steady_per_s) for a, b in pairs]
        cpu = [Turn(a.cpu_s_per_100k, b.cpu_s_per_100k) for a, b in pairs]
        return [
            figure(name, "rows/s, steady", steady, peer=PEER),
            figure(f"{name}.cpu", "processor s per 100 k rows", cpu, peer=PEER),
        ]

    def _producer(self) -> tuple[BenchKeyspace, OurProducer]:
        self._turns += 1
        keyspace = BenchKeyspace(
            self._stack.folder, f"copy{self._turns}", self._brokers, {ALL: self._server}
        )
        return keyspace, OurProducer(keyspace, ALL, start="latest")

    def _ours(self) -> DrainRates:
        keyspace, producer = self._producer()
        end = TopicEnd(self._client, producer.topics.log)
        end()
        producer.start()
        try:
            self._ask(keyspace, producer)
            started_at_s = time.monotonic()
            samples = sample_until(
                end,
                lambda offset: offset >= self._rows and self._copied(producer) == self._rows,
                cpu_s=producer.cpu_s,
                check_alive=producer.check_alive,
            )
            producer.stop()
        finally:
            producer.kill()
            end.close()
        return drain_rates(samples, messages=self._rows, started_at_s=started_at_s)

    def _ask(self, keyspace: BenchKeyspace, producer: OurProducer) -> None:
        request = CopyRequest(CopyAction.START, (f"{DATABASE}.{TABLE}",))
        answer = ask_and_wait(keyspace.client, producer.topics, request, ANSWER_S_MAX)
        if answer.problems:
            raise Halt("; ".join(answer.problems))

    def _copied(self, producer: OurProducer) -> int:
        """Return the rows copied once the copy has ended, 0 before."""
        [copy] = read_copies(self._client, producer.topics).values()
        if copy.state is CopyState.COMPLETED and copy.rows != self._rows:
            raise Halt(f"{copy.rows} of {self._rows} rows were copied")
        return copy.rows if copy.state is CopyState.COMPLETED else 0

    def _debezium(self, mode: str) -> tuple[Debezium, TopicEnd]:
        self._turns += 1
        prefix = f"copy{self._turns}"
        topic = f"{prefix}.{DATABASE}.{TABLE}"
        create_topic(self._client, topic)
        more = (
            f"topic.prefix={prefix}\nschema.history.internal.kafka.topic={prefix}.history\n"
            f"snapshot.mode={mode}\nsignal.data.collection={DATABASE}.{SIGNALS}\n"
            f"table.include.list={DATABASE}.{TABLE},{DATABASE}.{SIGNALS}\n"
            "snapshot.locking.mode=none\n"
        )
        endpoints = Endpoints(self._server, self._brokers)
        folder = self._stack.folder / f"debezium-{prefix}"
        peer = Debezium(folder, endpoints, report=self._stack.report, more_connector=more)
        return peer, TopicEnd(self._client, topic)

    def _initial(self) -> DrainRates:
        peer, end = self._debezium("initial")
        return self._drained(peer, end, lambda: None)

    def _incremental(self) -> DrainRates:
        peer, end = self._debezium("no_data")
        signal = json.dumps({"data-collections": [f"{DATABASE}.{TABLE}"], "type": "incremental"})

        def ask() -> None:
            # Noticed only once it streams: repeat until the first rows arrive.
            with self._server.connect() as connection, connection.cursor() as cursor:
                cursor.execute(
                    f"INSERT INTO {DATABASE}.{SIGNALS} VALUES (UUID(), 'execute-snapshot', %s)",
                    (signal,),
                )

        return self._drained(peer, end, ask)

    def _drained(self, peer: Debezium, end: TopicEnd, ask: Callable[[], None]) -> DrainRates:
        asked_s = 0.0

        def done() -> int:
            nonlocal asked_s
            found = end()
            if not found and time.monotonic() - asked_s > ANSWER_S_MAX / 4:
                asked_s = time.monotonic()
                ask()
            return found

        started_at_s = time.monotonic()
        peer.start()
        try:
            samples = sample_until(
                done,
                lambda offset: offset >= self._rows,
                cpu_s=peer.cpu_s,
                check_alive=peer.check_alive,
            )
        finally:
            peer.kill()
            end.close()
        return drain_rates(samples, messages=self._rows, started_at_s=started_at_s)

    def _writes(self, runs: int) -> list[Figure]:
        """Measure one writer's single-row transactions per second, with and without a copy."""
        turns, copied = [], []
        for number in range(1, runs + 1):
            self._stack.report(f"{WRITES}: run {number} of {runs}")
            keyspace, producer = self._producer()
            producer.start()
            try:
                # Its answer proves that the producer streams.
                pause = CopyRequest(CopyAction.PAUSE)
                ask_and_wait(keyspace.client, producer.topics, pause, ANSWER_S_MAX)
                alone = self._write(f"{WRITTEN}_{number}_alone")
                table = f"{DATABASE}.{TABLE}"
                with RepeatedCopies(keyspace.client, producer.topics, table) as copies:
                    beside = self._write(f"{WRITTEN}_{number}_beside")
                producer.stop()
            finally:
                producer.kill()
            turns.append(Turn(beside, alone))
            copied.append(Turn(copies.rows_per_s))
        return [
            figure(WRITES, "single-row transactions/s", turns, peer="without the copy"),
            figure(f"{WRITES}.copied_beside", "rows/s", copied),
        ]

    def _write(self, table: str) -> float:
        with self._server.connect(database=DATABASE, autocommit=True) as connection:
            with connection.cursor() as cursor:
                cursor.execute(
                    f"CREATE TABLE {table} (id BIGINT PRIMARY KEY, n INT, title VARCHAR(64), "
                    "price DECIMAL(12,2), state ENUM('new','old'), note TEXT, "
                    "at DATETIME(3), changed TIMESTAMP(6))"
                )
            count = 0
            began_s = time.monotonic()
            while (elapsed_s := time.monotonic() - began_s) < WRITE_S:
                write_paced(connection, table, range(count, count + BURST), per_s=UNPACED_PER_S)
                count += BURST
            return count / elapsed_s
