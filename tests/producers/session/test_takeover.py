"""Takeovers in which Kafka's answers say nothing: the producer that was started last goes on."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from producers.settings import ProducerState, ShardProducerSettings
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
from tests.faults.proxy import (
    END_TXN,
    INIT_PRODUCER_ID,
    Frame,
    Proxy,
    api_of,
    broker_proxy,
    refused_commit,
)
from tests.producers.session.producing import (
    RunningProducer,
    check_log,
    check_progress,
    producing,
    read_log,
    replay,
    settings_of,
    wait_caught_up,
)
from tests.waiting import WAIT_S, wait_for
from topics.kafka.client import ClientConfig, open_producer
from topics.kafka.errors import Fenced
from topics.progress.shard_claim import ShardClaim


class Gate:
    """Keeps the first request of a kind back until it is opened, then answers it or lets it by."""

    def __init__(
        self, proxy: Proxy, settings: ShardProducerSettings, api: int, *, refuses: bool = False
    ) -> None:
        """`refuses`: a commit gets an error that says nothing, and never reaches the broker."""
        self._api, self._refuses = api, refuses
        self._name = settings.shard_topics.transactional_id.encode()
        self._reached = threading.Event()
        self._opened = threading.Event()
        self._lock = threading.Lock()
        proxy.answer = self._answer

    def _answer(self, frame: Frame) -> bytes:
        with self._lock:
            is_meant = api_of(frame) == self._api and self._name in frame
            if not is_meant or self._reached.is_set():
                return b""
            self._reached.set()
        assert self._opened.wait(WAIT_S)
        return refused_commit(frame) if self._refuses else b""

    def wait_reached(self) -> None:
        """Wait until a request is kept back."""
        wait_for("a request is kept back", self._reached.is_set)

    def open(self) -> None:
        """Let it go on."""
        self._opened.set()


@pytest.fixture
def proxy(kafka: KafkaCluster) -> Iterator[Proxy]:
    """The broker, behind a proxy."""
    with broker_proxy(kafka.bootstrap_servers) as proxy:
        yield proxy


@contextmanager
def disturbed(settings: ShardProducerSettings, proxy: Proxy) -> Iterator[RunningProducer]:
    """A producer behind the proxy, which may end by an error that the test has seen."""
    behind = ClientConfig({"bootstrap.servers": f"127.0.0.1:{proxy.port}"})
    producer = RunningProducer(replace(settings, kafka=behind))
    try:
        producer.wait_streaming()
        wait_caught_up(settings)  # or a second one would begin an empty log where it likes
        yield producer
    finally:
        producer.stop.set()
        proxy.heal()


def wait_reconnecting(producer: RunningProducer, said: str) -> None:
    """Wait until a producer says that it starts over, and why."""

    def has_said() -> bool:
        found = [s for s in list(producer.statuses) if s.state is ProducerState.RECONNECTING]
        return any(said in status.note for status in found)

    wait_for(f"it starts over: {said}", has_said, said=lambda: producer.statuses[-3:])


def check_rows(settings: ShardProducerSettings, name: str, rows: int) -> None:
    """The log has each row of the table once."""
    log = read_log(settings)
    check_log(log)
    check_progress(log)
    assert len(replay(log, name, "t")) == rows


def test_a_producer_alone_goes_on_after_a_commit_that_failed_for_no_known_reason(
    mysql_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str, proxy: Proxy
) -> None:
    """It takes the shard back by itself, and each row is logged once."""
    settings = settings_of(mysql_a, kafka, keyspace)
    with mysql_a.one_table() as (name, cursor), disturbed(settings, proxy) as producer:
        gate = Gate(proxy, settings, END_TXN, refuses=True)
        gate.open()
        cursor.execute("INSERT INTO t VALUES (1), (2)")
        wait_reconnecting(producer, "UNKNOWN")
        wait_caught_up(settings)
        producer.end()

    check_rows(settings, name, 2)


def test_a_producer_alone_goes_on_after_something_without_a_claim_has_fenced_it(
    mysql_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """Brokers that abort a transaction by themselves look like that, too."""
    settings = settings_of(mysql_a, kafka, keyspace)
    with mysql_a.one_table() as (name, cursor), producing(settings) as producer:
        topics = settings.shard_topics
        stranger = open_producer(settings.kafka, transactional_id=topics.transactional_id)
        stranger.init_transactions(WAIT_S)
        wait_reconnecting(producer, "FENCED")
        cursor.execute("INSERT INTO t VALUES (1)")
        wait_caught_up(settings)

    check_rows(settings, name, 1)


def test_an_older_producer_whose_commit_failed_does_not_fence_a_newer_one(
    mysql_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str, proxy: Proxy
) -> None:
    """F03: The newer one has taken over when the older one's commit ends in an unknown error."""
    settings = settings_of(mysql_a, kafka, keyspace)
    with mysql_a.one_table() as (name, cursor), disturbed(settings, proxy) as older:
        gate = Gate(proxy, settings, END_TXN, refuses=True)
        cursor.execute("INSERT INTO t VALUES (1)")
        gate.wait_reached()
        with producing(settings) as newer:
            wait_caught_up(settings)
            gate.open()
            error = older.wait_error()
            cursor.execute("INSERT INTO t VALUES (2)")
            wait_caught_up(settings)
            restarts = [s for s in newer.statuses if s.state is ProducerState.RECONNECTING]

    assert isinstance(error, Fenced)
    assert restarts == []
    check_rows(settings, name, 2)


@pytest.mark.full
def test_an_older_producer_waits_for_a_newer_one_that_is_about_to_fence_it(
    mysql_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str, proxy: Proxy
) -> None:
    """F03: The error comes before the newer one has fenced: the older one ends when it commits."""
    settings = settings_of(mysql_a, kafka, keyspace)
    with (
        mysql_a.one_table() as (name, cursor),
        broker_proxy(kafka.bootstrap_servers) as between,
        disturbed(settings, proxy) as older,
    ):
        commits = Gate(proxy, settings, END_TXN, refuses=True)
        fences = Gate(between, settings, INIT_PRODUCER_ID)
        cursor.execute("INSERT INTO t VALUES (1)")
        commits.wait_reached()
        behind = ClientConfig({"bootstrap.servers": f"127.0.0.1:{between.port}"})
        newer = RunningProducer(replace(settings, kafka=behind))
        fences.wait_reached()
        commits.open()
        wait_reconnecting(older, "committed nothing yet")
        fences.open()
        error = older.wait_error()
        cursor.execute("INSERT INTO t VALUES (2)")
        wait_caught_up(settings)
        newer.end()

    assert isinstance(error, Fenced)
    check_rows(settings, name, 2)


@pytest.mark.full
def test_a_newer_producer_takes_back_what_an_older_one_has_fenced_late(
    mysql_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str, proxy: Proxy
) -> None:
    """F03: The newer one comes between the older one's look and its fence: it goes on for good."""
    settings = settings_of(mysql_a, kafka, keyspace)
    with mysql_a.one_table() as (name, cursor), disturbed(settings, proxy) as older:
        Gate(proxy, settings, END_TXN, refuses=True).open()
        cursor.execute("INSERT INTO t VALUES (1)")
        wait_reconnecting(older, "UNKNOWN")
        fences = Gate(proxy, settings, INIT_PRODUCER_ID)
        fences.wait_reached()
        with producing(settings) as newer:
            wait_caught_up(settings)
            fences.open()
            error = older.wait_error()
            cursor.execute("INSERT INTO t VALUES (2)")
            wait_caught_up(settings)
            wait_reconnecting(newer, "FENCED")

    assert isinstance(error, Fenced)
    check_rows(settings, name, 2)


@pytest.mark.full
def test_an_older_producer_goes_on_where_a_newer_one_has_died_before_it_fenced(
    mysql_a: DatabaseFixture,
    kafka: KafkaCluster,
    keyspace: str,
    proxy: Proxy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F03: It waits for as long as a transaction may last, and takes the shard back by itself."""
    supervisor = "producers.session.supervisor.broker_transaction_timeout_ms"
    monkeypatch.setattr(supervisor, lambda _: 2_000)
    settings = settings_of(mysql_a, kafka, keyspace)
    with mysql_a.one_table() as (name, cursor), disturbed(settings, proxy) as producer:
        ShardClaim(settings.kafka, settings.shard_topics).make()
        Gate(proxy, settings, END_TXN, refuses=True).open()
        cursor.execute("INSERT INTO t VALUES (1)")
        wait_reconnecting(producer, "committed nothing yet")
        wait_caught_up(settings)
        producer.end()

    check_rows(settings, name, 1)
