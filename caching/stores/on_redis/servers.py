"""The servers of a store on Redis: which one a command goes to, and what its reply means."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any, Generic, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

from redis.crc import key_slot
from redis.exceptions import (
    AskError,
    AuthenticationError,
    ClusterDownError,
    MovedError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)

from caching.errors import LayoutError, Reconnected, StoreError, StoreFull, StoreUnreachable
from caching.protocol import CacheLayout
from caching.protocol.layout import GROUPS
from caching.steps import Call, Steps, run_steps
from caching.stores.on_redis.connections import (
    NO_ANSWER,
    AsyncConnections,
    Command,
    Connections,
    Login,
    Wire,
    Word,
    Words,
    options,
    send,
)
from caching.stores.store import Circuit, StoreOptions
from credentials.per_process import PerProcess

SCHEMES = ("redis", "rediss", "unix")
# What a URL may say after its `?`: the account, the database, TLS, and how long is waited. redis-py
# takes any argument of its connections there, and its word is the last: with `decode_responses`,
# `protocol` or an encoding replies would not be bytes, and with a retry a connection of the
# invalidator would be another one than before, without a word.
URL_OPTIONS = frozenset(
    {
        *("db", "username", "password", "client_name", "socket_keepalive"),
        *("timeout", "socket_timeout", "socket_connect_timeout", "health_check_interval"),
    }
)
CLUSTER_SUFFIX = "+cluster"
PORT_DEFAULT = 6379


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """A server; `host` is the path of a Unix socket if `port` is 0."""

    host: str
    port: int

    def __str__(self) -> str:
        """Return host and port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}" if self.port else self.host


@dataclass(frozen=True, slots=True)
class Location:
    """A URL taken apart: the servers that it names, and how to connect to each of them."""

    seeds: tuple[RedisAddress, ...]
    is_cluster: bool
    before: str
    after: str

    @classmethod
    def parse(cls, url: str) -> "Location":
        """Read `redis://`, `rediss://`, `unix://`, or `redis+cluster://a:1,b:2`; LayoutError."""
        parts = urlsplit(url)
        scheme = parts.scheme.removesuffix(CLUSTER_SUFFIX)
        is_cluster = scheme != parts.scheme
        if scheme not in SCHEMES or (is_cluster and scheme == "unix"):
            raise LayoutError(
                f"a Redis store has a URL of {', '.join(SCHEMES)}, or redis+cluster, not of "
                f"'{parts.scheme}'"
            )
        for name in parse_qs(parts.query, keep_blank_values=True):
            if name not in URL_OPTIONS and not name.startswith("ssl_"):
                raise LayoutError(
                    f"the URL of a Redis store has ?{name}=, which changes how shardstream speaks "
                    f"with the server: remove it. A URL may have {', '.join(sorted(URL_OPTIONS))} "
                    f"and ssl_..."
                )
        account, at, hosts = parts.netloc.rpartition("@")
        before, after = f"{scheme}://{account}{at}", parts._replace(scheme="", netloc="").geturl()
        if scheme == "unix":
            return cls((RedisAddress(parts.path, 0),), is_cluster, before, after)
        seeds = tuple(_address(host) for host in hosts.split(","))
        if len(seeds) > 1 and not is_cluster:
            raise LayoutError(f"several Redis servers are a cluster: {scheme}{CLUSTER_SUFFIX}://")
        return cls(seeds, is_cluster, before, after)

    def url(self, address: RedisAddress) -> str:
        """Return the URL of one server, as redis-py reads it."""
        return f"{self.before}{address if address.port else ''}{self.after}"

    def without_user(self) -> tuple[str, "Location"]:
        """Return the user that the URL names, "" if none, and the location without it.

        LayoutError if the URL has a password, or the user in its query.
        """
        scheme, _, account = self.before.partition("://")
        parts, query = urlsplit(f"//{account}localhost"), parse_qs(urlsplit(self.after).query)
        if parts.password is not None or "password" in query:
            raise LayoutError("the store's URL contains a password, and another one is given")
        if "username" in query:
            raise LayoutError(
                f"the store's URL has ?username=, and a password is given apart from it: name the "
                f"user before the host, {scheme}://USER@HOST"
            )
        return unquote(parts.username or ""), replace(self, before=f"{scheme}://")


class GroupRoutes:
    """The server of each group; those of a cluster are asked for."""

    def __init__(self, location: Location, layout: CacheLayout) -> None:
        """Know the only server of a location, or nothing of a cluster."""
        self.is_cluster = location.is_cluster
        self.is_known = not self.is_cluster
        self.address = [location.seeds[0]] * GROUPS
        self._seeds = location.seeds
        names = (layout.wanted_key(group).encode() for group in range(GROUPS))
        self._slots = [key_slot(each) for each in names]

    def candidates(self) -> list[RedisAddress]:
        """Return whom to ask for the cluster's slots."""
        return list(dict.fromkeys([*self.address, *self._seeds]))

    def forget(self) -> None:
        """Ask for a cluster's slots before the next call."""
        self.is_known = not self.is_cluster

    def learn(self, slots: Iterable[Sequence[Any]], asked: RedisAddress) -> None:
        """Take the reply of CLUSTER SLOTS; StoreUnreachable if a group has no server."""
        found: dict[int, RedisAddress] = {}
        for first, last, primary, *_ in slots:
            host = primary[0].decode() if primary[0] else asked.host
            for group, slot in enumerate(self._slots):
                if first <= slot <= last:
                    found[group] = RedisAddress(host, primary[1])
        if len(found) < GROUPS:
            raise StoreUnreachable(str(asked), f"the Redis cluster of {asked} does not serve all "
                                               "slots; CLUSTER INFO shows its state")  # fmt: skip
        self.address = [found[group] for group in range(GROUPS)]
        self.is_known = True


def _address(text: str) -> RedisAddress:
    try:
        parts = urlsplit(f"//{text}")
        return RedisAddress(parts.hostname or "localhost", parts.port or PORT_DEFAULT)
    except ValueError as fault:
        raise LayoutError(f"'{text}' is not the address of a Redis server: {fault}") from fault


# Scripts unknown, group moved, group moved again: more is a cluster that does not come to rest.
SENDS_MAX = 5
# How a script's error says it; a plain command's has a class of its own.
OUT_OF_MEMORY = "OOM command not allowed"
# Replies that a server keeps for one send until they are read: some MB at most.
COMMANDS_MAX = 1_000

C = TypeVar("C", Connections, AsyncConnections)


class Servers(Generic[C]):
    """The connections to each server, which is left alone for `open_s` after a failure.

    `connect` is their class: those for threads, or those for asyncio.
    """

    def __init__(
        self, layout: CacheLayout, url: str, connect: type[C], chosen: StoreOptions
    ) -> None:
        """Connect to nothing yet. LayoutError on a URL that cannot be used."""
        self._location = Location.parse(url)
        self.is_cluster = self._location.is_cluster
        self._routes = GroupRoutes(self._location, layout)
        self._connect: Callable[[str, Mapping[str, Any]], C] = connect
        self._options = options(chosen.timeout_ms)
        self._login: Login | None = None
        if chosen.password is not None:
            user, self._location = self._location.without_user()
            self._login = self._options["credential_provider"] = Login(user, chosen.password)
        self._open_s = chosen.open_s
        self._servers: dict[RedisAddress, tuple[C, Circuit]] = {}
        self._lock = PerProcess(Lock)
        self._server(self._routes.address[0])

    def run(self, commands: Sequence[Command]) -> Steps[list[Any]]:
        """Send each command to the primary of its group; return the replies in their order."""
        if len(commands) == 1 and self._routes.is_known:
            [command] = commands
            self._check((command.group,))
            replies = yield from self._send(self._routes.address[command.group], (command.words,))
            if not isinstance(replies[0], ResponseError):
                return replies
        exchange = _Exchange(commands)
        for _ in range(SENDS_MAX):
            yield from self._learn_routes()
            self._check({commands[number].group for number in exchange.waiting})
            for address, numbers in exchange.by_address(self._routes).items():
                for at in range(0, len(numbers), COMMANDS_MAX):
                    part = numbers[at : at + COMMANDS_MAX]
                    words = [exchange.words[number] for number in part]
                    exchange.take(address, part, (yield from self._send(address, words)))
            if not exchange.waiting:
                return exchange.replies
            if exchange.has_moved:
                self._routes.forget()
        server = self.name_of(0)
        raise StoreUnreachable(server, f"the Redis cluster of {server} is moving its slots")

    def name_of(self, group: int) -> str:
        """Return the address of the server of a group, as it was last known."""
        return str(self._routes.address[group])

    def close(self) -> Steps[None]:
        """Close all connections."""
        with self._lock.here():
            servers = list(self._servers.values())
        for connections, _ in servers:
            yield Call(connections.close)

    def _check(self, groups: Collection[int]) -> None:
        """Check the groups that commands are about to be sent to; any connection will do."""

    def _send(self, address: RedisAddress, words: Words) -> Steps[list[Any]]:
        connections, circuit = self._server(address)
        circuit.check()
        try:
            replies: list[Any] = yield Call(connections.send, (words,))
        except NO_ANSWER as fault:
            raise self._unreachable(address, fault) from fault
        return replies

    def _server(self, address: RedisAddress) -> tuple[C, Circuit]:
        with self._lock.here():
            if address not in self._servers:
                try:
                    connections = self._connect(self._location.url(address), self._options)
                except ValueError as fault:
                    raise LayoutError(f"the URL of Redis store {address}: {fault}") from fault
                self._servers[address] = connections, Circuit(str(address), self._open_s)
            return self._servers[address]

    def _unreachable(self, address: RedisAddress, fault: Exception) -> StoreUnreachable:
        self._routes.forget()
        if self._login is not None and isinstance(fault, AuthenticationError):
            self._login.refused()
        return self._server(address)[1].failed(fault)

    def _learn_routes(self) -> Steps[None]:
        """Ask the servers of a cluster, until one answers, which server holds which slots."""
        faults: list[StoreUnreachable] = []
        for address in [] if self._routes.is_known else self._routes.candidates():
            try:
                [reply] = yield from self._send(address, [("CLUSTER", "SLOTS")])
                if isinstance(reply, ResponseError):
                    raise _explained(address, reply)
                self._routes.learn(reply, address)
            except StoreUnreachable as fault:
                faults.append(fault)
            else:
                return
        if faults:
            raise faults[0]


class PinnedServers(Servers[Connections]):
    """One connection per server, each of which has to be resumed on before it is used (rule 11).

    A group whose slot is on another server now, or whose server has been connected to again, may
    lack acknowledged writes: commands for it raise Reconnected until it is resumed.
    """

    def __init__(self, layout: CacheLayout, url: str, chosen: StoreOptions) -> None:
        """Connect to nothing yet."""
        super().__init__(layout, url, Connections, replace(chosen, open_s=0))
        # A connection is out of here while it is used: one that a call ended does not come back.
        self._wires: PerProcess[dict[RedisAddress, Wire]] = PerProcess(dict)
        self._resumed: dict[int, tuple[RedisAddress, Wire]] = {}

    def resume(self, commands: Sequence[Command]) -> dict[int, Any]:
        """Send commands, one per group, for the groups with a new connection; replies by group."""
        run_steps(self._learn_routes())
        places = {group: self._place(group) for group in range(GROUPS)}
        renewed = [each for each in commands if self._resumed.get(each.group) != places[each.group]]
        before = dict(self._resumed)
        try:
            self._resumed |= {each.group: places[each.group] for each in renewed}
            replies = run_steps(self.run(renewed))
        except BaseException:
            self._resumed = before
            raise
        return {each.group: reply for each, reply in zip(renewed, replies, strict=True)}

    def close(self) -> Steps[None]:
        """Close all connections."""
        for wire in self._wires.here().values():
            wire.disconnect()
        yield from super().close()

    def _check(self, groups: Collection[int]) -> None:
        for group in groups:
            if self._resumed.get(group) != self._place(group):
                raise Reconnected(str(group))

    def _send(self, address: RedisAddress, words: Words) -> Steps[list[Any]]:
        try:
            wire = self._connected(address)
            wires = self._wires.here()
            del wires[address]
            replies: list[Any] = yield Call(send, (wire, words))
        except NO_ANSWER as fault:
            raise self._unreachable(address, fault) from fault
        wires[address] = wire
        return replies

    def _place(self, group: int) -> tuple[RedisAddress, Wire]:
        """Return where a group is: its server, and the connection to it."""
        address = self._routes.address[group]
        try:
            return address, self._connected(address)
        except NO_ANSWER as fault:
            raise self._unreachable(address, fault) from fault

    def _connected(self, address: RedisAddress) -> Wire:
        """Return the connection to a server; another object whenever it had to be made."""
        wires = self._wires.here()
        wire = wires.get(address)
        if wire is None or not wire.is_connected:
            wire = self._server(address)[0].make()
            wire.connect()
            wires[address] = wire
        return wire


@dataclass
class _Exchange:
    """Commands on their way to several servers: which wait to be sent, and the replies so far."""

    commands: Sequence[Command]
    replies: list[Any] = field(init=False)
    words: list[tuple[Word, ...]] = field(init=False)
    waiting: set[int] = field(init=False)
    has_moved: bool = False

    def __post_init__(self) -> None:
        """All of them wait."""
        self.replies = [None] * len(self.commands)
        self.words = [command.words for command in self.commands]
        self.waiting = set(range(len(self.commands)))

    def by_address(self, routes: GroupRoutes) -> dict[RedisAddress, list[int]]:
        """Return the numbers of the commands that wait, by the servers that they go to."""
        split: dict[RedisAddress, list[int]] = {}
        for number in sorted(self.waiting):
            split.setdefault(routes.address[self.commands[number].group], []).append(number)
        return split

    def take(self, address: RedisAddress, numbers: Sequence[int], replies: Iterable[Any]) -> None:
        """Take a server's replies. Raises StoreError on an error reply.

        A script that the server does not know waits again, with its source, and so does a command
        for a group that has moved.
        """
        for number, reply in zip(numbers, replies, strict=True):
            source = self.commands[number].source
            if isinstance(reply, NoScriptError) and source is not None:
                self.words[number] = ("EVAL", source, *self.words[number][2:])
            elif isinstance(reply, MovedError):
                self.has_moved = True
            elif isinstance(reply, ResponseError):
                raise _explained(address, reply)
            else:
                self.replies[number] = reply
                self.waiting.remove(number)


def _explained(address: RedisAddress, error: ResponseError) -> StoreError:
    """Return the error to raise for a server's error reply."""
    message = f"cache server {address}: {error}"
    if isinstance(error, OutOfMemoryError) or OUT_OF_MEMORY in str(error):
        return StoreFull(str(address), message)
    if isinstance(error, AskError | TryAgainError | ClusterDownError | ReadOnlyError):
        return StoreUnreachable(str(address), message)
    return StoreError(str(address), message)
