"""Copied rows are ordinary rows to readers of the merged stream."""

from dataclasses import replace

import pytest

from producers.filters.rules import FilterRule, FilterSettings, TablePattern
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
from tests.producers.copy.copying import start, wait_state
from tests.producers.session.producing import producing, settings_of, wait_caught_up
from tests.topics.shard_writer import provision
from topics.progress.copy_topic import CopyState
from topics.records.vevent import EventType, Op
from topics.stream.subscriber import StreamSubscriber

pytestmark = pytest.mark.full


def test_subscriber_starts_with_a_copy(
    mysql_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """`start="copy"` requests the copy and delivers its rows as READ, then the later changes."""
    name = mysql_a.new_database()
    with mysql_a.connect(database=name) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
        cursor.execute("INSERT INTO t VALUES (1, 10), (2, 20), (3, 30)")
    settings = settings_of(mysql_a, kafka, keyspace)
    provision(settings.kafka, keyspace, [settings.shard])
    with producing(settings):
        subscriber = StreamSubscriber(
            keyspace, start="copy", config=settings.kafka, tables=[f"{name}.t"], idle_timeout_s=60
        )
        seen: list[tuple[str, int]] = []
        with subscriber as events:
            for event in events:
                if event.type is EventType.COPY_COMPLETED:
                    with mysql_a.connect(database=name) as connection:
                        connection.cursor().execute("UPDATE t SET v = 21 WHERE id = 2")
                elif event.type is EventType.ROW:
                    assert event.after is not None
                    seen.append((event.op.value, int(str(event.after["v"]))))
                    if event.op is Op.UPDATE:
                        break
        # Another one begins with the same copy, and none is made for it.
        again = StreamSubscriber(
            keyspace, start="copy", config=settings.kafka, tables=[f"{name}.t"], idle_timeout_s=60
        )
        with again as events:
            rows = [e for e in (next(events) for _ in range(6)) if e.type is EventType.ROW]

    assert seen == [("READ", 10), ("READ", 20), ("READ", 30), ("UPDATE", 21)]
    assert [e.op.value for e in rows] == ["READ", "READ", "READ", "UPDATE"]


def test_a_copy_by_another_filter_rule_is_not_built_on(
    mysql_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """F41: After a rule that excluded rows is removed, a reader gets a new copy with them."""
    name = mysql_a.new_database()
    with mysql_a.connect(database=name) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
        cursor.execute("INSERT INTO t VALUES (1, 10), (2, 20)")
    rule = FilterRule(TablePattern(f"{name}.t"), where="v > 10")
    settings = settings_of(mysql_a, kafka, keyspace)
    filtered = replace(settings, filters=FilterSettings(rules=(rule,)))
    provision(settings.kafka, keyspace, [settings.shard])
    with producing(filtered):
        start(filtered, f"{name}.t")
        [before] = wait_state(filtered, CopyState.COMPLETED).values()
        with mysql_a.connect(database=name) as connection:
            connection.cursor().execute("INSERT INTO t VALUES (3, 5)")
        wait_caught_up(filtered)
    with producing(filtered):
        wait_caught_up(filtered)
        [kept] = wait_state(filtered, CopyState.COMPLETED).values()
    with producing(settings):
        [cancelled] = wait_state(settings, CopyState.CANCELLED).values()
        subscriber = StreamSubscriber(
            keyspace, start="copy", config=settings.kafka, tables=[f"{name}.t"], idle_timeout_s=60
        )
        with subscriber as events:
            reads = [next(e for e in events if e.op is Op.READ) for _ in range(3)]

    assert before.rows == 1
    assert kept == before
    assert '"where": "v > 10"' in cancelled.note
    assert [e.after and e.after["id"] for e in reads] == [1, 2, 3]
