"""Wrong clocks: the log's times and heads never go back, and readers never wait for them."""

from dataclasses import replace
from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producers.clock import believed_us, clock_ahead_us
from producers.settings import ShardProducerSettings
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture, StartServer
from tests.producers.servers.replication import follow, promote, statements, wait_same
from tests.producers.session.producing import (
    WrittenLog,
    check_log,
    check_progress,
    producing,
    read_log,
    replay,
    server_of,
    settings_of,
    wait_caught_up,
)
from tests.waiting import wait_for
from topics.kafka.provisioning import provision_keyspace
from topics.keyspace.topology import ShardEntry, Topology, update_topology
from topics.records.vevent import Op
from topics.stream.subscriber import StreamSubscriber

SECOND_US = 1_000_000
HOUR_US = 3600 * SECOND_US
# More than a busy machine takes between two commits, and far less than the clocks are off.
STEP_US = HOUR_US // 6
AHEAD_S = 2_147_483_647  # the end of a 32 bit clock
MERGED_S = 60.0


def shards_of(
    kafka: KafkaCluster, keyspace: str, low: DatabaseFixture, high: DatabaseFixture
) -> tuple[ShardProducerSettings, ShardProducerSettings]:
    """A keyspace of two shards."""
    both = (
        replace(settings_of(low, kafka, keyspace), shard="-80"),
        replace(settings_of(high, kafka, keyspace), shard="80-"),
    )
    provision_keyspace(both[0].kafka, keyspace)
    topology = Topology(keyspace, 0, (ShardEntry("-80"), ShardEntry("80-")))
    update_topology(both[0].kafka, keyspace, lambda before: before or topology)
    return both


def merged(settings: ShardProducerSettings, name: str, count: int) -> list[tuple[str, object]]:
    """Return shard and key of the first inserts in the merged stream, in strict mode."""
    with StreamSubscriber(
        settings.keyspace, start="earliest", config=settings.kafka, idle_timeout_s=MERGED_S
    ) as stream:
        inserts = (e for e in stream if e.op is Op.INSERT and e.database.startswith(name))
        return [(e.shard, e.after["id"]) for e in islice(inserts, count) if e.after is not None]


def check_monotone(log: WrittenLog) -> None:
    """Check that times and heads never fall, and that heads stay close to the shared clock."""
    check_log(log)
    check_progress(log)
    for before, after in pairwise(log.progress):
        assert before.head_us <= after.head_us <= before.head_us + STEP_US


def at_time(database: DatabaseFixture, offset_s: int | None) -> str:
    """The statement that makes this session's commits say a time so far from now, None for +inf."""
    seconds = str(AHEAD_S) if offset_s is None else f"UNIX_TIMESTAMP(SYSDATE()) + {offset_s}"
    if database.flavor.value == "mariadb":
        return f"SET timestamp = {seconds}"
    return f"SET SESSION original_commit_timestamp = ({seconds}) * 1000000"


@pytest.mark.full
def test_times_set_by_hand_neither_run_back_nor_stall(
    database: DatabaseFixture, mysql_b: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """F22: With clocks decades ahead or an hour behind, and a restart, the stream is complete."""
    name, other = database.new_database(), mysql_b.new_database()
    wrong, right = shards_of(kafka, keyspace, database, mysql_b)
    statements(mysql_b, f"CREATE TABLE {other}.t (id INT PRIMARY KEY)")
    with database.connect(database=name) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY)")
        with producing(right):
            with producing(wrong) as first:
                cursor.execute("INSERT INTO t VALUES (1)")
                cursor.execute(at_time(database, None))
                cursor.execute("INSERT INTO t VALUES (2)")
                wait_caught_up(wrong)
                assert any("is clamped" in status.note for status in first.statuses)
            cursor.execute(at_time(database, -3600))
            cursor.execute("INSERT INTO t VALUES (3)")
            with producing(wrong):
                cursor.execute("INSERT INTO t VALUES (4)")
                statements(mysql_b, f"INSERT INTO {other}.t VALUES (5)")
                wait_caught_up(wrong)
                found = merged(wrong, "db_", 5)
    log = read_log(wrong)

    check_monotone(log)
    assert sorted(found) == [("-80", 1), ("-80", 2), ("-80", 3), ("-80", 4), ("80-", 5)]
    events = {e.after["id"]: e for e in log.events if e.after is not None and e.database == name}
    assert events[2].commit_us == AHEAD_S * SECOND_US
    assert abs(events[1].commit_us - events[3].commit_us - HOUR_US) < HOUR_US // 6
    assert events[2].timestamp_us < events[1].timestamp_us + STEP_US


def test_server_clock_an_hour_off_after_a_failover_stalls_nobody(
    start_mariadb: StartServer, mysql_b: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """F22: A new primary's clock stuck an hour ago: heads follow the producer's clock."""
    hour_back = "SET timestamp = UNIX_TIMESTAMP() - 3600"
    primary, replica = start_mariadb(), start_mariadb((f"--init-connect={hour_back}",))
    follow(replica, primary)
    name, other = primary.new_database(), mysql_b.new_database()
    statements(primary, f"CREATE TABLE {name}.t (id INT PRIMARY KEY)")
    statements(mysql_b, f"CREATE TABLE {other}.t (id INT PRIMARY KEY)")
    low, right = shards_of(kafka, keyspace, primary, mysql_b)
    wrong = replace(low, servers=(server_of(primary), server_of(replica)))
    with producing(right), producing(wrong) as producer:
        statements(primary, f"INSERT INTO {name}.t VALUES (1)")
        wait_caught_up(low)
        wait_same(replica, primary)
        primary.server.kill()
        promote(replica)
        statements(replica, hour_back, f"INSERT INTO {name}.t VALUES (2)")
        wait_for(
            "the clock is said to be off",
            lambda: any("heads follow this host" in s.note for s in list(producer.statuses)),
        )
        statements(mysql_b, f"INSERT INTO {other}.t VALUES (3)")
        statements(replica, hour_back, f"INSERT INTO {name}.t VALUES (4)")
        found = merged(wrong, "db_", 4)
    log = read_log(wrong)

    check_monotone(log)
    assert sorted(found) == [("-80", 1), ("-80", 2), ("-80", 4), ("80-", 3)]
    assert sorted(replay(log, name, "t")) == [1, 2, 4]
    first, *_, last = [e for e in log.events if e.op is Op.INSERT]
    assert last.commit_us < first.commit_us - HOUR_US // 2
    assert last.timestamp_us >= first.timestamp_us


@pytest.mark.parametrize(
    ("server_us", "expected_us"),
    [(95, 95), (105, 105), (100, 100), (94, 100), (106, 100), (-(10**15), 100)],
)
def test_clock_far_from_the_own_one_is_not_believed(server_us: int, expected_us: int) -> None:
    """Within the bound a head follows the server's clock, beyond it the producer's."""
    assert believed_us(server_us, 100, 5) == expected_us


@given(
    ahead_us=st.integers(-10_000_000, 10_000_000),
    there_us=st.integers(0, 1_000_000),
    back_us=st.integers(0, 1_000_000),
)
def test_the_way_to_the_server_is_no_difference_of_clocks(
    ahead_us: int, there_us: int, back_us: int
) -> None:
    """The measured difference is at most the true one, and short of it by a round trip at most."""
    asked_us = 1_800_000_000_000_000
    heard_us = asked_us + there_us

    found_us = clock_ahead_us(asked_us, heard_us + ahead_us, heard_us + back_us)

    assert found_us * ahead_us >= 0
    assert abs(found_us) <= abs(ahead_us) <= abs(found_us) + there_us + back_us
