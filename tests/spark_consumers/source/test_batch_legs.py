"""The parts of a batch query over a reshard, planned on real topics without Spark."""

import pytest

from event_token import ShardPosition, StreamPosition
from spark_consumers.source.micro_batches import batch_bounds, batch_legs
from spark_consumers.source.options import SourceOptions
from spark_consumers.source.stream_offset import StreamOffset
from tests.topics.shard_writer import START_US, Writers
from tests.topics.splits import (
    BEHIND_OFFSET,
    SLOW_MERGE,
    SLOW_US,
    begin_slow_merge,
    entry,
    finish_slow_merge,
)
from tests.topics.written_shards import config, targets, writers
from topics.kafka.client import ClientConfig
from topics.keyspace.topology import ShardEntry, ShardState, Topology, update_topology

pytestmark = pytest.mark.full

__all__ = ["config", "targets", "writers"]


def test_a_query_from_a_record_behind_an_end(
    config: ClientConfig, keyspace: str, writers: Writers, targets: Writers
) -> None:
    """A query whose start lies where a record follows END leads over the hop, past no record."""
    running, ended = writers("-80", "80-")
    begin_slow_merge(running, ended)
    finish_slow_merge(running, ended, targets("-")[0])
    retired = tuple(ShardEntry(shard, ShardState.RETIRED) for shard in ("-80", "80-"))
    hop_us = START_US + SLOW_MERGE.hop_us
    topology = Topology(
        keyspace,
        1,
        (ShardEntry("-"), *retired),
        reshards=(entry("r1", "-80 80-", "-", hop_us),),
    )
    update_topology(config, keyspace, lambda _: topology)
    options = SourceOptions.parse(
        {"keyspace": keyspace, "kafka.bootstrap.servers": config.brokers, "start": "earliest"}
    )
    _, end = batch_bounds(options, running.schema_ids)
    behind_us = START_US + SLOW_US - 20_000
    shards = {"-80": ShardPosition(2, 2, None), "80-": ShardPosition(BEHIND_OFFSET, 1, None)}
    start = StreamOffset(StreamPosition(0, behind_us, shards))

    first, second = batch_legs(options, running.schema_ids, start, end)

    assert {shard: at.seq for shard, at in first[1].shards.items()} == {"-80": 3, "80-": 1}
    assert second[0].position.shards == {"-": ShardPosition(0, 0, None)}
    assert second[1].shards["-"].seq == 3
