"""Producers that are killed, stopped or lose their servers log each change once, in order."""

import random
import signal
import time

import pytest

from producers import publisher
from producers.session.context import STREAMS
from producers.settings import ProducerState
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture, StartServer
from tests.producers.session.producing import producing, settings_of, wait_caught_up
from tests.producers.session.workload import SEED, Workload, check_all, process
from tests.waiting import wait_for
from topics.kafka.client import open_admin
from topics.names import ShardTopics

# One while it starts, the others while it streams; the first and the last are frozen before.
KILLS = 6
# Long enough for the workload to fill transactions, short enough to be cut off inside them.
LIFE_S_MAX = 1.5
# A start takes about this long when nothing else runs.
START_S_MAX = 2.5


@pytest.mark.full
def test_kills_at_random_moments_lose_and_repeat_nothing(
    database: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """F01: Producers die under load, some frozen before; the log shows no trace of it."""
    name = database.new_database()
    settings = settings_of(database, kafka, keyspace, commit_rows=50)
    draw = random.Random(SEED)
    with producing(settings):
        wait_caught_up(settings)
    with Workload(database, name):
        for kill in range(KILLS):
            with process(settings) as producer:
                if kill == 0:
                    # While it starts, fences and resumes.
                    time.sleep(draw.uniform(0, START_S_MAX))
                else:
                    producer.wait_line("streaming")
                    time.sleep(draw.uniform(0, LIFE_S_MAX))
                if kill % 3 == 0:
                    producer.signal(signal.SIGSTOP)
                producer.signal(signal.SIGKILL)
    with producing(settings):
        wait_caught_up(settings)

    check_all(settings, database, name)


def test_frozen_producer_is_fenced_when_it_wakes(
    mysql_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """F02: A producer frozen under load and replaced ends with Fenced when it wakes."""
    name = mysql_a.new_database()
    settings = settings_of(mysql_a, kafka, keyspace)
    with producing(settings):
        wait_caught_up(settings)
    with process(settings) as frozen:
        with Workload(mysql_a, name) as load:
            frozen.wait_line("streaming")
            wait_for("rows went through", lambda: load.committed > 20)
            frozen.signal(signal.SIGSTOP)
            with producing(settings):
                frozen.signal(signal.SIGCONT)
                status = frozen.wait()
                seen = load.committed
                wait_for("the load goes on", lambda: load.committed > seen + 20)
        with producing(settings):
            wait_caught_up(settings)

        assert status == 1
        assert any(line.startswith("Fenced") for line in frozen.lines)
    check_all(settings, mysql_a, name)


def test_database_killed_and_started_again_is_followed_on(
    start_mysql: StartServer, kafka: KafkaCluster, keyspace: str
) -> None:
    """F10: The producer reconnects by itself after the server dies under load."""
    database = start_mysql()
    name = database.new_database()
    settings = settings_of(database, kafka, keyspace)
    with producing(settings) as producer:
        with Workload(database, name) as load:
            wait_for("rows went through", lambda: producer.rows > 50)
            database.server.kill()
            wait_for(
                "the loss is noticed",
                lambda: any(s.state.value == "reconnecting" for s in list(producer.statuses)),
            )
            database.server.start()
            seen = load.committed
            wait_for("the load goes on", lambda: load.committed > seen + 50)
        wait_caught_up(settings)

    check_all(settings, database, name)


@pytest.mark.full
def test_broker_restart_is_waited_out(
    mysql_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """F05, F06: The producer goes on by itself after the only broker is restarted under load.

    While no broker answers its status names them, and an age that is not 0 ms; and it can be
    stopped while rows wait for them: the next one writes these.
    """
    name = mysql_a.new_database()
    settings = settings_of(mysql_a, kafka, keyspace)
    [broker] = kafka.brokers
    try:
        with producing(settings) as producer, Workload(mysql_a, name) as load:
            wait_for("rows went through", lambda: producer.rows > 50)
            broker.stop()
            seen = load.committed
            wait_for("the load goes on", lambda: load.committed > seen + 20)
            wait_for(
                "it says that it waits",
                lambda: producer.has_been(ProducerState.WAITING_FOR_KAFKA),
                said=lambda: producer.statuses[-3:],
            )
            broker.start()
            rows = producer.rows
            wait_for("rows go through again", lambda: producer.rows > rows + 50)
            states = [status.state for status in producer.statuses]
            broker.stop()
            seen = load.committed
            wait_for("the load goes on", lambda: load.committed > seen + 20)
    finally:
        broker.start()
    with producing(settings):
        wait_caught_up(settings)

    check_all(settings, mysql_a, name)
    waited = [s for s in producer.statuses if s.state is ProducerState.WAITING_FOR_KAFKA]
    assert all(kafka.bootstrap_servers in status.note for status in waited)
    # A session that begins while brokers start waits, too, with nothing read yet.
    assert waited[0].lag_ms >= publisher.SILENCE_SHOWN_S * 1_000
    assert states[-1] in STREAMS


@pytest.mark.full
def test_brokers_die_and_restart_one_after_the_other(
    mysql_a: DatabaseFixture, kafka3: KafkaCluster, keyspace: str
) -> None:
    """F05: The leader of the log, one of three brokers, is killed: the producer goes on with two.

    So it does while the others are restarted in turn, as services do every few weeks.
    """
    name = mysql_a.new_database()
    settings = settings_of(mysql_a, kafka3, keyspace)
    topic = ShardTopics(keyspace, settings.shard).log
    with producing(settings) as producer:
        with Workload(mysql_a, name) as load:
            wait_for("rows went through", lambda: producer.rows > 50)
            found = open_admin(settings.kafka).list_topics(topic, timeout=30)
            leader = found.topics[topic].partitions[0].leader
            for broker in sorted(kafka3.brokers, key=lambda broker: broker.node_id != leader):
                if broker.node_id == leader:
                    broker.kill()
                else:
                    broker.stop()
                try:
                    rows, seen = producer.rows, load.committed
                    wait_for("the load goes on", lambda seen=seen: load.committed > seen + 50)  # type: ignore[misc]
                    wait_for("so does the log", lambda rows=rows: producer.rows > rows + 50)  # type: ignore[misc]
                finally:
                    broker.start()
        wait_caught_up(settings)

    check_all(settings, mysql_a, name)
