"""Spark's stream and change log continue across reshards, with and without a restart."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from shardstream.local.kafka_cluster import KafkaCluster
from sinks.lake.change_log.reading import check_changelog, replay_changelog
from spark_consumers.change_log import ChangeLogProgress, run_changelog
from tests.spark_consumers.patience import patiently
from tests.spark_consumers.queries import merged_order, seqs
from tests.spark_consumers.reshards import MERGE, SECOND_US, SPLIT, Keyspace, resharded
from tests.topics.shard_writer import START_US
from tests.waiting import wait_for
from topics.kafka.client import ClientConfig

pytestmark = pytest.mark.full

WAIT_S = 90.0


@pytest.fixture
def keyspace_of_two(kafka: KafkaCluster, keyspace: str) -> Iterator[Keyspace]:
    """Two shards with ten rows each."""
    made = resharded(ClientConfig({"bootstrap.servers": kafka.bootstrap_servers}), keyspace)
    yield made
    for writer in made.writers.values():
        writer.close()


def test_the_change_log_goes_on_over_reshards(
    spark: SparkSession, keyspace_of_two: Keyspace, tmp_path: Path
) -> None:
    """A running query follows a split; after a restart it follows a merge that it missed.

    The table has every record of the stream once and in order, and no row that the reshard
    copied; a replay gives the tables, and a batch read of the whole stream agrees. The running
    query reports its progress and the shard it waits for, and stops when asked.
    """
    options = {"kafka.bootstrap.servers": keyspace_of_two.config.brokers}
    target, checkpoint = str(tmp_path / "log"), str(tmp_path / "checkpoint")
    seen: list[ChangeLogProgress] = []
    stop = threading.Event()

    def run(**more: Any) -> ChangeLogProgress:
        places = (keyspace_of_two.name, target, checkpoint)
        return run_changelog(spark, *places, options, stop=stop, **more)

    def has_all() -> bool:
        # Before the progress of the shards is read, it waits for that.
        return seen[-1].rows == keyspace_of_two.rows() and "is at head" in seen[-1].waiting

    def operate() -> None:
        try:
            wait_for("its first rows", lambda: bool(seen) and seen[-1].rows == 20)
            keyspace_of_two.split()
            keyspace_of_two.heads(3 * SECOND_US, "-80", *SPLIT.targets)
            wait_for("it has all", has_all)
        finally:
            stop.set()

    keyspace_of_two.heads(SECOND_US, "-80", "80-")
    operator = threading.Thread(target=operate)
    operator.start()
    end = run(interval_s=0.1, on_progress=seen.append)
    operator.join(WAIT_S)
    assert end.rows == keyspace_of_two.rows()
    assert end.frontier_us == START_US + 3 * SECOND_US
    assert "is at head" in end.waiting
    assert spark.streams.active == []
    keyspace_of_two.merge()
    keyspace_of_two.heads(5 * SECOND_US, "c0-", "-c0")
    keyspace_of_two.switch_topology(SPLIT, MERGE)
    stop.clear()
    run(trigger="availableNow")

    report = check_changelog(target)
    assert (report.changes, report.lost, report.repeated) == (keyspace_of_two.rows(), 0, 0)
    assert report.out_of_order == 0
    tables = replay_changelog(target)
    assert list(tables) == [("shop", "orders")]
    notes = {row["id"]: row["note"] for row in tables["shop", "orders"].rows()}
    assert notes == dict.fromkeys(range(1, 5), "80-") | dict.fromkeys(range(5, 12), "-c0")
    check_batch_reads(spark, keyspace_of_two)


def check_batch_reads(spark: SparkSession, resharded: Keyspace) -> None:
    """Read from before all reshards to the end, and to a time between them."""
    options = {"kafka.bootstrap.servers": resharded.config.brokers}
    batch = spark.read.format("shardstream").options(keyspace=resharded.name, **options)
    expected = {s: list(range(first, last + 1)) for s, (first, last) in resharded.genuine.items()}
    rows = patiently(lambda: batch.option("start", "earliest").load().collect())
    assert seqs(merged_order(rows)) == expected
    until = batch.option("start", "earliest").option(
        "end", f"us:{START_US + 2 * SECOND_US + 10_000}"
    )
    assert {s: len(of) for s, of in seqs(patiently(lambda: until.load().collect())).items()} == {
        "-80": 10,
        "80-": 11,
        "80-c0": 6,
        "c0-": 6,
    }
