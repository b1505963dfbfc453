"""Records in a shard log that no producer wrote, and settings that change at a restart."""

from dataclasses import replace

import pytest

from event_token import Flavor, Halt, UsageError
from event_token.errors import ShardstreamError
from producers.filters.rules import FilterSettings, TablePattern
from producers.settings import ShardProducerSettings
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
from tests.producers.servers.replication import statements
from tests.producers.session.producing import (
    RunningProducer,
    check_log,
    producing,
    read_log,
    settings_of,
    wait_caught_up,
)
from tests.topics.shard_writer import provision
from topics.kafka.client import ClientConfig, open_producer
from topics.kafka.partition_reader import read_to_end
from topics.names import ShardTopics
from topics.records.vevent import EventType, VEvent
from topics.stream.subscriber import StreamSubscriber


def put(config: ClientConfig, topic: str, value: bytes | None) -> None:
    """Write a record as a stranger would."""
    producer = open_producer(config)
    producer.produce(topic, value, partition=0)
    assert producer.flush(60) == 0


def damaged(settings: ShardProducerSettings, damage: str) -> bytes | None:
    """A record that is damaged in one way."""
    [record, *_] = read_to_end(settings.kafka, ShardTopics(settings.keyspace, "-").log)
    sound = record.value
    assert sound is not None
    return {
        "truncated": sound[: len(sound) // 2],
        "magic": b"\x07" + sound[1:],
        "schema": sound[:1] + b"\x7f\xff\xff\xff" + sound[5:],
        "empty": None,
    }[damage]


@pytest.mark.parametrize("damage", ["truncated", "magic", "schema", "empty"])
def test_damaged_records_stop_readers_and_producers(
    mysql_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str, damage: str
) -> None:
    """F32: a damaged record stops each reader at its offset, and a producer that resumes on it."""
    name = mysql_a.new_database()
    settings = settings_of(mysql_a, kafka, keyspace)
    log = ShardTopics(keyspace, settings.shard).log
    provision(settings.kafka, keyspace, ["-"])
    statements(mysql_a, f"CREATE TABLE {name}.t (id INT PRIMARY KEY)")
    with producing(settings):
        statements(mysql_a, f"INSERT INTO {name}.t VALUES (1), (2)")
        wait_caught_up(settings)
        put(settings.kafka, log, damaged(settings, damage))
        statements(mysql_a, f"INSERT INTO {name}.t VALUES (3)")
        wait_caught_up(settings)
        # The producer goes on: only its next heartbeat lets readers reach the last row.
        bounds = [record.offset for record in read_to_end(settings.kafka, log)]
        errors = []
        for _ in range(2):
            events: list[VEvent] = []
            with (
                pytest.raises(ShardstreamError) as raised,
                StreamSubscriber(keyspace, start="earliest", config=settings.kafka) as stream,
            ):
                events.extend(stream)
            assert [e.after for e in events] == [{"id": 1}, {"id": 2}]
            errors.append(raised.value)
    put(settings.kafka, log, damaged(settings, damage))
    stopped = RunningProducer(settings).wait_error()

    for error in errors:
        assert isinstance(error, Halt)
        assert f"offset {bounds[2]}" in str(error)
    assert isinstance(stopped, Halt)
    assert f"offset {bounds[-1]}" in str(stopped) or log in str(stopped)


def test_settings_that_change_at_a_restart(
    mariadb_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """F41: filter rules hold from the restart on; another start is said; another family stops."""
    name = mariadb_a.new_database()
    settings = settings_of(mariadb_a, kafka, keyspace)
    statements(
        mariadb_a, *(f"CREATE TABLE {name}.{table} (id INT PRIMARY KEY)" for table in ("t", "u"))
    )
    with producing(settings):
        statements(mariadb_a, *(f"INSERT INTO {name}.{table} VALUES (1)" for table in ("t", "u")))
        wait_caught_up(settings)
    changed = replace(
        settings, filters=FilterSettings(exclude=(TablePattern(f"{name}.u"),)), start="earliest"
    )
    statements(mariadb_a, *(f"INSERT INTO {name}.{table} VALUES (2)" for table in ("t", "u")))
    with producing(changed) as producer:
        wait_caught_up(changed)
        notes = [status.note for status in producer.statuses]
    error = RunningProducer(replace(changed, flavor=Flavor.MYSQL)).wait_error()
    log = read_log(settings)

    check_log(log)
    rows = [(e.table, e.after) for e in log.events if e.type is EventType.ROW]
    assert rows == [("t", {"id": 1}), ("u", {"id": 1}), ("t", {"id": 2})]
    assert any("start 'earliest' is ignored" in note for note in notes)
    assert isinstance(error, UsageError)
