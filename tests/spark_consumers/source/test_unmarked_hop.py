"""Spark continues across a reshard done by other tools: declared, with no marks in the logs."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from shardstream.local.kafka_cluster import KafkaCluster
from sinks.lake.change_log.reading import check_changelog
from spark_consumers.change_log import ChangeLogProgress, run_changelog
from spark_consumers.source import micro_batches
from spark_consumers.source.data_source import schema_ids_of
from spark_consumers.source.options import SourceOptions
from tests.spark_consumers.patience import patiently
from tests.spark_consumers.queries import (
    QUERY_S_MAX,
    beating,
    merged_order,
    run_available,
)
from tests.topics.shard_writer import ShardWriter, provision
from tests.topics.splits import FAR_US, SOURCE_ROWS, TARGET_ROWS, declare_split, write_split
from tests.waiting import wait_for
from topics.kafka.client import ClientConfig
from topics.kafka.provisioning import provision_shard
from topics.names import ShardTopics


class Resharded:
    """`80-` was copied to two shards; its server was lost before its last row could be read."""

    def __init__(self, config: ClientConfig, keyspace: str) -> None:
        self.config, self.keyspace = config, keyspace
        self.options = {"kafka.bootstrap.servers": config.brokers}
        provision(config, keyspace, ["-80", "80-"])
        for shard in ("80-c0", "c0-"):
            provision_shard(config, ShardTopics(keyspace, shard))
        self.writers = {s: ShardWriter(config, keyspace, s) for s in ("-80", "80-", "80-c0", "c0-")}
        write_split(*self.writers.values())


@pytest.fixture
def resharded(kafka: KafkaCluster, keyspace: str) -> Iterator[Resharded]:
    """The reshard, not declared yet."""
    made = Resharded(ClientConfig({"bootstrap.servers": kafka.bootstrap_servers}), keyspace)
    yield made
    for writer in made.writers.values():
        writer.close()


def told(rows: list[Any]) -> list[tuple[str, int, bool]]:
    """Shard, seq and mark of the rows, in merged order."""
    return [(r["shard"], r["seq"], r["possible_duplicate"]) for r in merged_order(rows)]


def back_before_the_hop(checkpoint: Path) -> None:
    """Leave the checkpoint of a crash in the batch that hops: planned but not committed."""
    offsets = {int(path.name): path for path in checkpoint.glob("offsets/[0-9]*")}
    hops = [n for n, path in offsets.items() if '"seen"' in path.read_text()]
    for n, path in offsets.items():
        if n > min(hops):
            path.unlink()
            path.with_name(f".{n}.crc").unlink(missing_ok=True)
    for path in checkpoint.glob("commits/[0-9]*"):
        if int(path.name) >= min(hops):
            path.unlink()
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


@pytest.mark.full
def test_a_running_query_hops_without_marks(
    spark: SparkSession, resharded: Resharded, tmp_path: Path
) -> None:
    """Rows that origins prove to have been read are dropped; doubtful ones are marked.

    A replay of the hop gives the same rows, although the source is back and a hop planned now
    would differ. A batch read follows the same rule.
    """
    target, checkpoint = str(tmp_path / "log"), tmp_path / "checkpoint"
    seen: list[ChangeLogProgress] = []
    stop = threading.Event()

    def operate() -> None:
        try:
            wait_for(
                "the rows of the source", lambda: bool(seen) and seen[-1].rows == len(SOURCE_ROWS)
            )
            declare_split(resharded.config, resharded.keyspace)
            wait_for(
                "the rows of the targets", lambda: seen[-1].rows == len(SOURCE_ROWS + TARGET_ROWS)
            )
        finally:
            stop.set()

    operator = threading.Thread(target=operate)
    operator.start()
    run_changelog(
        spark,
        resharded.keyspace,
        target,
        str(checkpoint),
        resharded.options,
        interval_s=0.1,
        on_progress=seen.append,
        stop=stop,
    )
    operator.join()

    assert told(DeltaTable(target).to_pyarrow_table().to_pylist()) == SOURCE_ROWS + TARGET_ROWS
    report = check_changelog(target)
    assert (report.changes, report.lost, report.repeated, report.out_of_order) == (8, 0, 0, 0)
    batch = spark.read.format("shardstream").options(
        keyspace=resharded.keyspace, **resharded.options
    )
    assert told(patiently(lambda: batch.load().collect())) == SOURCE_ROWS + TARGET_ROWS

    back_before_the_hop(checkpoint)
    resharded.writers["80-"].heartbeat(FAR_US)
    stream = spark.readStream.format("shardstream").options(
        keyspace=resharded.keyspace, **resharded.options
    )
    again = run_available(patiently(stream.load), checkpoint)
    assert told([row for rows in again for row in rows]) == TARGET_ROWS
    assert again[0] == []  # the hop is a batch of its own


@pytest.mark.full
def test_a_query_to_the_end_hops_once_its_sources_are_read(
    spark: SparkSession, resharded: Resharded, tmp_path: Path
) -> None:
    """If the source goes on past the switch, all of it is read and none of the copied rows.

    The second run finds no more rows in the source and steps to the switch before it hops.
    """
    stream = spark.readStream.format("shardstream").options(
        keyspace=resharded.keyspace, start="earliest", **resharded.options
    )
    resharded.writers["80-"].heartbeat(4_500_000)
    before = run_available(patiently(stream.load), tmp_path)
    resharded.writers["80-"].heartbeat(6_000_000)
    declare_split(resharded.config, resharded.keyspace)
    after = run_available(patiently(stream.load), tmp_path)

    last = ("80-", 3, False)
    assert told([row for batch in before for row in batch]) == [*SOURCE_ROWS, last]
    assert told([row for batch in after for row in batch]) == [
        ("80-c0", 5, False),
        ("80-c0", 6, False),
        ("c0-", 2, False),
    ]


def test_a_batch_read_hops_while_heartbeats_never_pause(
    resharded: Resharded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B10: the search for a declared reshard does not wait for a poll without heartbeats."""
    # With many shards a heartbeat arrives within the usual time; here there are few.
    monkeypatch.setattr(micro_batches, "HOP_POLL_S", 5.0)
    declare_split(resharded.config, resharded.keyspace)
    options = SourceOptions.parse({"keyspace": resharded.keyspace, **resharded.options})
    schema_ids = schema_ids_of(options.kafka, None)
    start, end = micro_batches.batch_bounds(options, schema_ids)
    legs: list[Any] = []
    reading = threading.Thread(
        target=lambda: legs.extend(micro_batches.batch_legs(options, schema_ids, start, end)),
        daemon=True,
    )

    with beating([resharded.writers["-80"]]):
        reading.start()
        reading.join(QUERY_S_MAX)
        has_ended = not reading.is_alive()
    reading.join(QUERY_S_MAX)

    assert has_ended
    assert [set(leg_end.shards) for _, leg_end in legs] == [
        {"-80", "80-"},
        {"-80", "80-c0", "c0-"},
    ]
