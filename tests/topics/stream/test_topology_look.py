"""A stream looks into the topology while it waits, and never waits for that."""

import threading
from itertools import islice

import pytest

from tests.topics.shard_writer import CELL_US, TIMEOUT_S, Writers
from topics.errors import BrokersUnreachable
from topics.kafka.client import ClientConfig, Deadline
from topics.keyspace import topology as topology_look
from topics.keyspace.topology import ShardEntry, Topology, TopologyLook, read_topology
from topics.records.vevent import VEvent
from topics.stream import subscriber
from topics.stream.subscriber import StreamSubscriber

FOUND = Topology("commerce", 0, (ShardEntry("-"),))


class Asked:
    """Stands for the question, and lets a test answer it when it likes."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.answers = threading.Semaphore(0)
        self.raised: Exception | None = None

    def __call__(self, config: ClientConfig, keyspace: str) -> Topology | None:
        """Answer a look, which is a thread, once it may; whoever writes the topology reads it."""
        if threading.current_thread() is threading.main_thread():
            return read_topology(config, keyspace)
        self.begun.release()
        assert self.answers.acquire(timeout=TIMEOUT_S)
        if self.raised is not None:
            raise self.raised
        return FOUND


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """All looks ask this."""
    question = Asked()
    monkeypatch.setattr(topology_look, "read_topology", question)
    monkeypatch.setattr(subscriber, "TOPOLOGY_LOOK_S", 0.0)
    return question


def taken(look: TopologyLook) -> Topology:
    """Take until there is something."""
    deadline = Deadline(TIMEOUT_S)
    while (found := look.take()) is None:
        assert not deadline.passed
    return found


def test_events_come_while_a_look_has_no_answer(
    config: ClientConfig, keyspace: str, writers: Writers, asked: Asked
) -> None:
    """A look that hangs delays no event."""
    (writer,) = writers("-")
    writer.commit((0, 1))
    writer.heartbeat(CELL_US)
    events: list[VEvent] = []

    with StreamSubscriber(keyspace, start="earliest", config=config) as stream:
        events += islice(stream, 1)
        reading = threading.Thread(target=lambda: events.extend(islice(stream, 1)))
        reading.start()
        try:
            assert asked.begun.acquire(timeout=TIMEOUT_S)
            writer.commit((2 * CELL_US, 1))
            writer.heartbeat(9 * CELL_US)
            reading.join(TIMEOUT_S)
        finally:
            asked.answers.release(1_000)

    assert [event.seq for event in events] == [1, 2]


def test_what_a_look_finds_is_told_once(asked: Asked) -> None:
    """Nothing while it is under way, then the answer, then the next look begins."""
    look = TopologyLook(ClientConfig({"bootstrap.servers": "nowhere:1"}), "commerce", 0.0)

    assert look.take() is None
    assert asked.begun.acquire(timeout=TIMEOUT_S)
    assert look.take() is None
    asked.answers.release()
    assert taken(look) == FOUND
    assert look.take() is None
    assert asked.begun.acquire(timeout=TIMEOUT_S)
    asked.answers.release()


def test_the_error_of_a_look_is_raised_where_it_is_taken(asked: Asked) -> None:
    """And once: the next look may succeed."""
    look = TopologyLook(ClientConfig({"bootstrap.servers": "nowhere:1"}), "commerce", 0.0)
    asked.raised = BrokersUnreachable("no broker answers")
    asked.answers.release()

    with pytest.raises(BrokersUnreachable, match="no broker answers"):
        taken(look)
    asked.raised = None
    asked.answers.release()

    assert taken(look) == FOUND
