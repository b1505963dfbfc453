"""A waiting binlog drained into Kafka: ours, Debezium and mysqlbinlog in turn."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks import debezium, mysqlbinlog
from benchmarks.binlog_fill import DATABASE, Waiting, create_table, fill
from benchmarks.debezium import Debezium, Endpoints
from benchmarks.figures import DrainRates, Figure, Turn, drain_rates, figure
from benchmarks.our_producer import BenchKeyspace, OurProducer
from benchmarks.stack import Stack
from benchmarks.watch import TopicEnd, create_topic, sample_until
from event_token.errors import Halt
from topics.kafka_client import ClientConfig

SINGLE_ROW = "drain.single_row"
ROWS_100 = "drain.rows_100"
# One shard that has the whole key range.
ALL = "-"
# Debezium stores an offset only after a first record.
FIRST_TABLE = "first"


@dataclass(frozen=True, slots=True)
class Workload:
    """What waits in the binlog."""

    name: str
    table: str
    transactions: int
    rows_per_transaction: int

    @property
    def rows(self) -> int:
        """Messages to come."""
        return self.transactions * self.rows_per_transaction


def workloads(names: Sequence[str], *, quick: bool) -> list[Workload]:
    """The workloads of these benchmarks, in full size or small."""
    every = [
        Workload(SINGLE_ROW, "single_row", 200_000 if quick else 500_000, 1),
        Workload(ROWS_100, "rows_100", 3_000 if quick else 10_000, 100),
    ]
    return [workload for workload in every if workload.name in names]


class DrainBenchmark:
    """The three who drain, on one server and one broker."""

    def __init__(self, stack: Stack) -> None:
        """Start the servers, fetch the peer. Raises UsageError or Halt when one cannot be had."""
        self._stack = stack
        self._server = stack.mysql(0)
        self._brokers = stack.kafka().bootstrap_servers
        self._client = ClientConfig({"bootstrap.servers": self._brokers})
        self._debezium = Debezium(
            stack.folder / "debezium", Endpoints(self._server, self._brokers), report=stack.report
        )
        self._drains = 0

    def run(self, chosen: Sequence[Workload], runs: int) -> list[Figure]:
        """Measure each workload `runs` times in turn."""
        figures = []
        for workload in chosen:
            create_table(
                self._server, workload.table, rows_per_transaction=workload.rows_per_transaction
            )
            create_topic(self._client, debezium.topic_of(workload.table))
        self._store_first_offset()
        for workload in chosen:
            figures += self._measure(workload, runs)
        return figures

    def _measure(self, workload: Workload, runs: int) -> list[Figure]:
        self._stack.report(f"{workload.name}: filling the binlog with {workload.rows:,} rows")
        waiting = fill(
            self._server,
            workload.table,
            transactions=workload.transactions,
            rows_per_transaction=workload.rows_per_transaction,
        )
        ours, theirs, copied = [], [], []
        for run in range(1, runs + 1):
            self._stack.report(f"{workload.name}: run {run} of {runs}")
            ours.append(self._drain_ours(waiting))
            theirs.append(self._drain_debezium(waiting))
            copied.append(self._drain_mysqlbinlog(waiting))
        # It stands at the end of this stretch now: the next one begins there.
        self._debezium.keep_offset()
        return [
            *_figures(workload.name, ours, theirs, debezium.PEER),
            *_figures(f"{workload.name}.beside_mysqlbinlog", ours, copied, mysqlbinlog.PEER),
        ]

    def _store_first_offset(self) -> None:
        """Let Debezium see the tables and a row, and keep the offset that it then stores."""
        create_topic(self._client, debezium.topic_of(FIRST_TABLE))
        self._stack.report(f"{debezium.PEER}: first start, to store an offset")
        with self._server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE TABLE {DATABASE}.{FIRST_TABLE} (id INT PRIMARY KEY)")
        end = TopicEnd(self._client, debezium.topic_of(FIRST_TABLE))
        written = 0

        def seen() -> int:
            # Without a snapshot it begins where the server stands: some row comes after that.
            nonlocal written
            written += 1
            with self._server.connect() as connection, connection.cursor() as cursor:
                cursor.execute(f"INSERT INTO {DATABASE}.{FIRST_TABLE} VALUES ({written})")
            return end()

        self._debezium.start()
        try:
            sample_until(
                seen,
                lambda count: count > 0,
                cpu_s=self._debezium.cpu_s,
                check_alive=self._debezium.check_alive,
            )
            self._debezium.stop()
        finally:
            self._debezium.kill()
            end.close()
        self._debezium.keep_offset()

    def _drain_ours(self, waiting: Waiting) -> DrainRates:
        # An empty log each time, so a keyspace of its own.
        self._drains += 1
        keyspace = BenchKeyspace(
            self._stack.folder, f"drain{self._drains}", self._brokers, {ALL: self._server}
        )
        producer = OurProducer(keyspace, ALL, start=f"gtid:{waiting.start}")
        log = producer.topics.log
        end = TopicEnd(self._client, log)
        end()
        started_at_s = time.monotonic()
        producer.start()
        try:
            samples = sample_until(
                end,
                # Commit markers take offsets too, so the offset alone does not tell.
                lambda offset: offset >= waiting.rows and producer.last_seq() >= waiting.rows,
                cpu_s=producer.cpu_s,
                check_alive=producer.check_alive,
            )
            producer.stop()
        finally:
            producer.kill()
            end.close()
        _check_rows(log, producer.last_seq(), waiting.rows)
        return drain_rates(samples, messages=waiting.rows, started_at_s=started_at_s)

    def _drain_debezium(self, waiting: Waiting) -> DrainRates:
        self._debezium.restore_offset()
        topic = debezium.topic_of(waiting.table)
        end = TopicEnd(self._client, topic)
        before = end()
        started_at_s = time.monotonic()
        self._debezium.start()
        try:
            samples = sample_until(
                lambda: end() - before,
                lambda count: count >= waiting.rows,
                cpu_s=self._debezium.cpu_s,
                check_alive=self._debezium.check_alive,
            )
            self._debezium.stop()
            _check_rows(topic, end() - before, waiting.rows)
        finally:
            self._debezium.kill()
            end.close()
        return drain_rates(samples, messages=waiting.rows, started_at_s=started_at_s)

    def _drain_mysqlbinlog(self, waiting: Waiting) -> DrainRates:
        return mysqlbinlog.drain_to_files(
            self._server, waiting, self._stack.folder / f"raw-{waiting.table}"
        )


def _check_rows(topic: str, found: int, wanted: int) -> None:
    """Raise Halt when a drain has lost or repeated rows: its speed would mean nothing."""
    if found != wanted:
        message = f"{topic} holds {found} records of the stretch, not {wanted}"
        raise Halt(message)


def _figures(
    name: str, ours: Sequence[DrainRates], theirs: Sequence[DrainRates], peer: str
) -> list[Figure]:
    pairs = list(zip(ours, theirs, strict=True))
    return [
        figure(
            name,
            "rows/s, steady",
            [Turn(a.steady_per_s, b.steady_per_s) for a, b in pairs],
            peer=peer,
        ),
        figure(
            f"{name}.whole",
            "rows/s, process start to committed",
            [Turn(a.whole_per_s, b.whole_per_s) for a, b in pairs],
            peer=peer,
        ),
        figure(
            f"{name}.cpu",
            "processor s per 100 k rows",
            [Turn(a.cpu_s_per_100k, b.cpu_s_per_100k) for a, b in pairs],
            peer=peer,
        ),
    ]
