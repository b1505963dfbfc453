"""`shardstream invalidate`: a cache is kept while its invalidator is killed and started again."""

import json
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from caching.protocol import CacheLayout
from caching.stores.on_redis.store import RedisStore
from caching.stores.store import StoreOptions
from event_token import EventToken
from shardstream.local.cache_server import RedisServer
from shardstream.local.kafka_cluster import KafkaCluster
from tests.caching.invalidating.invalidating import Client
from tests.caching.stores.opened import TIMEOUT_MS, Opened
from tests.database_servers import DatabaseFixture
from tests.producers.servers.replication import statements
from tests.shardstream.command_line import (
    Background,
    background,
    publishing,
    run,
    streaming,
    write_cache,
    write_settings,
)
from tests.waiting import wait_for
from topics.kafka.client import ClientConfig
from topics.kafka.partition_reader import read_to_end
from topics.names import ShardTopics
from topics.records.event_decoder import EventDecoder
from topics.records.vevent import EventType
from topics.schemas import open_schema_ids

pytestmark = pytest.mark.full


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis server."""
    server = RedisServer(tmp_path / "redis", die_with_parent=True)
    try:
        server.start()
        yield server
    finally:
        server.kill()


def after_a_second(watcher: Background, **found: int) -> bool:
    """Whether a watcher's looks at changes of the age of a second have found at least this."""
    tallies = [line["within"]["1"] for line in watcher.lines]
    return any(all(tally[name] >= n for name, n in found.items()) for tally in tallies)


def check_watcher(folder: Path, command: list[str], opened: Opened, old: EventToken) -> None:
    """`t:2` agrees and `t:1` is absent, until an old read of it is put in by hand."""
    watched = [*command, "--watch", "1", "--from", "3600", "--every", "0"]
    with background(folder, "all_well", *watched) as watcher:
        watcher.wait_for("its looks", lambda seen: after_a_second(seen, absent=2, agrees=1))
        assert watcher.lines[-1]["within"]["1"]["share"] == 1.0
    opened.put("t:1", Client(opened).floor("t:1").generation, old)
    with background(folder, "spoiled", *watched) as watcher:
        watcher.wait_for("its looks", lambda seen: after_a_second(seen, stale=1, agrees=2))
        watcher.wait_for(
            "its note",
            lambda seen: any(line["note"].startswith("t:1 is stale") for line in seen.lines),
        )


def row_tokens(kafka: KafkaCluster, keyspace: str) -> list[EventToken]:
    """The tokens of all rows in the log."""
    config = ClientConfig({"bootstrap.servers": kafka.bootstrap_servers})
    codec = EventDecoder(open_schema_ids(config, None))
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
    options = StoreOptions(timeout_ms=TIMEOUT_MS)
    store = RedisStore(CacheLayout(cache, 64), f"redis://{redis_server.address}", options)
    opened = Opened(store, None, None, None, None)  # type: ignore[arg-type]
    client = Client(opened)
    command = ["invalidate", keyspace, "--cache", cache, "--json", "--config", str(path)]
    refused = run(*command)
    assert refused.returncode == 2
    assert f"the KeyMap maps {database}.t, which does not exist" in refused.stderr
    # Before the log begins: ten seconds back from a position may be its beginning.
    statements(mysql_a, f"CREATE TABLE {database}.t (id INT PRIMARY KEY, n INT)")
    with (
        mysql_a.connect(database=database) as connection,
        connection.cursor() as cursor,
        background(
            tmp_path, "producer", "produce", keyspace, "-", "--json", "--config", str(path)
        ) as producer,
    ):
        producer.wait_for("streaming", streaming)
        cursor.execute("INSERT INTO t VALUES (1, 1), (2, 1)")
        wait_for("the rows are logged", lambda: len(row_tokens(kafka, keyspace)) == 2)
        read = row_tokens(kafka, keyspace)[-1]
        # An idle invalidator would tell its position after a minute.
        often = ("--every", "0")
        with background(tmp_path, "first", *command, *often) as first:
            first.wait_for("a position", publishing)
            client.make_floors("t:1", "t:2")
            assert client.fill("t:1", read)
            assert client.fill("t:2", read)
        cursor.execute("UPDATE t SET n = 2 WHERE id = 1")
        with background(tmp_path, "second", *command, "--from", "10", *often) as second:
            second.wait_for("a position", publishing)
            wait_for("the value goes", lambda: not client.hit("t:1"))
            assert client.hit("t:2")
            second.process.terminate()
            assert second.wait_end() == 0
    last = json.loads(second.output_path.read_text().splitlines()[-1])
    assert last["generations_renewed"] == 0
    check_watcher(tmp_path, command, opened, read)
    assert run(*command, "--watch", "2").returncode == 2
    assert "--name is for an invalidator" in run(*command, "--watch", "1", "--name", "x").stderr
    opened.store.close()
