"""The network between producer, database, Kafka and readers fails in every way that TCP can."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from databases.connection import open_connection
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
from tests.faults.listeners import ListeningCluster
from tests.faults.proxy import Proxy
from tests.faults.reading import reading
from tests.producers.session.producing import producing, server_of, settings_of, wait_caught_up
from tests.producers.session.workload import Workload, check_all
from tests.topics.shard_writer import provision
from tests.waiting import wait_for
from topics.kafka.client import ClientConfig

# Instead of half a minute and a minute: what a silent connection costs before it is given up.
ANSWER_S = 3
REQUEST_MS = "4000"
ROWS = 50


def fail_in_every_way(proxy: Proxy, goes_on: Callable[[], None]) -> None:
    """A black hole, RST inside a packet, RST, a refused port, and slices of one byte."""
    for fault in (proxy.freeze, lambda: proxy.cut_after(100), proxy.refuse):
        accepted = proxy.accepted
        fault()
        wait_for("a new connection is tried", lambda then=accepted: proxy.accepted > then)  # type: ignore[misc]
        proxy.heal()
        goes_on()
    proxy.reset()
    goes_on()
    proxy.slice_bytes = 1
    goes_on()
    proxy.heal()


@pytest.mark.full
def test_faults_between_producer_and_database(
    mysql_a: DatabaseFixture,
    kafka: KafkaCluster,
    keyspace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F38: a black hole, resets and slices towards the database lose and repeat nothing."""
    defaults = open_connection.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "answer_timeout_s", ANSWER_S)
    name = mysql_a.new_database()
    direct = settings_of(mysql_a, kafka, keyspace)
    with Proxy(mysql_a.port) as proxy:
        server = replace(server_of(mysql_a), port=proxy.port)
        with producing(replace(direct, servers=(server,))) as producer:
            with Workload(mysql_a, name):

                def goes_on() -> None:
                    rows = producer.rows
                    wait_for("rows go on", lambda: producer.rows > rows + ROWS)

                goes_on()
                fail_in_every_way(proxy, goes_on)
            monkeypatch.undo()  # what the test itself asks for may take its time
            wait_caught_up(direct)

    check_all(direct, mysql_a, name)


def test_faults_between_kafka_and_its_clients(
    mysql_a: DatabaseFixture, healed: ListeningCluster, keyspace: str
) -> None:
    """F38: the same faults towards Kafka, for a producer and a reader at once."""
    name = mysql_a.new_database()
    proxied = ClientConfig(
        {
            "bootstrap.servers": healed.proxied,
            "socket.timeout.ms": REQUEST_MS,
            "session.timeout.ms": REQUEST_MS,
        }
    )
    direct = settings_of(mysql_a, healed, keyspace)
    provision(direct.kafka, keyspace, ["-"])
    with producing(replace(direct, kafka=proxied)) as producer:
        with reading(keyspace, proxied) as reader, Workload(mysql_a, name):

            def goes_on() -> None:
                rows, read = producer.rows, len(reader.seqs)
                wait_for("rows go on", lambda: producer.rows > rows + ROWS)
                wait_for("the reader goes on", lambda: reader.has(read + ROWS))

            goes_on()
            fail_in_every_way(healed.proxy, goes_on)
        wait_caught_up(direct)

    check_all(direct, mysql_a, name)
    assert reader.seqs == list(range(1, len(reader.seqs) + 1))
