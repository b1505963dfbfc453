"""A reader that goes on after each fault that may pass."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from threading import Event

from event_token.errors import Retry
from tests.producers.session.producing import Running
from topics.kafka.client import ClientConfig
from topics.stream.subscriber import StreamSubscriber


class Reader(Running):
    """A reader of the stream from its beginning; it goes on after each fault that may pass."""

    def __init__(self, keyspace: str, config: ClientConfig) -> None:
        self.seqs: list[int] = []
        self._stream = StreamSubscriber(
            keyspace, start="earliest", config=config, idle_timeout_s=0.5
        )
        super().__init__("the reader", self._read)

    def _read(self, stop: Event) -> None:
        with self._stream as stream:
            while not stop.is_set():
                with suppress(Retry):
                    self.seqs.extend(event.seq for event in islice(stream, 1))

    def has(self, count: int) -> bool:
        """Whether it has read this number of events; its error is the test's."""
        self.check()
        return len(self.seqs) >= count


@contextmanager
def reading(keyspace: str, config: ClientConfig) -> Iterator[Reader]:
    """A reader until the end of the block, where its error is raised."""
    reader = Reader(keyspace, config)
    try:
        yield reader
    finally:
        reader.end()
