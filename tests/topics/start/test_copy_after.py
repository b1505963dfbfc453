"""A copy of a table behind a record of its shard's log: requested, found, begun again, refused."""

import pytest

from event_token.errors import Retry, UsageError
from producers.settings import CopySettings, ShardProducerSettings
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
from tests.producers.copy.copying import request, start, topics_of, wait_state
from tests.producers.session.producing import producing, read_log, settings_of, wait_caught_up
from topics.kafka.provisioning import provision_keyspace
from topics.keyspace.topology import (
    ReshardEntry,
    ShardEntry,
    ShardState,
    Topology,
    update_topology,
)
from topics.progress.copy_topic import CopyAction, CopyFeed, CopyState, TableCopy, read_copies
from topics.records.vevent import EventType
from topics.start import copies as copy_after
from topics.start.copies import ensure_copy_after

ROWS = 300


def table_of(database: DatabaseFixture) -> str:
    """A database with a table of some rows."""
    name = database.new_database()
    with database.connect(database=name) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
        values = ", ".join(f"({i}, {i})" for i in range(ROWS))
        cursor.execute(f"INSERT INTO t VALUES {values}")
    return name


def alter(settings: ShardProducerSettings, database: DatabaseFixture, name: str) -> tuple[int, int]:
    """Give all rows a value without logging them; return where the log says so."""
    with database.connect(database=name) as connection, connection.cursor() as cursor:
        cursor.execute("ALTER TABLE t ADD COLUMN w INT NOT NULL DEFAULT 7")
    wait_caught_up(settings)
    statements = [e for e in read_log(settings).events if e.type is EventType.DDL]
    return statements[-1].seq, statements[-1].timestamp_us


def copy_of(settings: ShardProducerSettings, name: str) -> TableCopy:
    """The newest copy of the table."""
    return read_copies(settings.kafka, topics_of(settings))[name, "t"]


def serve(settings: ShardProducerSettings, *reshards: ReshardEntry, **states: ShardState) -> None:
    """Write a topology of these shards; without any, of the settings' one."""
    provision_keyspace(settings.kafka, settings.keyspace)
    shards = tuple(ShardEntry(name, state) for name, state in states.items())
    found = shards or (ShardEntry(settings.shard),)
    topology = Topology(settings.keyspace, 1, found, reshards=reshards)
    update_topology(settings.kafka, settings.keyspace, lambda _: topology)


@pytest.mark.full
def test_a_copy_is_requested_once(
    database: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """The next one who needs it finds it; a statement behind its begin needs another.

    A table that is gone, or that the account may not read, is refused.
    """
    settings = settings_of(database, kafka, keyspace)
    serve(settings)
    with producing(settings) as producer:
        producer.wait_streaming()
        name = table_of(database)
        start(settings, f"{name}.t")
        first = wait_state(settings, CopyState.COMPLETED)[f"{name}.t"]
        at = alter(settings, database, name)
        assert first.begun_seq < at[0]

        asked = [
            ensure_copy_after(settings.kafka, keyspace, settings.shard, (name, "t"), at)
            for _ in range(2)
        ]

        second = wait_state(settings, CopyState.COMPLETED)[f"{name}.t"]
        with pytest.raises(
            UsageError, match=r"table gone\.t does not exist, or the account has no"
        ):
            ensure_copy_after(settings.kafka, keyspace, settings.shard, ("gone", "t"), (1, 1))
    assert asked == [True, False]
    assert second.begun_seq > at[0]
    reads = [e for e in read_log(settings).events if e.seq > at[0] and e.after is not None]
    assert [(e.after or {})["w"] for e in reads] == [7] * ROWS


@pytest.mark.full
def test_a_copy_under_way_begins_again(
    mysql_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """Rows copied before the statement are old; a paused copy is for its operator to decide."""
    pace = CopySettings(chunk_rows_max=5, tables_at_once=1)
    settings = settings_of(mysql_a, kafka, keyspace, copy=pace)
    serve(settings)
    with producing(settings) as producer:
        producer.wait_streaming()
        name = table_of(mysql_a)
        start(settings, f"{name}.t")
        request(settings, CopyAction.PAUSE, f"{name}.t")
        at = alter(settings, mysql_a, name)
        arguments = (settings.kafka, keyspace, settings.shard, (name, "t"), at)
        if copy_of(settings, name).state is CopyState.PAUSED:
            with pytest.raises(Retry, match=r"already being copied \(paused\).*copy cancel"):
                ensure_copy_after(*arguments)
            request(settings, CopyAction.RESUME, f"{name}.t")
        before = copy_of(settings, name)

        assert ensure_copy_after(*arguments)

        after = wait_state(settings, CopyState.COMPLETED)[f"{name}.t"]
    assert before.copy_id != after.copy_id
    assert after.begun_seq > at[0] > before.begun_seq
    assert after.rows_read == ROWS


def test_without_a_producer_the_request_is_withdrawn(
    mysql_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not carried out later, when nobody waits for it."""
    settings = settings_of(mysql_a, kafka, keyspace)
    serve(settings)
    name = table_of(mysql_a)
    with producing(settings) as producer:
        producer.wait_streaming()
    monkeypatch.setattr(copy_after, "ANSWER_S_MAX", 1.0)

    with pytest.raises(Retry, match=r"no producer began to copy .* within 1 s"):
        ensure_copy_after(settings.kafka, keyspace, settings.shard, (name, "t"), (1, 1))

    with CopyFeed(settings.kafka, topics_of(settings)) as feed:
        feed.read_to_end()
        assert feed.requests == {}


@pytest.mark.full
def test_the_shards_that_a_reshard_left_are_copied(
    mysql_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """The rows of a shard that has ended come from its successors, behind their first record."""
    settings = settings_of(mysql_a, kafka, keyspace, shard="-c0")
    states = {"-": ShardState.RETIRED, "-c0": ShardState.SERVING, "c0-": ShardState.SERVING}
    others = settings_of(mysql_a, kafka, keyspace, shard="c0-")
    with producing(settings) as first, producing(others) as second:
        first.wait_streaming()
        second.wait_streaming()
        name = table_of(mysql_a)
        for each in (settings, others):
            start(each, f"{name}.t")
        early = [wait_state(each, CopyState.COMPLETED)[f"{name}.t"] for each in (settings, others)]
        hop_us = max(copy.begun_us for copy in early)
        reshard = ReshardEntry("r", ("-",), ("-c0", "c0-"), "COMPLETED", hop_us)
        serve(settings, reshard, **states)
        arguments = (settings.kafka, keyspace, "-", (name, "t"), (5, 5))

        asked = [ensure_copy_after(*arguments) for _ in range(2)]

        late = [copy_of(each, name) for each in (settings, others)]
    assert asked == [True, False]
    assert all(copy.begun_us > hop_us for copy in late)
    assert {copy.copy_id for copy in early}.isdisjoint(copy.copy_id for copy in late)
