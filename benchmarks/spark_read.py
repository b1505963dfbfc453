"""Merges and decodes a backlog of two shards in Spark, to a noop sink and to the change log."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.binlog_fill import DATABASE
from benchmarks.figures import Figure, MicroBatch, Turn, figure, micro_batch_rate
from benchmarks.stack import Stack
from benchmarks.two_shards import SHARDS, TwoShards
from benchmarks.workloads import Workload
from event_token.errors import Halt
from shardstream.local.processes import with_parent_guard

NOOP = "kafka_to_spark.noop"
CHANGELOG = "kafka_to_spark.changelog"
KEYSPACE = "lake"
TABLE = "lake_rows"
ROWS_PER_TRANSACTION = 100
TRANSACTIONS_PER_SHARD = 10_000
TRANSACTIONS_PER_SHARD_QUICK = 4_000
# The first one starts processes, the others are steady state. They are large, because each has a
# fixed cost of a tenth of a second or more.
BATCH_PARTS = 6
# Each turn reads a million rows twice; at a tenth of the expected rate it takes 100 s.
JOB_S_MAX = 900.0
OUTPUT_TAIL = 3000


def run(stack: Stack, names: tuple[str, ...], *, runs: int, quick: bool) -> list[Figure]:
    """Fill the logs, read them `runs` times into each sink in turn."""
    transactions = TRANSACTIONS_PER_SHARD_QUICK if quick else TRANSACTIONS_PER_SHARD
    rows = transactions * ROWS_PER_TRANSACTION * len(SHARDS)
    stack.report(f"{', '.join(names)}: filling two shards with {rows:,} rows")
    workload = Workload(f"spark.{TABLE}", transactions, ROWS_PER_TRANSACTION)
    shards = TwoShards.filled(stack, KEYSPACE, workload)
    stack.report(f"{', '.join(names)}: starting Spark, {runs} run(s)")
    measured = run_job(
        stack.folder / "spark",
        {
            "brokers": shards.client.brokers,
            "keyspace": KEYSPACE,
            "table": f"{DATABASE}.{TABLE}",
            "rows": rows,
            "rows_per_batch": rows // BATCH_PARTS,
            "runs": runs,
            "names": list(names),
        },
    )
    return [
        figure(
            name,
            "rows/s, steady",
            [Turn(micro_batch_rate(batches, rows=rows)) for batches in measured[name]],
        )
        for name in names
    ]


def run_job(
    folder: Path, job: dict[str, object], started: Callable[[int], None] = lambda _pid: None
) -> dict[str, list[list[MicroBatch]]]:
    """Run `benchmarks.spark_job`; return each turn's micro-batches by benchmark.

    `started` is told the process.
    """
    folder.mkdir()
    job_path, result_path, log_path = (folder / n for n in ("job.json", "result.json", "spark.log"))
    job_path.write_text(json.dumps(job))
    command = [sys.executable, "-m", "benchmarks.spark_job", str(job_path), str(result_path)]
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            with_parent_guard(command),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            started(process.pid)
            status = process.wait(JOB_S_MAX)
        except subprocess.TimeoutExpired as slow:
            message = f"Spark has not finished after {JOB_S_MAX:.0f} s"
            raise Halt(message) from slow
        finally:
            process.kill()
            process.wait()
    if status != 0:
        said = log_path.read_text(errors="replace")[-OUTPUT_TAIL:]
        message = f"Spark ended with status {status}:\n{said}"
        raise Halt(message)
    result = json.loads(result_path.read_text())
    return {
        name: [[MicroBatch(**batch) for batch in turn] for turn in turns]
        for name, turns in result.items()
    }
