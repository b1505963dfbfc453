"""Connections to one Redis server, by the lowest level of redis-py: commands out, replies in.

Its clients retry and reconnect by themselves, and would hide a new connection from the invalidator.
"""

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple, Protocol

from redis import ConnectionPool
from redis._parsers import Encoder
from redis.asyncio import ConnectionPool as AsyncConnectionPool
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.connection import Connection, PythonRespSerializer
from redis.credentials import CredentialProvider
from redis.exceptions import AuthenticationError, MovedError, ReadOnlyError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from credentials.per_process import PerProcess
from credentials.secret import Secret
from event_token.errors import ShardstreamError

# No numbers: hiredis turns one into text by a call that runs signal handlers, and does not look at
# whether one of them has raised: the process would end with a segmentation fault.
Word = str | bytes

# A swap's answers besides the number of slots that it removed.
SWAP_LOST = -1
SWAP_CLOSED = -2


class Command(NamedTuple):
    """A command for the server of a group; `source` is the script that it names by its hash."""

    group: int
    words: tuple[Word, ...]
    source: str | None = None


class Script:
    """A script, called by its hash."""

    def __init__(self, source: str) -> None:
        """Compute the hash by which servers know it."""
        self.source = source
        self.sha = hashlib.sha1(source.encode()).hexdigest()  # noqa: S324 - Redis's own choice

    def command(self, group: int, keys: Sequence[str], args: Sequence[Word]) -> Command:
        """Return the command that runs the script on keys of one group."""
        return Command(group, ("EVALSHA", self.sha, str(len(keys)), *keys, *args), self.source)


# KEYS floor, slot; ARGV floor and slot as expected ('' for absent), entry, TTL in ms.
FILL = Script("""
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if (redis.call('GET', KEYS[2]) or '') ~= ARGV[2] then return 0 end
redis.call('SET', KEYS[2], ARGV[3], 'PX', ARGV[4])
return 1
""")

# KEYS floor, slot; ARGV slot as expected, placeholder, TTL in ms. Returns the floor in a list.
PREPARE = Script("""
if (redis.call('GET', KEYS[2]) or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
return {redis.call('GET', KEYS[1])}
""")

# KEYS slot; ARGV placeholder.
RELEASE = Script("""
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
""")

# KEYS floor, slots that stay, slots that go; ARGV floor as expected, floor to write ('' deletes
# it), how each slot that stays must begin. A floor that finds no memory is deleted with all slots,
# which is allowed without memory: the bucket is closed.
_SWAP = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return -1 end
local kept = #ARGV - {others}
for i = 1, kept do
  local seen = ARGV[i + 2]
  if redis.call('GETRANGE', KEYS[i + 1], 0, #seen - 1) ~= seen then return -1 end
end
local removed = 0
local full = false
if ARGV[2] == '' then
  redis.call('DEL', KEYS[1])
elseif ARGV[2] ~= ARGV[1] then
  full = redis.pcall('SET', KEYS[1], ARGV[2]).err
  if full then redis.call('DEL', KEYS[1]) end
end
{remove}
return full and -2 or removed
"""

SWAP = Script(
    _SWAP.format(
        others=2,
        remove="""
for i = 2 + (full and 0 or kept), #KEYS do removed = removed + redis.call('DEL', KEYS[i]) end
""".strip(),
    )
)

# The same, with a name after them for each slot that goes, and a TTL in ms after the others: an
# entry that goes is kept under that name. Needs no memory.
SWAP_KEEPING = Script(
    _SWAP.format(
        others=3,
        remove="""
local gone = (#KEYS - 1 - kept) / 2
for i = 2 + (full and 0 or kept), #KEYS - gone do
  if not full and redis.call('GETRANGE', KEYS[i], 0, 0) == 'V' then
    redis.call('RENAME', KEYS[i], KEYS[i + gone])
    redis.call('PEXPIRE', KEYS[i + gone], ARGV[#ARGV])
    removed = removed + 1
  else
    removed = removed + redis.call('DEL', KEYS[i])
  end
end
""".strip(),
    )
)

# KEYS any; ARGV its value as expected ('' for absent), its new value. Returns what is there
# instead in a list, or 1.
REPLACE = Script("""
local now = redis.call('GET', KEYS[1])
if (now or '') ~= ARGV[1] then return {now} end
redis.call('SET', KEYS[1], ARGV[2])
return 1
""")

# KEYS lease; ARGV holder, TTL in ms.
LEASE = Script("""
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
""")


NO_ANSWER = (RedisConnectionError, RedisTimeoutError, OSError)
# As many as there are calls at a time: beyond redis-py's own 100 each call would be taken for one
# to a server that does not answer.
CONNECTIONS_MAX = 2**31
# Errors of a server that is, or has become, another one than it was: its connection is closed.
DEMOTED = (MovedError, ReadOnlyError)

Words = Sequence[tuple[Word, ...]]


def _packer() -> Callable[[Words], Iterable[bytes]]:
    """Return a function that encodes commands: hiredis, else, five times as slow, redis-py."""
    try:
        pack_command: Callable[[tuple[Word, ...]], bytes] = import_module("hiredis").pack_command
    except ModuleNotFoundError:
        return Connection().pack_commands  # type: ignore[no-untyped-call]
    return lambda words: [b"".join([pack_command(each) for each in words])]


PACK = _packer()


class _OwnWords(PythonRespSerializer):
    """Packs what redis-py itself sends to a new connection: SELECT has a number."""

    def __init__(self) -> None:
        super().__init__(0, Encoder("utf-8", "strict", decode_responses=False).encode)  # type: ignore[no-untyped-call]


class Login(CredentialProvider):
    """The user and its password, which is read at each connection."""

    def __init__(self, user: str, password: Secret) -> None:
        """Read nothing yet. An empty user is the server's default one."""
        self._user = user
        self._password = password
        self._given = ""

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """Return what AUTH takes. AuthenticationError, as of a server, if it cannot be had."""
        try:
            self._given = self._password.read()
        except ShardstreamError as error:
            raise AuthenticationError(str(error)) from error
        return (self._user, self._given) if self._user else (self._given,)

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        """Return the same; a command that takes long does not hold up the event loop."""
        return await asyncio.to_thread(self.get_credentials)

    def refused(self) -> None:
        """Keep the password no longer: a server has refused it."""
        self._password.forget(self._given)


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


def send(wire: Wire, words: Words) -> list[Any]:
    """Send commands in one go and read the replies; error replies are among them.

    Whatever ends this before all replies are read also ends the connection.
    """
    replies = []
    is_demoted = False
    try:
        wire.send_packed_command(PACK(words))
        for _ in words:
            try:
                replies.append(wire.read_response())
            except ResponseError as error:
                replies.append(error)
                is_demoted |= isinstance(error, DEMOTED)
    except BaseException:
        wire.disconnect()
        raise
    if is_demoted:
        wire.disconnect()
    return replies


class Connections:
    """Connections to one server for threads: made by redis-py's pool, and used again.

    Taken from that pool and given back, each call would look at its socket, record metrics and
    dispatch events, which takes a third of a hit. Here a connection that turns out to be closed is
    opened again, once, and the commands are sent again: all of ours may be repeated.
    """

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        """Connect to nothing yet. ValueError on a bad URL."""
        self._pool = ConnectionPool.from_url(
            url, **options, command_packer=_OwnWords(), retry=Retry(NoBackoff(), 0)
        )
        self._idle: PerProcess[list[Wire]] = PerProcess(list)

    def make(self) -> Wire:
        """Return a connection that is not connected yet, for the caller alone."""
        connection: Wire = self._pool.make_connection()
        return connection

    def send(self, words: Words) -> list[Any]:
        """Send commands in one go and read the replies; error replies are among them.

        Raises redis-py's errors where the server does not answer.
        """
        idle = self._idle.here()
        try:
            connection = idle.pop()
        except IndexError:
            connection = self.make()
        was_connected = connection.is_connected
        try:
            replies = send(connection, words)
        except RedisConnectionError:
            if not was_connected:
                raise
            replies = send(connection, words)
        # One that a call has ended is in nobody's list.
        idle.append(connection)
        return replies

    def close(self) -> None:
        """Close the connections that are not in use."""
        idle = self._idle.here()
        while True:
            try:
                connection = idle.pop()
            except IndexError:
                return
            connection.disconnect()


class AsyncConnections:
    """Connections to one server for asyncio, in redis-py's pool."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        """Connect to nothing yet. ValueError on a bad URL."""
        retry = AsyncRetry(NoBackoff(), 0)
        self._pool = PerProcess(partial(AsyncConnectionPool.from_url, url, **options, retry=retry))
        self._pool.here()

    async def send(self, words: Words) -> list[Any]:
        """See `Connections.send`."""
        pool = self._pool.here()
        connection: Any = await pool.get_connection()  # type: ignore[no-untyped-call]
        replies = []
        try:
            await connection.send_packed_command(PACK(words))
            for _ in words:
                try:
                    replies.append(await connection.read_response())
                except ResponseError as error:
                    replies.append(error)
            if any(isinstance(reply, DEMOTED) for reply in replies):
                await connection.disconnect()
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        finally:
            await pool.release(connection)
        return replies

    async def close(self) -> None:
        """Close all connections."""
        await self._pool.here().aclose()
