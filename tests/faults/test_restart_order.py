"""All parts are stopped one by one in a random order, and started again in another."""

import random
import threading
from collections.abc import Callable
from itertools import islice

import pytest

from event_token.errors import Rebuild, Retry
from producers.settings import ShardProducerSettings
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture, StartServer
from tests.producers.session.producing import (
    ProducerProcess,
    Running,
    producing,
    read_log,
    settings_of,
    wait_caught_up,
)
from tests.producers.session.workload import SEED, Workload, check_all
from tests.topics.shard_writer import provision
from tests.waiting import wait_for
from topics.errors import NoBrokerAnswers
from topics.stream.subscriber import StreamSubscriber

pytestmark = pytest.mark.full

ROUNDS = 4


class Reader:
    """A reader that keeps the position of its last event, and goes on there when started again."""

    def __init__(self, settings: ShardProducerSettings) -> None:
        self.seqs: list[int] = []
        self._settings = settings
        self._position = "earliest"
        self._running: Running | None = None

    def start(self) -> None:
        self._running = Running("the reader", self._read)

    def stop(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.end()

    def has(self, count: int) -> bool:
        """Whether it has read this number of events; its error is the test's."""
        assert self._running is not None
        self._running.check()
        return len(self.seqs) >= count

    def _read(self, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                with StreamSubscriber(
                    self._settings.keyspace,
                    start=self._position,
                    config=self._settings.kafka,
                    idle_timeout_s=0.5,
                ) as stream:
                    while not stop.is_set():
                        for event in islice(stream, 1):
                            assert event.position is not None
                            self.seqs.append(event.seq)
                            self._position = event.position.to_string()
            except (Retry, Rebuild, NoBrokerAnswers):
                stop.wait(0.2)


class Producer:
    """A producer's process, killed and started again."""

    def __init__(self, settings: ShardProducerSettings) -> None:
        self._settings = settings
        self._process: ProducerProcess | None = None

    def start(self) -> None:
        self._process = ProducerProcess(self._settings)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()


def test_parts_stopped_and_started_in_any_order(
    start_mysql: StartServer, kafka: KafkaCluster, keyspace: str
) -> None:
    """F39: database, broker, producer and reader stop and start at random, and all converges."""
    database: DatabaseFixture = start_mysql()
    name = database.new_database()
    settings = settings_of(database, kafka, keyspace)
    provision(settings.kafka, keyspace, ["-"])
    reader, producer = Reader(settings), Producer(settings)
    draw = random.Random(SEED)
    parts: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {
        "database": (database.server.kill, database.server.start),
        "kafka": (kafka.stop, kafka.start),
        "producer": (producer.stop, producer.start),
        "reader": (reader.stop, reader.start),
    }
    try:
        with producing(settings):
            wait_caught_up(settings)
        producer.start()
        reader.start()
        with Workload(database, name):
            for _ in range(ROUNDS):
                read = len(reader.seqs)
                wait_for("rows come through", lambda read=read: reader.has(read + 50))  # type: ignore[misc]
                for each in draw.sample(sorted(parts), len(parts)):
                    parts[each][0]()
                for each in draw.sample(sorted(parts), len(parts)):
                    parts[each][1]()
            read = len(reader.seqs)
            wait_for("rows come through", lambda: reader.has(read + 50))
        wait_caught_up(settings)
        last = read_log(settings).events[-1].seq
        wait_for("the reader has read all", lambda: reader.has(last))
    finally:
        reader.stop()
        producer.stop()
        kafka.start()

    check_all(settings, database, name)
    assert reader.seqs == list(range(1, len(reader.seqs) + 1))
