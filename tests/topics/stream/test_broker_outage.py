import threading
from functools import partial
from itertools import islice

import pytest

from event_token import KeyRange, ShardPosition, StreamPosition
from shardstream.local.kafka_cluster import KafkaCluster
from tests.topics.shard_writer import CELL_US, TIMEOUT_S, Writers
from topics.errors import BrokersUnreachable
from topics.kafka.client import ClientConfig, Deadline
from topics.kafka.consumer import StreamConsumer
from topics.reading.planner import Batch, Planner
from topics.records.vevent import VEvent
from topics.stream import log_fetcher, subscriber
from topics.stream.progress_feed import ProgressFeed, clock_ms
from topics.stream.subscriber import StreamSubscriber

pytestmark = pytest.mark.full

# A restart takes 10 s; 123 s were seen on a machine with a load of ten per core.
RESTART_S_MAX = 400.0


def poll_for_ever(feed: ProgressFeed, planner: Planner) -> None:
    """Feed the planner until an error ends it."""
    while True:
        feed.poll(planner, 0.1)


def wait_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the stream wait until the broker is back, and look for reshards meanwhile."""
    monkeypatch.setattr(subscriber, "TOPOLOGY_LOOK_S", 0.0)
    # The stream must not give up before the broker is back.
    monkeypatch.setattr(
        subscriber, "ProgressFeed", partial(ProgressFeed, brokers_down_s_max=RESTART_S_MAX)
    )
    monkeypatch.setattr(
        log_fetcher, "StreamConsumer", partial(StreamConsumer, brokers_down_s_max=RESTART_S_MAX)
    )


def test_a_restart_of_the_broker_is_waited_out(
    kafka: KafkaCluster,
    config: ClientConfig,
    keyspace: str,
    writers: Writers,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While the broker is away a stream waits and a feed reports it; then both continue."""
    wait_longer(monkeypatch)
    (writer,) = writers("-")
    writer.commit((0, 3))
    writer.heartbeat(CELL_US)
    writer.wait_committed()
    start = StreamPosition(0, 0, {"-": ShardPosition(0, 0, None)})
    planner = Planner(start, KeyRange.parse("-"))
    feed = ProgressFeed(config, keyspace, writer.schema_ids, brokers_down_s_max=1.0)
    feed.poll(planner, TIMEOUT_S)
    events: list[VEvent] = []

    with StreamSubscriber(keyspace, start="earliest", config=config) as stream:
        events += islice(stream, 3)
        reading = threading.Thread(target=lambda: events.extend(islice(stream, 2)))
        kafka.stop()
        try:
            # For the looks of the outage alone: before and after it a broker may answer late.
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(config, "answer_s", 1.0)
                reading.start()
                with pytest.raises(BrokersUnreachable, match="no broker of"):
                    poll_for_ever(feed, planner)
            assert len(events) == 3
        finally:
            kafka.start()
        writer.commit((2 * CELL_US, 2))
        writer.heartbeat(9 * CELL_US)
        reading.join(RESTART_S_MAX)

    assert [event.seq for event in events] == [1, 2, 3, 4, 5]
    rows = 0
    deadline = Deadline(RESTART_S_MAX)
    while rows < 5:
        try:
            feed.poll(planner, TIMEOUT_S)
        except BrokersUnreachable:  # its one second is over before it has connected again
            assert not deadline.passed
        batch = planner.next_batch(clock_ms())
        if isinstance(batch, Batch):
            rows += batch.rows
            planner.advance(batch)
    feed.close()
