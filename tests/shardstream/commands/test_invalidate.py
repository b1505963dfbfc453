"""`shardstream invalidate`: a cache is kept while its invalidator is killed and started again."""

import json
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from caching.protocol import Layout
from caching.stores.on_redis.store import RedisStore
from event_token import EventToken
from shardstream.local.cache_server import RedisServer
from shardstream.local.kafka_cluster import KafkaCluster
from tests.caching.invalidating.invalidating import Client
from tests.caching.stores.opened import TIMEOUT_MS, Opened
from tests.database_servers import DatabaseFixture
from tests.producers.session.producing import wait_for
from tests.shardstream.command_line import Background, background, run, streaming, write_settings
from topics.kafka.client import ClientConfig
from topics.kafka.partition_reader import read_to_end
from topics.names import ShardTopics
from topics.records.record_decoder import RecordDecoder
from topics.records.vevent import EventType
from topics.schemas.registry import open_schema_ids


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis server."""
    server = RedisServer(tmp_path / "redis", die_with_parent=True)
    try:
        server.start()
        yield server
    finally:
        server.kill()


def publishing(invalidator: Background) -> bool:
    """Whether an invalidator has stored a position."""
    return any(line["position_age_s"] is not None for line in invalidator.lines)


def write_cache(folder: Path, keyspace: str, cache: str, address: str, table: str) -> Path:
    """Add a cache to the settings in a folder, and the KeyMap of a table; return the settings."""
    path, module = folder / "shardstream.toml", f"maps_{cache.replace('-', '_')}"
    section = [f"[caches.{cache}]", f'keyspace = "{keyspace}"', "buckets = 64"]
    section += [f'store = "redis://{address}"', f'keys = "{module}:KEYS"']
    path.write_text(path.read_text() + "\n".join(section) + "\n")
    (folder / f"{module}.py").write_text(
        "from shardstream import KeyMap\nKEYS = KeyMap()\n"
        f"KEYS.of('{table}')(lambda row: [f\"t:{{row['id']}}\"])\n"
    )
    return path


def row_tokens(config: ClientConfig, keyspace: str) -> list[EventToken]:
    """The tokens of all rows in the log."""
    codec = RecordDecoder(open_schema_ids(config, None))
    records = read_to_end(config, ShardTopics(keyspace, "-").log)
    events = (codec.decode(record.value, "-", record.offset) for record in records)
    return [event.token for event in events if event.type is EventType.ROW]


def test_a_killed_invalidator_goes_on(
    tmp_path: Path,
    kafka: KafkaCluster,
    keyspace: str,
    mysql_a: DatabaseFixture,
    redis_server: RedisServer,
) -> None:
    """R10: killed, and started ten seconds back: what changed meanwhile is out, the rest stays."""
    database, cache = mysql_a.new_database(), f"pages-{secrets.token_hex(4)}"
    write_settings(tmp_path, kafka.bootstrap_servers, keyspace, {"-": mysql_a})
    path = write_cache(tmp_path, keyspace, cache, redis_server.address, f"{database}.t")
    store = RedisStore(Layout(cache, 64), f"redis://{redis_server.address}", timeout_ms=TIMEOUT_MS)
    client = Client(Opened(store, None, None, None, None))  # type: ignore[arg-type]
    command = ["invalidate", keyspace, "--cache", cache, "--json", "--config", str(path)]
    refused = run(*command)
    assert refused.returncode == 2
    assert f"the KeyMap maps {database}.t, which is not there" in refused.stderr
    with (
        mysql_a.connect(database=database) as connection,
        connection.cursor() as cursor,
        background(
            tmp_path, "producer", "produce", keyspace, "-", "--json", "--config", str(path)
        ) as producer,
    ):
        producer.wait_for("streaming", streaming)
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, n INT)")
        cursor.execute("INSERT INTO t VALUES (1, 1), (2, 1)")
        config = ClientConfig({"bootstrap.servers": kafka.bootstrap_servers})
        wait_for("the rows are logged", lambda: len(row_tokens(config, keyspace)) == 2)
        read = row_tokens(config, keyspace)[-1]
        with background(tmp_path, "first", *command) as first:
            first.wait_for("a position", publishing)
            client.make_floors("t:1", "t:2")
            assert client.fill("t:1", read)
            assert client.fill("t:2", read)
        cursor.execute("UPDATE t SET n = 2 WHERE id = 1")
        with background(tmp_path, "second", *command, "--from", "10") as second:
            second.wait_for("a position", publishing)
            wait_for("the value goes", lambda: not client.hit("t:1"))
            assert client.hit("t:2")
            second.process.terminate()
            assert second.wait_end() == 0
    last = json.loads(second.output_path.read_text().splitlines()[-1])
    assert last["generations_renewed"] == 0
    store.close()
