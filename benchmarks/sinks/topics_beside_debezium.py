"""Table topics beside Debezium, which writes such topics from MySQL itself.

Ours come in two steps: the producer writes the shard log (`drain.rows_100` measures that), and the
Spark query measured here makes one topic per table of it. Both topics have the same rows as JSON.
"""

import time
from dataclasses import replace
from typing import Final

from benchmarks import debezium
from benchmarks.binlog_fill import Waiting, create_table, fill
from benchmarks.drain import DrainBenchmark
from benchmarks.figures import PER_MESSAGES, DrainRates, Figure, Turn, drain_rates, figure
from benchmarks.sinks.sink_job import TASKS, job_command
from benchmarks.stack import Stack
from benchmarks.watch import create_topic, sample_until, tree_cpu_s
from benchmarks.workloads import QUICK_PART, Workload
from shardstream.local.processes import ServerProcess
from sinks.table_topics.options import EnvelopeOptions, TopicOptions
from sinks.table_topics.positions import WrittenSoFar
from topics.kafka.provisioning import provision_positions_topic

NAME: Final = "topics.beside_debezium"
WORKLOAD: Final = Workload(NAME, 8_000, 100)
# A transaction per task and batch: enough of them to tell a rate.
BATCHES: Final = 8
# The markers of all tasks are read, with a consumer of its own.
SAMPLE_S: Final = 0.2


def run(stack: Stack, _names: tuple[str, ...], *, runs: int, quick: bool) -> list[Figure]:
    """Fill the binlog and the shard log once, then let both write topics, in turn."""
    part = QUICK_PART if quick else 1.0
    workload = replace(WORKLOAD, transactions=int(WORKLOAD.transactions * part))
    turns = _TopicsBenchmark(stack, "topics").turns(workload, runs)
    return [
        figure(
            NAME,
            "rows/s, steady",
            [Turn(ours.steady_per_s, theirs.steady_per_s) for ours, theirs in turns],
            peer=debezium.PEER,
        ),
        figure(
            f"{NAME}.cpu",
            f"processor s per {PER_MESSAGES // 1000} k rows",
            [Turn(ours.cpu_s_per_100k, theirs.cpu_s_per_100k) for ours, theirs in turns],
            peer=debezium.PEER,
        ),
    ]


class _TopicsBenchmark(DrainBenchmark):
    """The server, the broker and Debezium of the drains, and a query beside them."""

    def turns(self, workload: Workload, runs: int) -> list[tuple[DrainRates, DrainRates]]:
        """Let both write the rows of a workload, `runs` times."""
        create_topic(self._client, debezium.topic_of(workload.table))
        self._store_first_offset()
        self._stack.report(f"{NAME}: filling binlog and log with {workload.rows:,} rows")
        create_table(self._server, workload)
        waiting = fill(self._server, workload)
        self._drain_ours(waiting)
        keyspace = self.keyspace
        found = []
        for number in range(runs):
            self._stack.report(f"{NAME}: run {number + 1} of {runs}")
            ours = self._write_topic(waiting, keyspace, f"{keyspace}.{number}")
            found.append((ours, self._drain_debezium(waiting)))
        return found

    def _write_topic(self, waiting: Waiting, keyspace: str, prefix: str) -> DrainRates:
        provision_positions_topic(self._client)
        topics = TopicOptions(EnvelopeOptions(keyspace, prefix), TASKS)
        written = WrittenSoFar(self._client, topics)
        folder = self._stack.folder / f"topics-{prefix}"
        folder.mkdir()
        process = ServerProcess("spark", folder, die_with_parent=True)
        rows_per_batch = str(waiting.rows // BATCHES)
        source = {"kafka.bootstrap.servers": self._brokers, "maxRowsPerBatch": rows_per_batch}
        job: dict[str, object] = {"keyspace": keyspace, "prefix": prefix, "schemas": False}
        job |= {"source": source, "stays": True}
        begun_s = time.monotonic()
        process.launch(job_command(folder, **job))
        try:
            samples = sample_until(
                lambda: written.look().rows,
                lambda rows: rows >= waiting.rows,
                cpu_s=lambda: tree_cpu_s(process.pid),
                sample_s=SAMPLE_S,
                check_alive=process.check_alive,
            )
        finally:
            process.kill()
        return drain_rates(samples, messages=waiting.rows, started_at_s=begun_s)
