"""A cache in the memory of a process, made from settings."""

import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from caching.invalidating.in_process import ProcessStore
from caching.reading.reader import FreshRows
from event_token import UsageError
from shardstream import Cache
from shardstream.local.kafka_cluster import KafkaCluster
from tests.topics.shard_writer import ShardWriter, serving
from tests.waiting import wait_for
from topics.kafka.client import ClientConfig


class Rows:
    """Reads how many rows a log has, with the token of the last one."""

    def __init__(self, writer: ShardWriter) -> None:
        self._writer = writer

    def execute(self, *_: Any, **__: Any) -> FreshRows:
        written = self._writer.written
        return FreshRows([len(written)], written[-1].token, None, "replica")


@pytest.fixture
def writer(kafka: KafkaCluster, keyspace: str) -> Iterator[ShardWriter]:
    """The only shard of a keyspace."""
    config = ClientConfig({"bootstrap.servers": kafka.bootstrap_servers})
    with serving(config, keyspace) as make:
        yield make("-")[0]


def write_settings(folder: Path, kafka: KafkaCluster, keyspace: str, more: str = "") -> Path:
    """Settings of a cache in memory, with its KeyMap."""
    module = f"maps_{secrets.token_hex(4)}"
    (folder / f"{module}.py").write_text(
        "from shardstream import KeyMap\nKEYS = KeyMap()\n"
        "KEYS.of('shop.orders')(lambda row: [f\"order:{row['id']}\"])\n"
    )
    path = folder / "shardstream.toml"
    path.write_text(
        f'[kafka]\nbootstrap_servers = "{kafka.bootstrap_servers}"\n'
        f'[keyspaces.{keyspace}.shards."-"]\nflavor = "mysql"\n'
        f'servers = [{{host = "db", user = "u"}}]\n[caches.pages]\nkeyspace = "{keyspace}"\n'
        f'store = "memory://"\nkeys = "{module}:KEYS"\nbuckets = 64\npublish_ms = 100\n{more}'
    )
    return path


def test_a_forked_process_has_no_hits(
    tmp_path: Path, kafka: KafkaCluster, keyspace: str, writer: ShardWriter
) -> None:
    """The thread that invalidates is not in a child, so what was stored before is not there."""
    writer.commit((0, 1))
    path = write_settings(tmp_path, kafka, keyspace)
    cache = Cache.from_settings(path, "pages", {"-": Rows(writer)})
    nodes = cast("ProcessStore", cache._store).memory.values()

    def is_stored() -> bool:
        cache.get_or_load("order:2", lambda read: read("SELECT COUNT(*)")[0])
        return any(node.floors and node.slots for node in nodes)

    try:
        wait_for("a value is stored", is_stored)
        child = os.fork()
        if child == 0:
            os._exit(any(node.floors or node.slots for node in nodes))
        assert os.waitpid(child, 0)[1] == 0
        assert any(node.slots for node in nodes)
    finally:
        cache.close()


def test_its_process_invalidates_it(
    tmp_path: Path, kafka: KafkaCluster, keyspace: str, writer: ShardWriter
) -> None:
    """A value is a hit until its row changes, and the new one is a hit again."""
    writer.commit((0, 1))
    path = write_settings(tmp_path, kafka, keyspace)
    cache = Cache.from_settings(path, "pages", {"-": Rows(writer)})

    def count() -> object:
        return cache.get_or_load("order:2", lambda read: read("SELECT COUNT(*)")[0])

    try:
        wait_for("a hit", lambda: count() == 1 and cache.counters()["hits"] > 0)
        writer.commit((1_000, 1))
        wait_for("the new value", lambda: count() == 2)
        hits = cache.counters()["hits"]
        wait_for("a hit of it", lambda: count() == 2 and cache.counters()["hits"] > hits)
    finally:
        cache.close()


def test_it_has_one_invalidator(tmp_path: Path, kafka: KafkaCluster, keyspace: str) -> None:
    """Key ranges are for invalidators of several processes."""
    path = write_settings(tmp_path, kafka, keyspace, 'key_ranges = ["-80", "80-"]\n')

    with pytest.raises(UsageError, match="a store in memory has one invalidator"):
        Cache.from_settings(path, "pages", {"-": None})  # type: ignore[dict-item]
