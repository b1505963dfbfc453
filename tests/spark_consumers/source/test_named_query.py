"""What a named query reports: its checkpoint, not its plans."""

import json
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from event_token import StreamPosition
from event_token.errors import UsageError
from spark_consumers.source.data_source import ShardstreamSource
from spark_consumers.source.stream_offset import StreamOffset
from tests.spark_consumers.patience import STARTS_MAX
from tests.spark_consumers.queries import QUERY_S_MAX, run_available
from tests.spark_consumers.shop import Shop
from topics.kafka.provisioning import provision_readers
from topics.named_readers import read_readers


def checkpointed(checkpoint: Path) -> StreamOffset:
    """The end of the last batch that the checkpoint has as done."""
    last = max(int(path.name) for path in (checkpoint / "commits").glob("[0-9]*"))
    document = (checkpoint / "offsets" / str(last)).read_text().splitlines()[-1]
    return StreamOffset.from_document(json.loads(document))


@pytest.mark.full
def test_a_named_query_reports_its_checkpoint(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    """The position under the name is where the query goes on, also after each of its ends.

    While a batch runs, and after it has failed, it is that before the batch.
    """
    provision_readers(shop.config, shop.keyspace)
    shop.write(20)
    assert run_available(shop.stream(spark, name="lake", maxRowsPerBatch="30"), tmp_path)
    before = checkpointed(tmp_path)
    assert reported(shop) == before.position

    batches = len(list((tmp_path / "offsets").glob("[0-9]*")))
    shop.write(5)
    meanwhile = []

    def fail(*_: object) -> None:
        meanwhile.append(reported(shop))
        raise RuntimeError("the sink is full")

    for _ in range(STARTS_MAX):  # a Python worker may start too late for Spark
        writer = shop.stream(spark, name="lake").writeStream.foreachBatch(fail)
        query = writer.option("checkpointLocation", str(tmp_path)).start()
        with pytest.raises(StreamingQueryException):
            query.awaitTermination(QUERY_S_MAX)
        if meanwhile:
            break
    assert (tmp_path / "offsets" / str(batches)).exists()
    assert [*meanwhile, reported(shop)] == [before.position] * 2

    assert run_available(shop.stream(spark, name="lake"), tmp_path)
    assert reported(shop) == checkpointed(tmp_path).position != before.position


def reported(shop: Shop) -> StreamPosition:
    """The position of the one named reader."""
    [reader] = read_readers(shop.config, shop.keyspace)
    assert reader.last.name == "lake"
    assert reader.others == ()
    return reader.last.position


def test_a_batch_read_takes_no_name(shop: Shop) -> None:
    """A query without a checkpoint has no position that others could wait for."""
    source = ShardstreamSource(shop.options(name="lake"))

    with pytest.raises(UsageError, match="option name is for"):
        source.reader(source.schema())
