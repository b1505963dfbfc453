"""The position of a subscriber that has no session. Pure."""

from types import SimpleNamespace

from event_token import ShardPosition, StreamPosition
from event_token.errors import Retry
from topics.kafka.client import ClientConfig
from topics.stream.subscriber import StreamSubscriber

CONFIG = ClientConfig({"bootstrap.servers": "127.0.0.1:1"})


def at(frontier_us: int, seq: int) -> StreamPosition:
    return StreamPosition(0, frontier_us, {"-": ShardPosition(seq, seq, None)})


def test_a_session_that_ended_has_read_what_it_has_read() -> None:
    """The frontier does not go back to the last event, and no event that waits is passed."""
    begin, first, last, read = at(10, 0), at(10, 1), at(10, 2), at(90, 2)
    stream = StreamSubscriber("shop", start=begin, config=CONFIG)
    positions = [stream.position]
    stream._first = begin
    stream._session = SimpleNamespace(position=read, close=lambda: None)  # type: ignore[assignment]
    waiting = [SimpleNamespace(position=each) for each in (first, last)]
    stream._ready.extend(waiting)
    stream._spent(Retry("brokers are away"))

    positions.append(stream.position)
    stream._last = stream._ready.popleft()
    positions.append(stream.position)
    stream._last = stream._ready.popleft()
    positions.append(stream.position)

    assert positions == [begin, begin, first, read]


def test_what_waits_to_be_delivered_sets_nothing_back() -> None:
    """Far behind the last event a new one comes: until it is delivered, the frontier stays."""
    begin, first, far, new = at(10, 0), at(10, 1), at(90, 1), at(95, 2)
    stream = StreamSubscriber("shop", start=begin, config=CONFIG)
    event = SimpleNamespace(position=new)
    session = SimpleNamespace(position=far, place=None, waiting=None, close=lambda: None)
    session.read = lambda ready, _: ready.append(event)
    stream._session = session  # type: ignore[assignment]
    stream._first = begin
    stream._last = SimpleNamespace(position=first)  # type: ignore[assignment]

    stream._refill(0.0)
    waiting = stream.position
    session.position = new
    taken = stream.take(2, 0.0)

    assert waiting == far
    assert taken == [event]
    assert stream.position == new
