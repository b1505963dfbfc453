"""Views of keyspaces, made as the product makes them."""

import time
from dataclasses import replace

from event_token import KeyRange, StreamPosition
from tests.topics.fleet.looks import shard_look as shard_look_at
from topics.fleet.view import KeyspaceView, ShardEnds, keyspace_view
from topics.keyspace.topology import (
    ReshardEntry,
    ReshardState,
    ShardEntry,
    ShardState,
    Topology,
)
from topics.named_readers import NamedReader, ReaderRecord
from topics.progress.copy_topic import CopyState, TableCopy
from topics.progress.record import LastDdl

HOP_S_AGO = 40


def now_us() -> int:
    """The time, in microseconds."""
    return time.time_ns() // 1_000


def shard_look(head_s_ago: float = 0.2, server: str = "db-a:3306") -> ShardEnds:
    """The end of the topics of a shard whose producer wrote last so long ago."""
    return shard_look_at(now_us(), head_s_ago=head_s_ago, written_s_ago=head_s_ago, server=server)


def two_shards(keyspace: str, **head_s_ago: float) -> KeyspaceView:
    """A keyspace of shards -80 and 80-; `low` and `high`: when their producers wrote last."""
    looks = {
        "-80": shard_look(head_s_ago.get("low", 0.2)),
        "80-": shard_look(head_s_ago.get("high", 0.2)),
    }
    topology = Topology(keyspace, 3, (ShardEntry("-80"), ShardEntry("80-")))
    return keyspace_view(topology, looks, now_us())


def busy_keyspace(keyspace: str, server: str = "db-a:3306") -> KeyspaceView:
    """One of everything: -80 was split a while ago, 80- is being split and silent.

    A copy runs, and a reader reports whose name and host are `server`'s.
    """
    hop_us = now_us() - HOP_S_AGO * 1_000_000
    done, begun = ReshardState.COMPLETED.value, ReshardState.RUNNING.value
    shards = (
        ShardEntry("-40"),
        ShardEntry("-80", ShardState.RETIRED),
        ShardEntry("40-80"),
        ShardEntry("80-"),
        ShardEntry("80-c0", ShardState.TARGET),
        ShardEntry("c0-", ShardState.TARGET),
    )
    reshards = (
        ReshardEntry("low", ("-80",), ("-40", "40-80"), done, hop_us),
        ReshardEntry("high", ("80-",), ("80-c0", "c0-"), begun),
    )
    copy = TableCopy(
        "shop",
        "orders",
        "c1",
        CopyState.COPYING,
        now_us(),
        now_us(),
        rows=400,
        rows_read=400,
        rows_estimated=1_000,
        rows_per_s=20,
        note=server,
        last_key_text={"card": "4242424242"},
    )
    altered = shard_look(server=server)
    assert altered.progress is not None
    ddl = LastDdl(hop_us, "ALTER TABLE", server)
    looks = {
        "-40": shard_look(),
        "-80": shard_look(HOP_S_AGO),
        "40-80": replace(altered, progress=replace(altered.progress, ddl=ddl)),
        "80-": replace(shard_look(41, "db-b:3306"), ended_us={"high": hop_us}),
        "80-c0": replace(shard_look(1), copies=(copy,)),
        "c0-": ShardEnds(),
    }
    position = StreamPosition(3, hop_us, {})
    said = ReaderRecord(server, server, position, KeyRange.parse("-"), server, "0.1.0", now_us(), 0)
    readers = [said, *(replace(said, name=f"a {kind}", kind=kind) for kind in ("cache", "query"))]
    return keyspace_view(
        Topology(keyspace, 3, shards, reshards=reshards),
        looks,
        now_us(),
        tuple(map(NamedReader, readers)),
    )
