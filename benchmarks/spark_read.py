"""Merges and decodes a backlog of two shards in Spark, to a noop sink and to the change log.

To the noop sink once with all columns and once with few. Beside all, Spark reads the same rows from
files.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from benchmarks.binlog_fill import DATABASE
from benchmarks.figures import (
    PER_MESSAGES,
    Figure,
    MicroBatch,
    Turn,
    figure,
    micro_batch_rate,
)
from benchmarks.spark_files import PEERS
from benchmarks.stack import Stack
from benchmarks.two_shards import SHARDS, TwoShards
from benchmarks.workloads import Workload
from event_token.errors import Halt
from shardstream.local.processes import with_parent_guard

NOOP = "kafka_to_spark.noop"
NARROW = "kafka_to_spark.narrow"
CHANGELOG = "kafka_to_spark.changelog"
KEYSPACE = "lake"
TABLE = "lake_rows"
ROWS_PER_TRANSACTION = 100
TRANSACTIONS_PER_SHARD = 15_000
TRANSACTIONS_PER_SHARD_QUICK = 4_000
# Micro-batches per turn; unless it is quick they have 500,000 rows, the source's default. The first
# one starts processes, the others are steady state.
BATCH_PARTS = 6
# Three turns read three million rows in five ways: 200 s, and four times as long on a busy machine.
JOB_S_MAX = 900.0
OUTPUT_TAIL = 3000


@dataclass(frozen=True, slots=True)
class SparkReading:
    """One turn: its micro-batches, and the processor time of the driver, the JVM and the tasks."""

    batches: list[MicroBatch]
    cpu_s: float


def run(stack: Stack, names: tuple[str, ...], *, runs: int, quick: bool) -> list[Figure]:
    """Fill the logs, read them `runs` times into each sink in turn."""
    transactions = TRANSACTIONS_PER_SHARD_QUICK if quick else TRANSACTIONS_PER_SHARD
    rows = transactions * ROWS_PER_TRANSACTION * len(SHARDS)
    stack.report(f"{', '.join(names)}: filling two shards with {rows:,} rows")
    workload = Workload(f"spark.{TABLE}", transactions, ROWS_PER_TRANSACTION)
    shards = TwoShards.filled(stack, KEYSPACE, workload)
    peers = tuple(PEERS) if NOOP in names else ()
    stack.report(f"{', '.join((*names, *peers))}: starting Spark, {runs} run(s)")
    measured = run_job(
        stack.folder / "spark",
        {
            "brokers": shards.client.brokers,
            "keyspace": KEYSPACE,
            "table": f"{DATABASE}.{TABLE}",
            "rows": rows,
            "rows_per_batch": rows // BATCH_PARTS,
            "runs": runs,
            "names": [*names, *peers],
        },
    )
    figures: list[Figure] = []
    for name in names:
        figures += _figures(name, rows, measured[name])
    for name in peers:
        figures += _figures(name, rows, measured[NOOP], PEERS[name], measured[name])
    return figures


def _figures(
    name: str,
    rows: int,
    ours: list[SparkReading],
    peer: str | None = None,
    theirs: Sequence[SparkReading] = (),
) -> list[Figure]:
    """Return the lines of rate and processor time, beside a peer's if there is one."""

    def turns(measure: Callable[[SparkReading], float]) -> list[Turn]:
        pairs = zip_longest(ours, theirs)
        return [Turn(measure(a), None if b is None else measure(b)) for a, b in pairs]

    rates = turns(lambda turn: micro_batch_rate(turn.batches, rows=rows))
    cpu = turns(lambda turn: turn.cpu_s * PER_MESSAGES / rows)
    return [
        figure(name, "rows/s, steady", rates, peer=peer),
        figure(f"{name}.cpu", "processor s per 100 k rows", cpu, peer=peer),
    ]


def run_job(
    folder: Path, job: dict[str, object], started: Callable[[int], None] = lambda _pid: None
) -> dict[str, list[SparkReading]]:
    """Run `benchmarks.spark_job`; return the turns by benchmark.

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
    return {name: [_reading(turn) for turn in turns] for name, turns in result.items()}


def _reading(turn: dict[str, Any]) -> SparkReading:
    return SparkReading([MicroBatch(**batch) for batch in turn["batches"]], turn["cpu_s"])
