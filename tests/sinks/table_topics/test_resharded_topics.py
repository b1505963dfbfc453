from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.sinks.table_topics.topic_queries import read_topic, write_topics
from tests.spark_consumers.shop import T0_US, OrderWriter, Shop
from tests.topics.shard_writer import ORDERS, START_US, Reshard, ShardWriter
from topics.kafka.provisioning import provision_shard
from topics.keyspace.topology import (
    ReshardEntry,
    ReshardState,
    ShardEntry,
    ShardState,
    Topology,
    update_topology,
)
from topics.names import ShardTopics
from topics.progress.record import MarkKind
from topics.records.vevent import Op, Row

pytestmark = pytest.mark.full

SECOND_US = 1_000_000
SPLIT = Reshard("r1", ("80-",), ("80-c0", "c0-"), 2 * SECOND_US)
HOME = b"\x90"


def change(writer: ShardWriter, at_us: int, op: Op, notes: tuple[str, str]) -> None:
    """Write a change of order 1, which stays at home whatever shard that is."""
    before: Row | None = None if op is Op.INSERT else {"id": 1, "note": notes[0]}
    after: Row | None = None if op is Op.DELETE else {"id": 1, "note": notes[1]}
    ids = (None if before is None else HOME, None if after is None else HOME)
    event = writer.row(at_us, 0, shape=ORDERS, op=op, ids=ids)
    writer.commit_events([replace(event, before=before, after=after)])


def switch_topology(shop: Shop) -> None:
    """Write the topology that the split leaves."""
    hop_us = START_US + SPLIT.hop_us
    split = ReshardEntry(
        SPLIT.reshard_id, SPLIT.sources, SPLIT.targets, ReshardState.COMPLETED, hop_us
    )
    shards = tuple(
        ShardEntry(s, ShardState.RETIRED if s in SPLIT.sources else ShardState.SERVING)
        for s in ("-80", *SPLIT.sources, *SPLIT.targets)
    )
    update_topology(
        shop.config,
        shop.keyspace,
        lambda _: Topology(shop.keyspace, 1, shards, reshards=(split,)),
    )


def test_a_key_keeps_its_order_and_its_record_across_a_live_split(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    """Its changes before and after the split are in one partition in order, each once."""
    writers: dict[str, ShardWriter] = dict(shop.writers)
    source = writers["80-"]
    change(source, SECOND_US // 2, Op.INSERT, ("", "before"))
    for writer in writers.values():
        writer.heartbeat(SECOND_US // 2 + 100_000)
    write_topics(spark, shop, tmp_path)
    change(source, SECOND_US // 2 + 200_000, Op.UPDATE, ("before", "last of the source"))
    for shard in SPLIT.targets:
        provision_shard(shop.config, ShardTopics(shop.keyspace, shard))
        writers[shard] = OrderWriter(shop.config, shop.keyspace, shard)
    source.mark(SECOND_US, MarkKind.END, SPLIT)
    for shard in SPLIT.targets:
        if shard == "80-c0":
            change(writers[shard], SECOND_US, Op.INSERT, ("", "copied: not of the stream"))
        writers[shard].mark(2 * SECOND_US, MarkKind.BEGIN, SPLIT)
    change(
        writers["80-c0"], 2 * SECOND_US, Op.UPDATE, ("last of the source", "first of the target")
    )
    change(writers["80-c0"], 2 * SECOND_US + 10, Op.DELETE, ("first of the target", ""))
    change(writers["80-c0"], 2 * SECOND_US + 20, Op.INSERT, ("", "again"))
    for shard in ("-80", *SPLIT.targets):
        writers[shard].heartbeat(3 * SECOND_US)
    switch_topology(shop)

    write_topics(spark, shop, tmp_path)

    records = read_topic(shop.config, f"{shop.keyspace}.shop.orders")
    found = [
        None if r.value is None else (r.op, (r.value["after"] or {}).get("note")) for r in records
    ]
    assert found == [
        ("c", "before"),
        ("u", "last of the source"),
        ("u", "first of the target"),
        ("d", None),
        None,
        ("c", "again"),
    ]
    assert len({record.partition for record in records}) == 1
    times = [record.value["source"]["ts_us"] for record in records if record.value]
    assert times == sorted(times)
    assert times[0] == T0_US + SECOND_US // 2
    for shard in SPLIT.targets:
        writers[shard].close()
