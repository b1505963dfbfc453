"""Drains a backlog in the binlog to Kafka: ours, Debezium and mysqlbinlog in turn."""

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
from benchmarks.workloads import COPIED, PLAIN, VARIATIONS, Variation, Workload
from event_token.errors import Halt
from shardstream.local.database_server import MysqlServer
from tests.topics.shard_writer import limit_messages
from topics.kafka.client import ClientConfig

# One shard with the whole key range.
ALL = "-"
# Debezium stores an offset only after a first record.
FIRST_TABLE = "first"
# The server whose stretches have no names of columns.
MINIMAL = 1


@dataclass(frozen=True, slots=True)
class _DrainTurn:
    """One run of each system over the same stretch; `varied`: by the variation's name."""

    ours: DrainRates
    varied: dict[str, DrainRates]
    debezium: DrainRates
    mysqlbinlog: DrainRates | None


class DrainBenchmark:
    """The three systems that drain, on one server and one broker."""

    def __init__(self, stack: Stack, name: str = "drain") -> None:
        """Start the servers, fetch the peer. Raises UsageError or Halt if one is not available.

        `name`: what the names of our keyspaces begin with.
        """
        self._stack = stack
        self._server = stack.mysql(0)
        self._brokers = stack.kafka().bootstrap_servers
        self._client = ClientConfig({"bootstrap.servers": self._brokers})
        self._debezium = Debezium(
            stack.folder / f"debezium-{name}",
            Endpoints(self._server, self._brokers),
            report=stack.report,
        )
        self._name = name
        self._drains = 0

    def run(self, chosen: Sequence[Workload], runs: int) -> list[Figure]:
        """Measure each workload `runs` times in turn."""
        figures = []
        for workload in chosen:
            create_topic(self._client, debezium.topic_of(workload.table))
        self._store_first_offset()
        for workload in chosen:
            figures += self._measure(workload, runs)
        return figures

    @property
    def keyspace(self) -> str:
        """The keyspace of our last drain."""
        return f"{self._name}{self._drains}"

    def _measure(self, workload: Workload, runs: int) -> list[Figure]:
        self._stack.report(f"{workload.name}: filling the binlog with {workload.rows:,} rows")
        create_table(self._server, workload)
        waiting = fill(self._server, workload)
        variations = [variation for variation in VARIATIONS if variation.of == workload.name]
        stretches = {
            v.name: self._fill_minimal(workload) if v.has_minimal_metadata else waiting
            for v in variations
        }
        turns: list[_DrainTurn] = []
        for run in range(1, runs + 1):
            self._stack.report(f"{workload.name}: run {run} of {runs}")
            turns.append(
                _DrainTurn(
                    self._drain_ours(waiting),
                    {v.name: self._drain_ours(stretches[v.name], v) for v in variations},
                    self._drain_debezium(waiting),
                    self._drain_mysqlbinlog(waiting) if workload.name in COPIED else None,
                )
            )
        # Its offset is now at the end of this stretch: the next one begins there.
        self._debezium.keep_offset()
        ours = [turn.ours for turn in turns]
        figures = _figures(workload.name, ours, [turn.debezium for turn in turns], debezium.PEER)
        copied = [turn.mysqlbinlog for turn in turns if turn.mysqlbinlog is not None]
        if copied:
            name = f"{workload.name}.beside_mysqlbinlog"
            figures += _figures(name, ours, copied, mysqlbinlog.PEER)
        for variation in variations:
            varied = [turn.varied[variation.name] for turn in turns]
            figures += _figures(variation.name, varied, ours, variation.beside)
            if variation.is_beside_peer:
                name, peer = f"{variation.name}.beside_debezium", f"{debezium.PEER}, no rule"
                figures += _figures(name, varied, [turn.debezium for turn in turns], peer)
        return figures

    def _fill_minimal(self, workload: Workload) -> Waiting:
        """Fill another server's binlog, without names of columns; Debezium does not read it.

        What other benchmarks write there afterwards has them again.
        """
        server = self._stack.mysql(MINIMAL)
        create_table(server, workload)
        try:
            _set_metadata(server, "MINIMAL")
            return fill(server, workload)
        finally:
            _set_metadata(server, "FULL")

    def _store_first_offset(self) -> None:
        """Let Debezium read the tables and a row, and keep the offset that it then stores."""
        create_topic(self._client, debezium.topic_of(FIRST_TABLE))
        self._stack.report(f"{debezium.PEER}: first start, to store an offset")
        with self._server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE IF NOT EXISTS {DATABASE}")
            cursor.execute(f"CREATE TABLE {DATABASE}.{FIRST_TABLE} (id INT PRIMARY KEY)")
        end = TopicEnd(self._client, debezium.topic_of(FIRST_TABLE))
        written = 0

        def seen() -> int:
            # Without a snapshot it begins at the server's current position: a row must follow that.
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

    def _drain_ours(self, waiting: Waiting, variation: Variation = PLAIN) -> DrainRates:
        # An empty log each time, hence a separate keyspace.
        self._drains += 1
        name = self.keyspace
        keyspace = BenchKeyspace(
            self._stack.folder,
            name,
            self._brokers,
            {ALL: self._stack.mysql(MINIMAL if variation.has_minimal_metadata else 0)},
            settings=variation.settings.format(keyspace=name),
            server_settings=variation.server_settings.format(ca=self._stack.ca),
        )
        producer = OurProducer(keyspace, ALL, start=f"gtid:{waiting.start}")
        log = producer.topics.log
        if variation.message_bytes_max is not None:
            limit_messages(self._client, log, variation.message_bytes_max)
        end = TopicEnd(self._client, log)
        end()
        started_at_s = time.monotonic()
        producer.start()
        try:
            samples = sample_until(
                end,
                # Commit markers take offsets too, so the offset alone is not enough.
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


def _set_metadata(server: MysqlServer, metadata: str) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SET GLOBAL binlog_row_metadata = {metadata}")


def _check_rows(topic: str, found: int, wanted: int) -> None:
    """Raise Halt if a drain has lost or repeated rows: its speed would mean nothing."""
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
