"""What a reader's thread has for one client, until the event loop has sent it. Bounded."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from event_token import StreamPosition
from event_token.errors import ShardstreamError
from shardstream.streams.encoding import Reached

# Some seconds of a busy stream. Clients that share a reader and want the same share these bytes;
# in the worst case, STREAMS_MAX clients that read nothing and want each something else, it is 4 GB.
CLIENT_BYTES_MAX: Final = 4 * 1024 * 1024
# Sent at a time, as a copy for the client: one in the transport, one that waits for it.
SEND_BYTES_MAX: Final = 256 * 1024
# How long a shared reader waits for clients that have no room, and for one of them until it has
# caught up: a burst cuts off only those that are slow, and these hold the others up no longer.
PACE_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class Outgoing:
    """What is to be sent now. `reached` holds behind it; None while more is there to be sent.

    `is_over`: nothing follows.
    """

    chunks: Sequence[bytes]
    reached: Reached | None
    is_over: bool
    error: ShardstreamError | None


class Outbox:
    """Chunks for one client. A reader's thread puts, the event loop takes; either may close."""

    def __init__(self, loop: asyncio.AbstractEventLoop, bytes_max: int = CLIENT_BYTES_MAX) -> None:
        """Begin empty; `begin_at` follows."""
        self._loop = loop
        self._bytes_max = bytes_max
        self._room = threading.Condition()
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self.messages = 0  # put so far
        self._patience_s = PACE_S
        self.begin_at(StreamPosition(0, 0))
        self._is_over = False  # the reader puts no more
        self._error: ShardstreamError | None = None
        self._is_closed = False  # nobody takes any more
        self._is_waking = False
        self._ready = asyncio.Event()
        self.overflowed = asyncio.Event()

    def begin_at(self, position: StreamPosition) -> None:
        """Note where the client is, before anything is put."""
        self.begin = position
        self._reached = Reached(position, None)

    @property
    def position(self) -> StreamPosition:
        """The position behind everything that was put."""
        return self._reached.position

    @property
    def is_closed(self) -> bool:
        """Whether nobody takes from it any more."""
        return self._is_closed

    def put(self, chunks: Sequence[bytes], reached: Reached, wait_s: float | None = None) -> bool:
        """Add chunks once there is room; False, and nothing is added, if it is closed.

        An empty one takes chunks of any size. `wait_s`: a client that has no room by then is
        closed, and earlier if it has been waited for before.
        """
        size = sum(map(len, chunks))
        with self._room:
            if self._size <= self._bytes_max // 2:
                self._patience_s = PACE_S
            limit_s = None if wait_s is None else max(0.0, min(wait_s, self._patience_s))
            began_s = time.monotonic()
            has_room = self._room.wait_for(lambda: self._is_closed or self._has_room(size), limit_s)
            self._patience_s -= time.monotonic() - began_s
            if not has_room:
                self._is_closed = True
                self._call(self.overflowed.set)
            if self._is_closed:
                return False
            self._reached = reached
            if chunks:
                self._chunks.extend(chunks)
                self.messages += len(chunks)
                self._size += size
                self._wake()
        return True

    def has_room(self, size: int) -> bool:
        """Whether chunks of this size fit beside what waits; not even one is larger than that."""
        with self._room:
            return self._size + size <= self._bytes_max

    def finish(self, error: ShardstreamError | None = None) -> None:
        """Note that no more is put: because of an error, or as the server ends."""
        with self._room:
            if not self._is_over:
                self._is_over, self._error = True, error
                self._wake()

    def close(self) -> None:
        """Note that no more is taken."""
        with self._room:
            self._is_closed = True
            self._room.notify_all()

    async def take(self, timeout_s: float) -> Outgoing:
        """Return some of what there is, else what comes in time, else where the reader is."""
        if timeout_s > 0 and not self._ready.is_set():
            try:
                async with asyncio.timeout(timeout_s):
                    await self._ready.wait()
            except TimeoutError:
                pass
        with self._room:
            taken: list[bytes] = []
            size = 0
            while self._chunks and size < SEND_BYTES_MAX:
                taken.append(self._chunks.popleft())
                size += len(taken[-1])
            self._size -= size
            self._room.notify_all()
            if self._chunks:
                return Outgoing(taken, None, is_over=False, error=None)
            self._ready.clear()
            self._is_waking = False
            return Outgoing(taken, self._reached, self._is_over, self._error)

    def _has_room(self, size: int) -> bool:
        return not self._chunks or self._size + size <= self._bytes_max

    def _wake(self) -> None:
        if not self._is_waking:
            self._is_waking = True
            self._call(self._ready.set)

    def _call(self, action: object) -> None:
        self._loop.call_soon_threadsafe(action)  # type: ignore[arg-type]
