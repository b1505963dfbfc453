"""Runs queries in Spark's tests and says what they read."""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from spark_consumers.change_log import ChangeLogProgress, run_changelog
from spark_consumers.sink_query import planned_batch
from tests.spark_consumers.patience import patiently
from tests.spark_consumers.shop import Shop
from tests.topics.shard_writer import CELL_US, ShardWriter
from topics.kafka.client import open_producer
from topics.progress.codec import PROGRESS_KEY, encode_progress

QUERY_S_MAX = 240


def run_now(spark: SparkSession, shop: Shop, folder: Path, **more: str) -> ChangeLogProgress:
    """Write what is on Kafka to the change log `log` of a folder."""
    return run_changelog(
        spark,
        shop.keyspace,
        str(folder / "log"),
        str(folder / "checkpoint"),
        shop.options(**more),
        trigger="availableNow",
    )


def run_available(
    stream: DataFrame, checkpoint: Path, trigger: str = "availableNow"
) -> list[list[Any]]:
    """Run a query over what is on Kafka; return the rows of its batches in merged order."""
    batches: dict[int, list[Any]] = {}

    def collect(frame: DataFrame, batch_id: int) -> None:
        batches[batch_id] = frame.orderBy("timestamp_us", "shard", "offset").collect()

    def run() -> None:
        writer = stream.writeStream.foreachBatch(collect)
        query = (
            writer.option("checkpointLocation", str(checkpoint)).trigger(**{trigger: True}).start()
        )
        try:
            assert query.awaitTermination(QUERY_S_MAX)
        finally:
            query.stop()

    patiently(run)
    return [batches[batch_id] for batch_id in sorted(batches)]


def forget_last_commit(checkpoint: Path) -> None:
    """Leave what a death between the target's commit and Spark's leaves on the disk."""
    commits = checkpoint / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdecimal())
    for name in (f"{last}", f".{last}.crc"):
        (commits / name).unlink()


def rows_of_batches(checkpoint: Path) -> list[int]:
    """The number of records in each batch that a checkpoint has."""
    numbers = sorted(int(path.name) for path in (checkpoint / "offsets").glob("[0-9]*"))
    batches = [planned_batch(str(checkpoint), number, {}) for number in numbers]
    return [
        sum(at.seq for at in batch.end.shards.values())
        - sum(at.seq for at in batch.begin.shards.values())
        for batch in batches
    ]


def merged_order(rows: Iterable[Any]) -> list[Any]:
    """The rows in merged order."""
    return sorted(rows, key=lambda row: (row["timestamp_us"], row["shard"], row["offset"]))


def seqs(rows: Iterable[Any]) -> Mapping[str, list[int]]:
    """The seqs of each shard, in the order of the rows."""
    found: dict[str, list[int]] = {}
    for row in rows:
        found.setdefault(row["shard"], []).append(row["seq"])
    return found


@contextmanager
def beating(writers: Sequence[ShardWriter]) -> Iterator[None]:
    """Let the heads of shards move without a pause, as those of many producers do."""
    stop = threading.Event()
    end_offsets = {writer.shard: writer.end_offset() for writer in writers}

    def beat() -> None:
        producer = open_producer(writers[0].config)
        while not stop.is_set():
            for writer in writers:
                writer.head_us += CELL_US
                progress = writer.progress((), end_offsets[writer.shard])
                record = encode_progress(progress, writer.schema_ids)
                producer.produce(writer.topics.progress, record, PROGRESS_KEY, 0)
            producer.flush(QUERY_S_MAX)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
