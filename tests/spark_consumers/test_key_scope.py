"""Shards that have the same keys for different rows, in streaming queries."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from sinks.errors import SameKeys, TargetConflict
from spark_consumers.state import run_state
from tests.sinks.table_topics.topic_queries import read_topic, write_topics
from tests.spark_consumers.shop import Change, Shop
from tests.topics.shard_writer import CELL_US
from topics.records.vevent import Row

pytestmark = pytest.mark.full

HOMES = {"-80": b"\x10", "80-": b"\x90"}


def order(number: int, note: str) -> Row:
    return {"id": number, "note": note, "price": None}


def promise(shop: Shop) -> None:
    """Let the frontier pass what is written."""
    shop.now_us += CELL_US
    for writer in shop.writers.values():
        writer.promise(shop.now_us)


def put(shop: Shop, shard: str, before: Row | None, after: Row | None) -> None:
    """Change a row of a shard, and let the frontier pass it."""
    ids = (before and HOMES[shard], after and HOMES[shard])
    shop.writers[shard].write([Change(shop.now_us, before, after, ids=ids)])  # type: ignore[arg-type]
    promise(shop)


def test_the_same_key_on_two_shards_is_two_rows_and_two_keys(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    """A table and a topic; a DELETE on one shard ends its row alone. Another scope is refused."""
    for shard in HOMES:
        put(shop, shard, None, order(1, shard))
    put(shop, "-80", order(1, "-80"), None)
    state = (spark, shop.keyspace, str(tmp_path / "state"), str(tmp_path / "state.checkpoint"))

    run_state(*state, shop.options(keyScope="shard"), trigger="availableNow")
    write_topics(spark, shop, tmp_path, keyScope="shard")

    rows = pa.table(DeltaTable(str(tmp_path / "state/shop/orders")).scan()).to_pylist()
    assert [(row["id"], row["_keyspace_id"], row["note"]) for row in rows] == [(1, "90", "80-")]
    records = read_topic(shop.config, f"{shop.keyspace}.shop.orders")
    ops: dict[str, list[object]] = {}
    for record in records:
        ops.setdefault(record.key["_keyspace_id"], []).append(record.op)
    assert ops == {"10": ["c", "d", None], "90": ["c"]}
    with pytest.raises(TargetConflict, match="begun with --key-scope shard"):
        run_state(*state, shop.options(), trigger="availableNow")
    with pytest.raises(TargetConflict, match="begun with --key-scope shard"):
        write_topics(spark, shop, tmp_path)


def test_the_same_key_on_two_shards_stops_a_query_until_one_row_is_gone(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    """Not the batch that brings it, but the next; after the DELETE the query goes on."""
    places = (str(tmp_path / "state"), str(tmp_path / "checkpoint"))

    def run() -> None:
        run_state(spark, shop.keyspace, *places, shop.options(), trigger="availableNow")

    for shard in HOMES:
        put(shop, shard, None, order(1, shard))
    run()
    put(shop, "-80", None, order(2, "-80"))
    with pytest.raises(SameKeys, match=r"shop\.orders, key \[1\], on shards -80 and 80-"):
        run()
    put(shop, "-80", order(1, "-80"), None)
    run()

    rows = pa.table(DeltaTable(str(tmp_path / "state/shop/orders")).scan()).to_pylist()
    assert {row["id"]: row["note"] for row in rows} == {1: "80-", 2: "-80"}
