"""One connection of redis-py, of which this package uses the lowest level: words and replies.

Its clients retry and reconnect by themselves, and would hide a new connection from the invalidator.
"""

from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Any, Protocol

from redis.connection import Connection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import MovedError, ReadOnlyError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from caching.stores.on_redis.scripts import Word

NO_ANSWER = (RedisConnectionError, RedisTimeoutError, OSError)
# As many as there are calls at a time: beyond redis-py's own 100 each call would be taken for one
# to a server that does not answer.
CONNECTIONS_MAX = 2**31
# What a server says that is, or has become, another one than it was: its connection is closed.
DEMOTED = (MovedError, ReadOnlyError)


def _packer() -> Callable[[Sequence[tuple[Word, ...]]], Iterable[bytes]]:
    """Return what encodes commands as one piece: hiredis, else, five times as slow, redis-py."""
    try:
        pack_command: Callable[[tuple[Word, ...]], bytes] = import_module("hiredis").pack_command
    except ModuleNotFoundError:
        return Connection().pack_commands  # type: ignore[no-untyped-call]
    return lambda words: [b"".join([pack_command(each) for each in words])]


PACK = _packer()


class Wire(Protocol):
    """A connection, as redis-py has it."""

    @property
    def is_connected(self) -> bool:
        """Whether there is a socket."""

    def connect(self) -> None:
        """Connect and authenticate."""

    def disconnect(self) -> None:
        """Close the socket."""

    def send_packed_command(self, command: Iterable[bytes]) -> None:
        """Send them."""

    def read_response(self) -> Any:
        """Read one reply; ResponseError if it is an error."""


class AsyncWire(Protocol):
    """The same for asyncio."""

    async def disconnect(self) -> None:
        """Close the socket."""

    async def send_packed_command(self, command: Iterable[bytes]) -> None:
        """Send them."""

    async def read_response(self) -> Any:
        """Read one reply; ResponseError if it is an error."""


def options(timeout_ms: int) -> dict[str, Any]:
    """Return redis-py's settings: the oldest protocol, and no questions on connecting."""
    timeout_s = timeout_ms / 1000
    return {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "protocol": 2,
        "driver_info": None,
        "max_connections": CONNECTIONS_MAX,
    }


def send(wire: Wire, words: Sequence[tuple[Word, ...]]) -> list[Any]:
    """Send commands in one go and read the replies; error replies are among them."""
    wire.send_packed_command(PACK(words))
    replies = []
    is_demoted = False
    for _ in words:
        try:
            replies.append(wire.read_response())
        except ResponseError as error:
            replies.append(error)
            is_demoted |= isinstance(error, DEMOTED)
    if is_demoted:
        wire.disconnect()
    return replies


async def send_async(wire: AsyncWire, words: Sequence[tuple[Word, ...]]) -> list[Any]:
    """See `send`."""
    await wire.send_packed_command(PACK(words))
    replies = []
    for _ in words:
        try:
            replies.append(await wire.read_response())
        except ResponseError as error:
            replies.append(error)
    if any(isinstance(reply, DEMOTED) for reply in replies):
        await wire.disconnect()
    return replies
