"""Producers that are killed, stopped or lose their servers log each change once, in order."""

import random
import signal
import time

from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture, StartServer
from tests.producers.session.producing import producing, settings_of, wait_caught_up, wait_for
from tests.producers.session.workload import SEED, Workload, check_all, process
from topics.kafka.client import open_admin
from topics.names import ShardTopics

KILLS = 6
# Long enough for the workload to fill transactions, short enough to be cut off inside them.
LIFE_S_MAX = 1.5
# A start takes about this long when nothing else runs.
START_S_MAX = 2.5


def test_kills_at_random_moments_lose_and_repeat_nothing(
    database: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """F01: Ten producers die under load, some frozen before; the log shows no trace of it."""
    name = database.new_database()
    settings = settings_of(database, kafka, keyspace, commit_rows=50)
    draw = random.Random(SEED)
    with producing(settings):
        wait_caught_up(settings)
    with Workload(database, name):
        for kill in range(KILLS):
            with process(settings) as producer:
                if kill % 4 == 0:
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


def test_broker_restart_is_waited_out(
    mysql_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """F05: The producer continues by itself after the only broker is restarted under load."""
    name = mysql_a.new_database()
    settings = settings_of(mysql_a, kafka, keyspace)
    with producing(settings) as producer:
        with Workload(mysql_a, name) as load:
            wait_for("rows went through", lambda: producer.rows > 50)
            [broker] = kafka.brokers
            broker.stop()
            seen = load.committed
            wait_for("the load goes on", lambda: load.committed > seen + 20)
            broker.start()
            seen = load.committed
            wait_for("the load goes on", lambda: load.committed > seen + 20)
        wait_caught_up(settings)

    check_all(settings, mysql_a, name)


def test_stop_is_heard_while_kafka_is_away(
    mysql_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """A producer can be stopped while rows wait for an absent broker; the next one writes them."""
    name = mysql_a.new_database()
    settings = settings_of(mysql_a, kafka, keyspace)
    [broker] = kafka.brokers
    try:
        with producing(settings) as producer, Workload(mysql_a, name) as load:
            wait_for("rows went through", lambda: producer.rows > 50)
            broker.stop()
            seen = load.committed
            wait_for("the load goes on", lambda: load.committed > seen + 20)
    finally:
        broker.start()
    with producing(settings):
        wait_caught_up(settings)

    check_all(settings, mysql_a, name)


def test_broker_that_leads_the_log_dies(
    mysql_a: DatabaseFixture, kafka3: KafkaCluster, keyspace: str
) -> None:
    """F05: The leader of the log, one of three brokers, dies: the producer continues with two."""
    name = mysql_a.new_database()
    settings = settings_of(mysql_a, kafka3, keyspace)
    topic = ShardTopics(keyspace, settings.shard).log
    broker = None
    try:
        with producing(settings) as producer:
            with Workload(mysql_a, name) as load:
                wait_for("rows went through", lambda: producer.rows > 50)
                found = open_admin(settings.kafka).list_topics(topic, timeout=30)
                leader = found.topics[topic].partitions[0].leader
                [broker] = [b for b in kafka3.brokers if b.node_id == leader]
                broker.kill()
                seen = load.committed
                wait_for("the load goes on", lambda: load.committed > seen + 100)
            wait_caught_up(settings)
    finally:
        if broker is not None:
            broker.start()

    check_all(settings, mysql_a, name)
