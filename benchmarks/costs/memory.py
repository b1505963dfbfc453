"""Peak of resident memory under a backlog: a producer, an applier, a Python task of Spark.

That of a Subscriber is measured where it reads: `subscriber.events.memory` and its like.
"""

import json
import subprocess
import sys
import threading
from typing import Final, Self

from benchmarks.binlog_fill import DATABASE, Waiting, create_table, fill
from benchmarks.figures import Figure, Turn, figure
from benchmarks.our_producer import BenchKeyspace, OurProducer
from benchmarks.own_memory import peak_mb
from benchmarks.spark_read import NOOP, run_job
from benchmarks.stack import Stack
from benchmarks.watch import process_tree
from benchmarks.workloads import Workload
from databases.internal_tables import create_internal_tables
from event_token.errors import Halt
from resharding.bookkeeping import ReshardPlan, write_plan
from shardstream.local.database_server import MysqlServer
from shardstream.local.processes import command_line
from topics.keyspace.topology import TableVindex
from topics.schemas import open_schema_ids
from topics.start.positions import resolve_start_of
from topics.start.start_forms import StartWord

PRODUCER: Final = "memory.producer"
APPLIER: Final = "memory.applier"
SPARK: Final = "memory.spark_task"
NAMES: Final = (PRODUCER, APPLIER, SPARK)
UNIT: Final = "MB, peak"
ALL: Final = "-"
TARGET: Final = "-.2"
ROWS_PER_TRANSACTION: Final = 100
TRANSACTIONS: Final = 5_000
TRANSACTIONS_QUICK: Final = 2_000
# The applier is the slowest; its queues are full long before.
APPLIED_ROWS_MAX: Final = 100_000
JOB_S_MAX: Final = 400.0
BATCHES: Final = 4
SAMPLE_S: Final = 0.1
# The process from which Spark forks its Python tasks, by its command line.
SPARK_DAEMON: Final = "pyspark.daemon"


def run(stack: Stack, names: tuple[str, ...], *, runs: int, quick: bool) -> list[Figure]:
    """Fill a binlog, drain it into a log, and read that, `runs` times each."""
    transactions = TRANSACTIONS_QUICK if quick else TRANSACTIONS
    workload = Workload("memory.memory_rows", transactions, ROWS_PER_TRANSACTION)
    stack.report(f"{', '.join(names)}: {workload.rows:,} rows wait")
    server = stack.mysql(0)
    create_table(server, workload)
    waiting = fill(server, workload)
    drained = [_drain(stack, server, waiting, number) for number in range(runs)]
    keyspace = drained[-1][0]
    figures = []
    if PRODUCER in names:
        figures.append(figure(PRODUCER, UNIT, [Turn(peak) for _, peak in drained]))
    if APPLIER in names:
        peaks = [_apply(stack, keyspace, workload, number) for number in range(runs)]
        figures.append(figure(APPLIER, UNIT, [Turn(peak) for peak in peaks]))
    if SPARK in names:
        peaks = [_spark(stack, keyspace, workload, number) for number in range(runs)]
        figures.append(figure(SPARK, UNIT, [Turn(peak) for peak in peaks]))
    return figures


def _drain(
    stack: Stack, server: MysqlServer, waiting: Waiting, number: int
) -> tuple[BenchKeyspace, float]:
    """Let a new producer drain the backlog; return its keyspace and its peak."""
    brokers = stack.kafka().bootstrap_servers
    keyspace = BenchKeyspace(stack.folder, f"memory{number}", brokers, {ALL: server})
    producer = OurProducer(keyspace, ALL, start=f"gtid:{waiting.start}")
    producer.start()
    try:
        producer.wait_for_seq(waiting.rows)
        peak = producer.peak_mb()
    finally:
        producer.stop()
    return keyspace, peak


def _apply(stack: Stack, keyspace: BenchKeyspace, workload: Workload, number: int) -> float:
    """Return the peak of an applier that has the whole log before it."""
    target = stack.mysql(1)
    plan = ReshardPlan(
        reshard_id=f"memory-{number}",
        keyspace=keyspace.name,
        sources=(ALL,),
        targets=(TARGET,),
        tables=(TableVindex(DATABASE, workload.table, ("id",), "hash"),),
        start=resolve_start_of(
            StartWord.EARLIEST,
            config=keyspace.client,
            keyspace=keyspace.name,
            shards=[ALL],
            schema_ids=open_schema_ids(keyspace.client, None),
        ).to_string(),
        agreed_seqs={ALL: 0},
    )
    with target.connect() as connection:
        create_internal_tables(connection)
        with connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE IF NOT EXISTS {DATABASE}")
            cursor.execute(f"DROP TABLE IF EXISTS {DATABASE}.{workload.table}")
            cursor.execute(f"CREATE TABLE {DATABASE}.{workload.table} ({workload.columns})")
        write_plan(connection, plan)
    job = {
        "plan": plan.to_json(),
        "brokers": keyspace.client.brokers,
        "host": target.host,
        "port": target.port,
        "user": target.root_user,
        "rows": min(workload.rows, APPLIED_ROWS_MAX),
    }
    path = stack.folder / f"{plan.reshard_id}.job"
    path.write_text(json.dumps(job))
    return float(json.loads(_output_of("benchmarks.costs.applier_job", str(path))))


def _output_of(module: str, *arguments: str) -> str:
    """Run a module of ours; Halt when it fails or does not end."""
    command = [sys.executable, "-m", module, *arguments]
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=JOB_S_MAX
        )
    except subprocess.TimeoutExpired as slow:
        raise Halt(f"{module} has not ended after {JOB_S_MAX:g} s") from slow
    if done.returncode != 0:
        raise Halt(f"{module} ended with status {done.returncode}:\n{done.stderr}")
    return done.stdout


def _spark(stack: Stack, keyspace: BenchKeyspace, workload: Workload, number: int) -> float:
    """Return the largest peak of the tasks that read the whole log into a noop sink."""
    job = {
        "brokers": keyspace.client.brokers,
        "keyspace": keyspace.name,
        "table": f"{DATABASE}.{workload.table}",
        "rows_per_batch": workload.rows // BATCHES,
        "runs": 1,
        "names": [NOOP],
    }
    with _TaskPeaks() as peaks:
        run_job(stack.folder / f"memory-spark-{number}", job, started=peaks.watch)
    if not peaks.by_pid:
        raise Halt("Spark has read the log without a Python task that could be seen")
    return max(peaks.by_pid.values())


class _TaskPeaks:
    """Samples the Python tasks of a Spark process; a peak that a sample misses is in the next."""

    def __init__(self) -> None:
        self.by_pid: dict[int, float] = {}
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, pid: int) -> None:
        """Begin."""
        self._thread = threading.Thread(target=self._sample, args=(pid,), daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _sample(self, pid: int) -> None:
        while not self._ended.wait(SAMPLE_S):
            parents = process_tree(pid)
            forked = {each for each in parents if SPARK_DAEMON in command_line(each)}
            for each in forked:
                # The daemon itself is a child of the JVM.
                if parents[each] in forked:
                    self.by_pid[each] = max(peak_mb(str(each)), self.by_pid.get(each, 0.0))
