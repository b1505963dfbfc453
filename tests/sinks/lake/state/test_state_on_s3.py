"""`state` on an object store: restarts, a lost checkpoint, a second driver, secrets in Spark."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from sinks.errors import TargetConflict
from spark_consumers.sink_query import SinkProgress
from spark_consumers.state import run_state
from tests.sinks.lake.change_log.s3_server import BUCKET, S3Server, s3_server
from tests.sinks.lake.state.sales import Sales
from tests.sinks.lake.state.states import rows_of
from tests.spark_consumers.shop import Shop

pytestmark = pytest.mark.full

TARGET = f"s3://{BUCKET}/state"
# Spark does not hide an option of this name by itself.
OPTION, SECRET = "aws_access_key_id", "key-that-nobody-sees"


@pytest.fixture(scope="module")
def s3(real_servers: None) -> Iterator[S3Server]:
    """A server with an empty bucket."""
    with s3_server() as server:
        yield server


def test_a_query_on_an_object_store_restarts_and_refuses_a_second_one(
    spark: SparkSession, shop: Shop, s3: S3Server, tmp_path: Path
) -> None:
    """A lost checkpoint loses nothing: the query goes on where the target ends.

    The old checkpoint, as any query that begins elsewhere, is refused by name. Spark's plans show
    no options of the storage.
    """
    sales = Sales(shop, seed=8)
    storage = {**s3.options, OPTION: SECRET}
    shown: list[str] = []

    def run(checkpoint: str) -> None:
        stop = threading.Event()

        def watch(progress: SinkProgress) -> None:
            if progress.frontier_us and progress.frontier_us >= sales.now_us - 10_000:
                shown.extend(plans_of(query) for query in spark.streams.active)
                stop.set()

        folder = str(tmp_path / checkpoint)
        run_state(
            *(spark, shop.keyspace, TARGET, folder, shop.options()),
            interval_s=0.1,
            storage_options=storage,
            on_progress=watch,
            stop=stop,
        )

    for checkpoint in ("first", "second"):
        sales.go_on(10)
        run(checkpoint)
    with pytest.raises(TargetConflict, match=r"query \S+ does not continue there"):
        run("first")

    table = DeltaTable(f"{TARGET}/shop/orders", storage_options=storage)
    assert rows_of(pa.table(table.scan())) == sales.expected()
    assert any("shardstream_state" in text or "MicroBatch" in text for text in shown), shown
    assert not [text for text in shown if SECRET in text]


def plans_of(query: Any) -> str:
    """What Spark's pages and logs can show of a query's plans, its options among them."""
    java = query._jsq
    return f"{java.explainInternal(True)} {java.streamingQuery().logicalPlan().toString()}"
