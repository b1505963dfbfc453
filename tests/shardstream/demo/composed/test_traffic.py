"""The composed shop says what it has written, however its traffic ends."""

import re
import threading
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pymysql
import pytest

from event_token.errors import Retry
from shardstream.commands.status_lines import StatusLines
from shardstream.demo import workload
from shardstream.demo.composed import app
from shardstream.demo.shop import BackgroundWork, ShardDirectory, shop_tables
from shardstream.local.kafka_cluster import KafkaCluster
from shardstream.settings.model import load_settings
from tests.database_servers import DatabaseFixture
from topics.kafka.client import ClientConfig
from topics.kafka.provisioning import provision_keyspace
from topics.kafka.topic_settings import TopicSettings
from topics.keyspace.topology import ShardEntry, Topology, update_topology

_STOPPED = re.compile(r"stopped: ([0-9,]+) row changes")


class _Visitors(BackgroundWork):
    """Visitors whose cache has failed."""

    views = 0

    def __init__(self, *_: object) -> None:
        super().__init__()
        self._prepare([self._fail])

    def _fail(self) -> None:
        raise Retry("the cache is away")


class _Shop:
    """Two shards on one server, which tells how many rows it has changed in them."""

    def __init__(self, kafka: KafkaCluster, keyspace: str, database: DatabaseFixture) -> None:
        self.config = ClientConfig({"bootstrap.servers": kafka.bootstrap_servers})
        self.keyspace = keyspace
        self._database = database
        self._schemas = {shard: database.new_database() for shard in ("-80", "80-")}
        shards = tuple(map(ShardEntry, self._schemas))
        provision_keyspace(self.config, keyspace, TopicSettings())
        update_topology(self.config, keyspace, lambda _: Topology(keyspace, 0, shards))
        for shard in self._schemas:
            with self.connect(shard) as connection, connection.cursor() as cursor:
                for statement in filter(str.strip, shop_tables().split(";")):
                    cursor.execute(statement)

    def connect(self, shard: str) -> Any:
        return pymysql.connect(
            host=self._database.host,
            port=self._database.port,
            user=self._database.root_user,
            database=self._schemas[shard],
            ssl_disabled=True,
        )

    def changes(self) -> int:
        """The rows that were inserted, updated and deleted."""
        with self.connect("-80") as connection, connection.cursor() as cursor:
            cursor.execute(
                "SELECT SUM(count_insert + count_update + count_delete) "
                "FROM performance_schema.table_io_waits_summary_by_table "
                "WHERE object_schema IN %s",
                ([*self._schemas.values()],),
            )
            [(found,)] = cursor.fetchall()
        return int(found)


def test_rows_are_counted_also_where_the_traffic_fails(
    kafka: KafkaCluster,
    keyspace: str,
    mysql_a: DatabaseFixture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next run knows nothing of them: the ended one prints their number before its error."""
    shop = _Shop(kafka, keyspace, mysql_a)
    directory = ShardDirectory(keyspace, shop.config)
    connects = {shard: partial(shop.connect, shard) for shard in directory.serving}
    settings = tmp_path / "shardstream.toml"
    settings.write_text(f'[kafka]\nbootstrap_servers = "{kafka.bootstrap_servers}"\n')
    monkeypatch.setattr(app, "ShardDirectory", lambda *_: directory)
    monkeypatch.setattr(app, "connects", lambda *_: connects)
    monkeypatch.setattr(app, "Visitors", _Visitors)
    monkeypatch.setattr(workload, "FIRST_TRANSACTIONS", 10)
    out = StringIO()

    with pytest.raises(Retry, match="the cache is away"):
        app._run_traffic(
            load_settings(settings), threading.Event(), StatusLines(as_json=False, out=out)
        )

    [said] = _STOPPED.findall(out.getvalue())
    assert int(said.replace(",", "")) == shop.changes() > 0
