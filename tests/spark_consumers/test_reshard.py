"""Spark's stream and change log continue across reshards, with and without a restart."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from shardstream.local.kafka_cluster import KafkaCluster
from spark_consumers.change_log.check import check_changelog
from spark_consumers.change_log.replay import replay_changelog
from spark_consumers.change_log.run import ChangeLogProgress, run_changelog
from tests.spark_consumers.queries import merged_order, seqs, wait_until
from tests.topics.shard_writer import START_US, Reshard, ShardWriter, provision
from topics.kafka.client import ClientConfig
from topics.kafka.provisioning import provision_shard
from topics.keyspace.topology import ReshardEntry, ShardEntry, ShardState, Topology, update_topology
from topics.names import ShardTopics
from topics.progress.record import MarkKind

WAIT_S = 90.0
SECOND_US = 1_000_000
SPLIT = Reshard("r1", ("80-",), ("80-c0", "c0-"), 2 * SECOND_US)
MERGE = Reshard("r2", ("-80", "80-c0"), ("-c0",), 4 * SECOND_US)


class Keyspace:
    """Shards that are split and then merged, with rows in between."""

    def __init__(self, config: ClientConfig, name: str) -> None:
        self.config, self.name = config, name
        provision(config, name, ["-80", "80-"])
        self.writers = {s: ShardWriter(config, name, s) for s in ("-80", "80-")}
        self.genuine: dict[str, tuple[int, int]] = {}  # first and last seq of the stream

    def add(self, *shards: str) -> None:
        """Create the targets of a reshard."""
        for shard in shards:
            provision_shard(self.config, ShardTopics(self.name, shard))
            self.writers[shard] = ShardWriter(self.config, self.name, shard)

    def heads(self, at_us: int, *shards: str) -> None:
        """Promise a head for some shards."""
        for shard in shards:
            self.writers[shard].heartbeat(at_us)

    def rows(self) -> int:
        """The number of records in the stream."""
        return sum(last - first + 1 for first, last in self.genuine.values())

    def split(self) -> None:
        """Split a shard, and write rows to its targets."""
        self.add("80-c0", "c0-")
        self.writers["80-"].mark(SECOND_US, MarkKind.END, SPLIT)
        for shard in SPLIT.targets:
            self.writers[shard].commit((SECOND_US, 5))  # copied: not of the stream
            self.writers[shard].mark(2 * SECOND_US, MarkKind.BEGIN, SPLIT)
            self.writers[shard].commit((2 * SECOND_US, 5))
            self.genuine[shard] = (6, 11)
        self.genuine["80-"] = (1, 11)

    def merge(self) -> None:
        """Merge the left shard and the left target."""
        self.add("-c0")
        for n, shard in enumerate(MERGE.sources):
            self.writers[shard].mark(3 * SECOND_US + n, MarkKind.END, MERGE)
        self.writers["-c0"].commit((3 * SECOND_US, 3))
        self.writers["-c0"].mark(4 * SECOND_US, MarkKind.BEGIN, MERGE)
        self.writers["-c0"].commit((4 * SECOND_US, 7))
        self.genuine |= {"-80": (1, 11), "80-c0": (6, 12), "-c0": (4, 11)}

    def switch_topology(self) -> None:
        """Write the topology that both switches leave."""
        reshards = tuple(
            ReshardEntry(r.reshard_id, r.sources, r.targets, "COMPLETED", START_US + r.hop_us)
            for r in (SPLIT, MERGE)
        )
        serving = ("-c0", "c0-")
        shards = tuple(
            ShardEntry(s, ShardState.SERVING if s in serving else ShardState.RETIRED)
            for s in self.writers
        )
        update_topology(
            self.config, self.name, lambda _: Topology(self.name, 2, shards, reshards=reshards)
        )


@pytest.fixture
def resharded(kafka: KafkaCluster, keyspace: str) -> Iterator[Keyspace]:
    """Two shards with ten rows each."""
    config = ClientConfig({"bootstrap.servers": kafka.bootstrap_servers})
    made = Keyspace(config, keyspace)
    for shard in ("-80", "80-"):
        made.writers[shard].commit((1_000, 5), (500_000, 5))
        made.genuine[shard] = (1, 10)
    yield made
    for writer in made.writers.values():
        writer.close()


def test_the_change_log_goes_on_over_reshards(
    spark: SparkSession, resharded: Keyspace, tmp_path: Path
) -> None:
    """A running query follows a split; after a restart it follows a merge that it missed.

    The table has every record of the stream once and in order, and no row that the reshard
    copied; a replay gives the tables, and a batch read of the whole stream agrees.
    """
    options = {"kafka.bootstrap.servers": resharded.config.brokers}
    target, checkpoint = str(tmp_path / "log"), str(tmp_path / "checkpoint")
    seen: list[ChangeLogProgress] = []
    stop = threading.Event()

    def run(**more: Any) -> None:
        run_changelog(spark, resharded.name, target, checkpoint, options, stop=stop, **more)

    def operate() -> None:
        try:
            wait_until(lambda: bool(seen) and seen[-1].rows == 20)
            resharded.split()
            resharded.heads(3 * SECOND_US, "-80", *SPLIT.targets)
            wait_until(lambda: seen[-1].rows == resharded.rows())
        finally:
            stop.set()

    resharded.heads(SECOND_US, "-80", "80-")
    operator = threading.Thread(target=operate)
    operator.start()
    run(interval_s=0.1, on_progress=seen.append)
    operator.join(WAIT_S)
    assert seen[-1].rows == resharded.rows()
    resharded.merge()
    resharded.heads(5 * SECOND_US, "c0-", "-c0")
    resharded.switch_topology()
    stop.clear()
    run(trigger="availableNow")

    report = check_changelog(target)
    assert (report.changes, report.lost, report.repeated) == (resharded.rows(), 0, 0)
    assert report.out_of_order == 0
    tables = replay_changelog(target)
    assert list(tables) == [("shop", "orders")]
    notes = {row["id"]: row["note"] for row in tables["shop", "orders"].rows()}
    assert notes == dict.fromkeys(range(1, 5), "80-") | dict.fromkeys(range(5, 12), "-c0")
    check_batch_reads(spark, resharded)


def check_batch_reads(spark: SparkSession, resharded: Keyspace) -> None:
    """Read from before all reshards to the end, and to a time between them."""
    options = {"kafka.bootstrap.servers": resharded.config.brokers}
    batch = spark.read.format("shardstream").options(keyspace=resharded.name, **options)
    expected = {s: list(range(first, last + 1)) for s, (first, last) in resharded.genuine.items()}
    assert seqs(merged_order(batch.option("start", "earliest").load().collect())) == expected
    until = batch.option("start", "earliest").option(
        "end", f"us:{START_US + 2 * SECOND_US + 10_000}"
    )
    assert {s: len(of) for s, of in seqs(until.load().collect()).items()} == {
        "-80": 10,
        "80-": 11,
        "80-c0": 6,
        "c0-": 6,
    }
