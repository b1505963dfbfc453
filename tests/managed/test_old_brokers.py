"""Brokers of a release, or a make, that does not know all settings of topics."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from shardstream.local import kafka_cluster
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
from tests.faults.listeners import ListeningCluster
from tests.managed.kafka_services import MIB, OLD_VERSION, old_jars, old_settings
from tests.managed.results import RecordProperty, measured
from tests.producers.copy.copying import (
    check_changes_once,
    check_copied_log,
    replay_upserts,
    server_rows,
    wait_state,
)
from tests.producers.copy.copying import start as copy_tables
from tests.producers.servers.replication import statements
from tests.producers.session.producing import (
    RunningProducer,
    check_progress,
    producing,
    read_log,
    settings_of,
    wait_caught_up,
)
from tests.producers.session.workload import Workload, process
from tests.topics.schemas.writing import topic_setting
from tests.topics.shard_writer import limit_messages
from tests.waiting import wait_for
from topics.kafka.client import ClientConfig
from topics.kafka.provisioning import (
    provision_keyspace,
    provision_positions_topic,
    provision_readers,
    provision_schemas_topic,
    provision_shard,
    topic_warnings,
    wrong_topics,
)
from topics.kafka.topic_settings import RECORD_BYTES_MIN
from topics.names import ShardTopics
from topics.progress.copy_topic import CopyState

pytestmark = pytest.mark.full

LARGE_BYTES = 4 * MIB

# By fixture: the settings that its brokers do not report, and what preflight says of each.
TIMES_MATTER = "a broker that limits the times of records stops the shard"
UNKNOWN = {
    "old_kafka": {"message.timestamp.before.max.ms": TIMES_MATTER},
    "redpanda": {
        "message.timestamp.before.max.ms": TIMES_MATTER,
        "unclean.leader.election.enable": (
            "ask who runs Kafka whether a replica that lacks records may become the leader"
        ),
        "min.compaction.lag.ms": "",
    },
}


PROFILES = {"old_kafka": "kafka-3.5", "redpanda": "few settings"}


@pytest.fixture
def old_kafka(real_servers: None, tmp_path: Path) -> Iterator[KafkaCluster]:
    """A broker of Kafka 3.5."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(kafka_cluster, "kafka_jars", old_jars)
        patched.setattr(kafka_cluster, "VERSION", OLD_VERSION)
        patched.setattr(kafka_cluster, "broker_settings", old_settings)
        cluster = KafkaCluster(tmp_path / "kafka", die_with_parent=True)
        try:
            cluster.launch()
            cluster.finish_start()
            yield cluster
        finally:
            cluster.kill()


@pytest.fixture
def redpanda(real_servers: None, tmp_path: Path) -> Iterator[KafkaCluster]:
    """A broker that creates topics with settings that it does not know and does not report."""
    cluster = ListeningCluster(tmp_path / "kafka")
    names = [name.encode() for name in UNKNOWN["redpanda"]]
    cluster.proxy.rewritten = {name: b"-" * len(name) for name in names}
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()
        cluster.proxy.close()


@pytest.mark.parametrize("make", ["redpanda", "old_kafka"])
def test_rows_go_through_a_broker_that_knows_fewer_settings(
    request: pytest.FixtureRequest,
    make: str,
    mysql_a: DatabaseFixture,
    keyspace: str,
    record_property: RecordProperty,
) -> None:
    """What it does not know is left out and its cost is said.

    Nothing is lost or repeated by a copy, a large row, a producer that is killed and a restart.
    """
    cluster: KafkaCluster = request.getfixturevalue(make)
    proxied = cluster.proxied if isinstance(cluster, ListeningCluster) else None
    config = ClientConfig({"bootstrap.servers": proxied or cluster.bootstrap_servers})
    name = mysql_a.new_database()
    settings = replace(settings_of(mysql_a, cluster, keyspace), kafka=config)
    shard = ShardTopics(keyspace, settings.shard)
    provision_schemas_topic(config)
    provision_keyspace(config, keyspace)
    provision_readers(config, keyspace)
    provision_positions_topic(config)

    provision_shard(config, shard)
    limit_messages(config, shard.log, RECORD_BYTES_MIN)
    statements(mysql_a, f"CREATE TABLE {name}.large (id INT PRIMARY KEY, v LONGTEXT)")
    text = random.Random(1).randbytes(LARGE_BYTES // 2).hex()

    with Workload(mysql_a, name) as load, process(settings) as killed:
        killed.wait_line("streaming")
        copy_tables(settings, f"{name}.t")
        wait_state(settings, CopyState.COMPLETED)
        statements(mysql_a, f"INSERT INTO {name}.large VALUES (1, '{text}')")
        wait_caught_up(settings)
        killed.kill()
        running = RunningProducer(settings)
        running.wait_streaming()
        [broker] = cluster.brokers
        broker.stop()
        broker.start()
        seen = load.committed
        wait_for("the load goes on", lambda: load.committed > seen + 20)
    wait_caught_up(settings)
    running.end()
    with producing(settings):  # the topics that exist now are taken as they are
        wait_caught_up(settings)

    log = read_log(settings)
    check_copied_log(log)
    check_changes_once(log)
    check_progress(log)
    for table in ("t", "large"):
        is_same = replay_upserts(log, name, table) == server_rows(mysql_a, name, table, ["id"])
        assert is_same, table  # to print how such rows differ takes minutes
    [large] = (each for progress in log.progress for each in progress.in_parts)
    assert large.parts > 1
    assert wrong_topics(config, [shard]) == []
    warnings = topic_warnings(config, [shard])
    for unknown, cost in UNKNOWN[make].items():
        said = f"{shard.log}: {unknown} is not reported by the broker: {cost}"
        assert (said in warnings) == bool(cost)
    # Nothing is compacted where the lag of compaction is unknown.
    kept = "delete" if make == "redpanda" else "compact"
    assert topic_setting(config, shard.progress, "cleanup.policy") == kept
    steps = ("start", "copy", "stream", "kill", "large row")
    measured(record_property, PROFILES[make], len(log.events), *steps)
