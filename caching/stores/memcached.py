"""Caches on memcached: the buckets are spread over a list of servers.

An invalidation raises the floor by compare-and-set, and then reads the slots. A value that holds
the changes then stays: a client that replaces it from now on has read the raised floor, because the
placeholder came before that.

CAS ids begin again when a server is restarted, so an item is read and then replaced by its CAS id
over one connection.
"""

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar
from urllib.parse import urlsplit

import xxhash
from pymemcache.client.base import Client, PooledClient
from pymemcache.exceptions import (
    MemcacheError,
    MemcacheServerError,
    MemcacheUnexpectedCloseError,
)

from caching.errors import (
    CacheFindings,
    LayoutError,
    Reconnected,
    StoreError,
    StoreFull,
    StoreUnreachable,
    version_number,
)
from caching.protocol import CacheLayout, Placeholder
from caching.protocol.layout import BUCKETS_DEFAULT
from caching.protocol.stored_forms import PLACEHOLDER_NONCE_BYTES, is_entry
from caching.steps import Call, Steps, run_steps
from caching.stores.store import (
    FLOORS_OPTIONS,
    ROUNDS_MAX,
    Announcement,
    Circuit,
    EntryWrite,
    FloorStore,
    Invalidated,
    KeyChange,
    KeyState,
    Store,
    StoreOptions,
    by_bucket,
    decide_swap,
)
from credentials.per_process import PerProcess
from event_token import ClockUncertainty

PORT_DEFAULT = 11211
NAME_BYTES_MAX = 250
# Letters that memcached's protocol has no other use for.
PRINTABLE = range(0x21, 0x7F)
KEY_LENGTH_BYTES = 4


def addresses(url: str) -> tuple[str, ...]:
    """Return the sorted servers of `memcached://a,b:11212` as host:port; LayoutError."""
    parts = urlsplit(url)
    if parts.scheme != "memcached" or parts.path.strip("/") or parts.query or "@" in parts.netloc:
        raise LayoutError(
            f"'{url}' is not the URL of memcached servers, which is memcached://host:port,host:port"
        )
    found = set()
    for text in parts.netloc.split(","):
        try:
            one = urlsplit(f"//{text}")
            host, port = one.hostname or "localhost", one.port or PORT_DEFAULT
        except ValueError as fault:
            raise LayoutError(f"'{text}' is not a memcached server: {fault}") from fault
        found.add(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    return tuple(sorted(found))


def slot_name(layout: CacheLayout, key: str) -> tuple[str, bytes]:
    """Return the name of a key's slot, and what stands before the slot's contents.

    A key that memcached would not take is named by its hash; it then stands before the contents,
    so that another key with this hash is not taken for it.
    """
    return _named(layout.slot_key(key), key, "v", "h")


def stale_name(layout: CacheLayout, key: str) -> str:
    """Return the name of the value last removed from a key's slot; its contents begin alike."""
    return _named(layout.stale_key(key), key, "s", "t")[0]


def _named(name: str, key: str, kind: str, hashed: str) -> tuple[str, bytes]:
    if len(name) <= NAME_BYTES_MAX and all(ord(letter) in PRINTABLE for letter in name):
        return name, b""
    encoded = key.encode()
    prefix = name.removesuffix(f"{kind}:{key}")
    return (
        f"{prefix}{hashed}:{xxhash.xxh128_hexdigest(encoded)}",
        len(encoded).to_bytes(KEY_LENGTH_BYTES, "little") + encoded,
    )


P = ParamSpec("P")
T = TypeVar("T")

NO_ANSWER = (OSError, MemcacheUnexpectedCloseError)
# What a server says that stores no more, and of an item above its limit (1 MB by default).
FULL = ("out of memory", "too large")


class Node(Protocol):
    """One server."""

    name: str

    def ask(
        self, request: Callable[Concatenate[Client, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Steps[T]:
        """Call a function with one connection; StoreError on any error of the server."""


class PooledNode:
    """A server that clients ask; after a failure it is left alone for `open_s` seconds.

    `is_async`: every request runs in a thread of its own, because the library blocks.
    """

    def __init__(self, name: str, options: StoreOptions) -> None:
        """Connect to nothing yet."""
        self.name = name
        self._is_async = options.is_async
        self._circuit = Circuit(name, options.open_s)
        settings = _options(options.timeout_ms)
        self._pooled = PerProcess(lambda: PooledClient(_server(name), **settings))

    def ask(
        self, request: Callable[Concatenate[Client, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Steps[T]:
        """See `Node.ask`: a connection of the pool."""

        def ask() -> T:
            with self.client() as client:
                return request(client, *args, **kwargs)

        found: T = yield self._blocking(ask)
        return found

    @contextmanager
    def client(self) -> Iterator[Client]:
        """Lend a connection of the pool."""
        self._circuit.check()
        pool = self._pooled.here().client_pool
        try:
            client = pool.get()
            try:
                yield client
            except BaseException:  # after an interrupt, too, a reply may be unread
                pool.destroy(client)
                raise
            pool.release(client)
        except (ConnectionResetError, BrokenPipeError, MemcacheUnexpectedCloseError) as fault:
            # A server that was restarted: the other idle connections are dead, too. Those in use
            # are left to their threads, which would find them closed in mid-reply.
            while pool.free:
                pool.destroy(pool.get())
            message = f"cache server {self.name} has closed the connection"
            raise StoreUnreachable(self.name, message) from fault
        except OSError as fault:
            raise self._circuit.failed(fault) from fault
        except MemcacheError as fault:
            raise _explained(self.name, fault) from fault

    def close(self) -> Steps[None]:
        """Close all connections; for asyncio in a thread, for it may wait for one that ends."""
        yield self._blocking(self._pooled.here().close)

    def _blocking(self, function: Callable[[], object]) -> Call:
        return Call(asyncio.to_thread, (function,)) if self._is_async else Call(function)


class PinnedNode:
    """A server with one connection, which has to be resumed on before it is used (rule 11)."""

    def __init__(self, name: str, timeout_ms: int) -> None:
        """Connect to nothing yet."""
        self.name = name
        self._options = _options(timeout_ms)
        # Out of here while it is used: one that a call has ended does not come back.
        self._connected: PerProcess[list[Client]] = PerProcess(list)
        self._resumed: Client | None = None

    def ask(
        self, request: Callable[Concatenate[Client, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Steps[T]:
        """See `Node.ask`: the connection; Reconnected if it is not the one resumed on."""
        with self.client() as client:
            return request(client, *args, **kwargs)
        yield  # a generator that has nothing to wait for

    @contextmanager
    def client(self) -> Iterator[Client]:
        """Lend the connection; Reconnected if it is not the one that was resumed on."""
        with self._any_client() as client:
            if client is not self._resumed:
                raise Reconnected(self.name)
            yield client

    def resume(self, name: str) -> tuple[bool, bytes | None]:
        """Connect; return whether the connection is new, and then the contents of a name."""
        with self._any_client() as client:
            if client is self._resumed:
                return False, None
            stored: bytes | None = client.get(name)
            self._resumed = client
            return True, stored

    def close(self) -> None:
        """Close the connection."""
        for client in self._connected.here():
            client.close()

    @contextmanager
    def _any_client(self) -> Iterator[Client]:
        """Lend the connection; another object whenever it had to be made."""
        connected = self._connected.here()
        client = connected.pop() if connected else None
        try:
            if client is None or client.sock is None:
                client = Client(_server(self.name), **self._options)
                client.version()
            yield client
        except Reconnected:
            connected.append(client)
            raise
        except BaseException as fault:
            if client is not None:
                client.close()
            if isinstance(fault, NO_ANSWER):
                message = f"cache server {self.name} does not answer: {fault}"
                raise StoreUnreachable(self.name, message) from fault
            if isinstance(fault, MemcacheError):
                raise _explained(self.name, fault) from fault
            raise
        connected.append(client)


def is_full(error: MemcacheError) -> bool:
    """Return whether a server has no memory for what it was sent."""
    return isinstance(error, MemcacheServerError) and any(word in str(error) for word in FULL)


def _server(name: str) -> tuple[str, int]:
    parts = urlsplit(f"//{name}")
    return parts.hostname or "", parts.port or 0


def _options(timeout_ms: int) -> dict[str, Any]:
    timeout_s = timeout_ms / 1000
    return {"connect_timeout": timeout_s, "timeout": timeout_s, "no_delay": True}


def _explained(name: str, error: MemcacheError) -> StoreError:
    message = f"cache server {name}: {error}"
    return StoreFull(name, message) if is_full(error) else StoreError(name, message)


# Floors never expire.
FOR_EVER = 0


@dataclass
class _Raising:
    """The floors of one node on their way up."""

    changes: Mapping[int, list[KeyChange]]
    waiting: set[int] = field(init=False)
    closed: set[int] = field(default_factory=set)
    raised: int = 0
    repeats: int = 0

    def __post_init__(self) -> None:
        """All of them wait."""
        self.waiting = set(self.changes)


def invalidate(
    layout: CacheLayout,
    nodes: Sequence[Node],
    changes: Iterable[KeyChange],
    stale_ok_s: int,
    clock: ClockUncertainty,
) -> Steps[Invalidated]:
    """See `Store.invalidate`; node by node. With `stale_ok_s` removed values are kept so long."""
    grouped = by_bucket(layout, changes)
    raised = removed = repeats = 0
    closed: set[int] = set()
    for number, node in enumerate(nodes):
        own = {bucket: grouped[bucket] for bucket in grouped if bucket % len(nodes) == number}
        raising = _Raising(own)
        for _ in range(ROUNDS_MAX):
            if not raising.waiting:
                break
            yield from node.ask(_raise_floors, layout, node.name, raising, clock)
        else:
            raise StoreError(node.name, f"bucket {min(raising.waiting)} changed {ROUNDS_MAX} times")
        open_ = {bucket: own[bucket] for bucket in own.keys() - raising.closed}
        if open_:
            removed += yield from node.ask(_remove, layout, open_, stale_ok_s, clock)
        raised += raising.raised
        repeats += raising.repeats
        closed |= raising.closed
    return Invalidated(raised, removed, repeats, frozenset(closed))


def replace_floor(client: Client, node: str, name: str, floor: bytes, cas: bytes) -> bool:
    """Write a floor over the one with this CAS id.

    If there is no memory for it, the floor is deleted, which closes its bucket, and StoreFull
    raised. The library has closed the connection then, and it stays closed: its user
    has to notice that the next one is new.
    """
    try:
        return bool(client.cas(name, floor, cas, FOR_EVER))
    except MemcacheServerError as fault:
        if not is_full(fault):
            raise
        client.delete(name, noreply=False)
        client.close()
        raise StoreFull(node, f"cache server {node}: {fault}") from fault


def _raise_floors(
    client: Client, layout: CacheLayout, node: str, raising: _Raising, clock: ClockUncertainty
) -> None:
    """Try once to raise each of the floors that wait, until one finds no memory."""
    names = {layout.floor_key(bucket): bucket for bucket in sorted(raising.waiting)}
    stored = client.gets_many(list(names))
    for name, bucket in names.items():
        floor, cas = stored.get(name, (None, None))
        changes = raising.changes[bucket]
        swap = decide_swap(bucket, changes, floor, {each.key: None for each in changes}, clock)
        if swap is None or swap.floor is None:
            raising.closed.add(bucket)
            if swap is not None:
                client.delete(name, noreply=False)
        elif swap.floor != swap.seen:
            try:
                is_written = replace_floor(client, node, name, swap.floor, cas)
            except StoreFull:
                raising.closed.add(bucket)
                raising.waiting.discard(bucket)
                return
            if not is_written:
                raising.repeats += 1
                continue
            raising.raised += 1
        raising.waiting.discard(bucket)


def _remove(
    client: Client,
    layout: CacheLayout,
    buckets: Mapping[int, list[KeyChange]],
    stale_ok_s: int,
    clock: ClockUncertainty,
) -> int:
    """Delete the slots that do not hold the changes; return how many there were."""
    removed = 0
    for bucket, changes in buckets.items():
        names = {each.key: slot_name(layout, each.key) for each in changes}
        floor_name = layout.floor_key(bucket)
        stored = client.get_many([floor_name, *(name for name, _ in names.values())])
        slots = {}
        for key, (name, before) in names.items():
            slot = stored.get(name)
            slots[key] = None if slot is None else slot[len(before) :]
        swap = decide_swap(bucket, changes, stored.get(floor_name), slots, clock)
        gone = slots if swap is None else swap.removed
        there = [names[key][0] for key in gone if slots[key] is not None]
        client.delete_many(there, noreply=False)
        removed += len(there)
        # If there is no memory for it, the call is repeated and finds nothing to keep.
        for key in gone if stale_ok_s else ():
            if is_entry(slots[key] or b""):
                kept = stored[names[key][0]]
                client.set(stale_name(layout, key), kept, stale_ok_s, noreply=False)
    return removed


# A fill that takes longer finds no placeholder and is not written; one whose process dies keeps
# others from the slot for as long, unless they take it over.
PLACEHOLDER_S = 10
# Memcached takes a longer time for a date.
TTL_S_MAX = 30 * 24 * 3600
# Immediately expired: what `cas` can do that `delete` cannot.
EXPIRED = -1
# Older ones are in no distribution that is still maintained.
VERSION_MIN = (1, 4, 14)
# Names per request: a request of some 20 kB.
KEYS_MAX = 100


class MemcachedStore(Store):
    """A `Store` whose nodes are memcached servers; the buckets are spread over them in turn.

    `url`: `memcached://a:11211,b:11211`. Another list of servers is another, empty cache.
    """

    def __init__(
        self,
        cache: str,
        url: str,
        buckets: int = BUCKETS_DEFAULT,
        options: StoreOptions = StoreOptions(),  # noqa: B008 - frozen
    ) -> None:
        """Connect to nothing yet. LayoutError on a URL or name that cannot be used."""
        self.nodes = addresses(url)
        self.layout = CacheLayout(cache, buckets, self.nodes)
        self.is_async = options.is_async
        self._stale_ok_s = options.stale_ok_s
        self.clock_uncertainty = options.clock_uncertainty
        self._nodes = [PooledNode(name, options) for name in self.nodes]

    def read(self, keys: Sequence[str]) -> Steps[list[KeyState]]:
        """See `Store.read`: floor and slot in one request."""
        found: dict[str, KeyState] = {}
        for node, own in self._by_node(keys):
            for at in range(0, len(own), KEYS_MAX):
                part = own[at : at + KEYS_MAX]
                names = [name for key in part for name in self._names(key)]
                stored = yield from node.ask(Client.gets_many, names)
                found |= {key: self._state(key, stored) for key in part}
        return [found[key] for key in keys]

    def read_stale(self, key: str) -> Steps[KeyState]:
        """See `Store.read_stale`."""
        floor, name = self._names(key)[0], stale_name(self.layout, key)
        before = slot_name(self.layout, key)[1]
        stored = yield from self._node(key).ask(Client.get_many, [floor, name])
        slot = stored.get(name, b"")
        own = slot[len(before) :] if slot.startswith(before) else b""
        return KeyState(stored.get(floor), own or None)

    def prepare(self, fills: Sequence[Announcement]) -> Steps[list[KeyState | None]]:
        """See `Store.prepare`: the placeholder first, then the floor."""
        seen = {each.key: each.seen for each in fills}
        prepared: dict[str, KeyState | None] = {}
        for node, own in self._by_node(list(seen)):
            prepared |= yield from node.ask(self._prepare, {key: seen[key] for key in own})
        return [prepared[each.key] for each in fills]

    def _prepare(self, client: Client, seen: Mapping[str, KeyState]) -> dict[str, KeyState | None]:
        prepared: dict[str, KeyState | None] = dict.fromkeys(seen)
        for key, state in seen.items():
            name, before = slot_name(self.layout, key)
            placeholder = Placeholder(os.urandom(PLACEHOLDER_NONCE_BYTES)).to_bytes()
            if state.version is None:
                is_put = client.add(name, before + placeholder, PLACEHOLDER_S, noreply=False)
            else:
                is_put = client.cas(name, before + placeholder, state.version, PLACEHOLDER_S)
            if is_put:
                present = self._state(key, client.gets_many(list(self._names(key))))
                if present.slot == placeholder:
                    prepared[key] = KeyState(present.floor, state.slot, present.version)
        return prepared

    def fill(self, writes: Sequence[EntryWrite]) -> Steps[list[bool]]:
        """See `Store.fill`: over the placeholder that the fill was prepared with."""
        by_key = {each.key: each for each in writes}
        written: dict[str, bool] = {}
        for node, own in self._by_node(list(by_key)):
            written |= yield from node.ask(self._fill, [by_key[key] for key in own])
        return [written[each.key] for each in writes]

    def _fill(self, client: Client, writes: Sequence[EntryWrite]) -> dict[str, bool]:
        written = {}
        for key, expected, entry, ttl_ms in writes:
            name, before = slot_name(self.layout, key)
            ttl_s = min(-(-ttl_ms // 1000), TTL_S_MAX)
            version = expected.version
            written[key] = version is not None and bool(
                client.cas(name, before + entry, version, ttl_s)
            )
        return written

    def read_again(self, keys: Sequence[str]) -> Steps[list[KeyState | None]]:
        """Return None: the database must be read again, behind another placeholder."""
        return [None] * len(keys)
        yield  # a generator that has nothing to wait for

    def release(self, prepared: Sequence[tuple[str, KeyState]]) -> Steps[None]:
        """See `Store.release`."""
        for key, state in prepared:
            if state.version is not None:
                name = slot_name(self.layout, key)[0]
                yield from self._node(key).ask(Client.cas, name, b"", state.version, EXPIRED)

    def forget(self, keys: Sequence[str]) -> Steps[None]:
        """See `Store.forget`."""
        for node, own in self._by_node(keys):
            names = [slot_name(self.layout, key)[0] for key in own]
            if self._stale_ok_s:
                names += [stale_name(self.layout, key) for key in own]
            yield from node.ask(Client.delete_many, names, noreply=False)

    def want_floors(self, buckets: Iterable[int]) -> Steps[None]:
        """See `Store.want_floors`: appended to a list on the node."""
        name, wanted = self.layout.wanted_key(0), set(buckets)
        for number, node in enumerate(self._nodes):
            own = [each for each in wanted if each % len(self._nodes) == number]
            text = "".join(f"{bucket}," for bucket in own)
            if text and not (yield from node.ask(Client.append, name, text, noreply=False)):
                yield from node.ask(Client.add, name, text, noreply=False)

    def invalidate(self, changes: Iterable[KeyChange]) -> Steps[Invalidated]:
        """See `Store.invalidate`."""
        return invalidate(
            self.layout, self._nodes, changes, self._stale_ok_s, self.clock_uncertainty
        )

    def positions(self, places: Sequence[tuple[str, str]]) -> Steps[list[bytes | None]]:
        """See `Store.positions`."""
        found: list[bytes | None] = []
        for node, key_range in places:
            name = self.layout.position_key(0, key_range)
            asked = self._nodes[self.nodes.index(node)]
            found.append((yield from asked.ask(Client.get, name)))
        return found

    def check(self) -> Steps[CacheFindings]:
        """See `Store.check`."""
        found = CacheFindings()
        for node in self._nodes:
            version = (yield from node.ask(Client.version)).decode()
            stored = yield from node.ask(Client.get, self.layout.layout_key())
            if version_number(version) < VERSION_MIN:
                where = f"memcached server {node.name}"
                found.problems.append(f"{where}: version {version}. Fix: 1.4.14 or newer")
            found.layout = stored.decode(errors="replace") if stored else found.layout
        return found

    def close(self) -> Steps[None]:
        """See `Store.close`."""
        for node in self._nodes:
            yield from node.close()

    def _by_node(self, keys: Sequence[str]) -> Iterator[tuple[PooledNode, list[str]]]:
        for number, node in enumerate(self._nodes):
            own = [key for key in keys if self.layout.bucket(key) % len(self._nodes) == number]
            if own:
                yield node, own

    def _node(self, key: str) -> PooledNode:
        return self._nodes[self.layout.bucket(key) % len(self._nodes)]

    def _names(self, key: str) -> tuple[str, str]:
        return self.layout.floor_key(self.layout.bucket(key)), slot_name(self.layout, key)[0]

    def _state(self, key: str, stored: dict[str, tuple[bytes, bytes]]) -> KeyState:
        """Return a key's part of the stored values; another key's slot is none of its."""
        floor_name, name = self._names(key)
        before = slot_name(self.layout, key)[1]
        slot, cas = stored.get(name, (None, None))
        floor = stored.get(floor_name, (None, None))[0]
        own = None if slot is None or not slot.startswith(before) else slot[len(before) :]
        return KeyState(floor, own, cas)


# Floors per request.
FLOORS_MAX = 200


class MemcachedFloors(FloorStore):
    """A `FloorStore` whose nodes are memcached servers."""

    def __init__(
        self,
        cache: str,
        url: str,
        buckets: int = BUCKETS_DEFAULT,
        options: StoreOptions = FLOORS_OPTIONS,
    ) -> None:
        """Connect to nothing yet. LayoutError on a URL or name that cannot be used."""
        self.nodes = addresses(url)
        self.layout = CacheLayout(cache, buckets, self.nodes)
        self._stale_ok_s = options.stale_ok_s
        self.clock_uncertainty = options.clock_uncertainty
        self._nodes = {name: PinnedNode(name, options.timeout_ms) for name in self.nodes}

    def resume(self, key_range: str) -> dict[str, bytes | None]:
        """See `FloorStore.resume`."""
        name = self.layout.position_key(0, key_range)
        found = {node.name: node.resume(name) for node in self._nodes.values()}
        return {node: stored for node, (is_new, stored) in found.items() if is_new}

    def publish(
        self, key_range: str, positions: Mapping[str, tuple[bytes | None, bytes]]
    ) -> dict[str, bytes | None]:
        """See `FloorStore.publish`."""
        name = self.layout.position_key(0, key_range)
        lost: dict[str, bytes | None] = {}
        for node, (seen, new) in positions.items():
            with self._nodes[node].client() as client:
                stored, cas = client.gets(name, default=None, cas_default=None)
                if stored == seen and (
                    client.add(name, new, FOR_EVER, noreply=False)
                    if seen is None
                    else client.cas(name, new, cas, FOR_EVER)
                ):
                    continue
                lost[node] = client.get(name)
        return lost

    def invalidate(self, changes: Iterable[KeyChange]) -> Invalidated:
        """See `FloorStore.invalidate`."""
        nodes = list(self._nodes.values())
        return run_steps(
            invalidate(self.layout, nodes, changes, self._stale_ok_s, self.clock_uncertainty)
        )

    def wanted(self) -> list[int]:
        """See `FloorStore.wanted`."""
        name = self.layout.wanted_key(0)
        found: set[int] = set()
        for node in self._nodes.values():
            with node.client() as client:
                stored, cas = client.gets(name, default=None, cas_default=None)
                # Who appends meanwhile makes this fail: the list is taken by the next call.
                if stored and client.cas(name, b"", cas, FOR_EVER):
                    found |= {int(each) for each in stored.split(b",") if each.isdigit()}
        return sorted(bucket for bucket in found if bucket < self.layout.buckets)

    def store_layout(self) -> None:
        """See `FloorStore.store_layout`; on every server, for lists of servers may differ."""
        for node in self._nodes.values():
            with node.client() as client:
                client.set(self.layout.layout_key(), self.layout.text, FOR_EVER, noreply=False)

    def lease(self, key_range: str, holder: bytes, lease_ms: int) -> bool:
        """See `FloorStore.lease`; memcached counts whole seconds."""
        name, lease_s = self.layout.lease_key(key_range), -(-lease_ms // 1000)
        with self._nodes[self.nodes[0]].client() as client:
            if client.add(name, holder, lease_s, noreply=False):
                return True
            stored, cas = client.gets(name, default=None, cas_default=None)
            return stored == holder and bool(client.cas(name, holder, cas, lease_s))

    def close(self) -> None:
        """See `FloorStore.close`."""
        for node in self._nodes.values():
            node.close()

    def _stored_floors(self, buckets: Sequence[int]) -> list[bytes | None]:
        found: dict[int, bytes | None] = dict.fromkeys(buckets)
        for node, part in self._parts(buckets):
            with node.client() as client:
                stored = client.get_many([self.layout.floor_key(bucket) for bucket in part])
            found |= {bucket: stored.get(self.layout.floor_key(bucket)) for bucket in part}
        return [found[bucket] for bucket in buckets]

    def _replace(self, floors: Mapping[int, tuple[bytes | None, bytes | None]]) -> set[int]:
        lost: set[int] = set()
        for node, part in self._parts(list(floors)):
            with node.client() as client:
                stored = client.gets_many([self.layout.floor_key(bucket) for bucket in part])
                for bucket in part:
                    name, (seen, new) = self.layout.floor_key(bucket), floors[bucket]
                    found, cas = stored.get(name, (None, None))
                    if found != seen:
                        is_done = False
                    elif new is None:
                        # Of a floor that was made meanwhile, too: its bucket is closed, and safe.
                        is_done = client.delete(name, noreply=False) is not None
                    elif seen is None:
                        is_done = client.add(name, new, FOR_EVER, noreply=False)
                    else:
                        is_done = replace_floor(client, node.name, name, new, cas)
                    if not is_done:
                        lost.add(bucket)
        return lost

    def _parts(self, buckets: Sequence[int]) -> Iterator[tuple[PinnedNode, list[int]]]:
        """Split buckets into requests to their servers."""
        for name, node in self._nodes.items():
            own = [bucket for bucket in buckets if self.node_of(bucket) == name]
            for at in range(0, len(own), FLOORS_MAX):
                yield node, own[at : at + FLOORS_MAX]


def open_client(url: str, cache: str, buckets: int, options: StoreOptions) -> Store:
    """See `open_store`."""
    return MemcachedStore(cache, url, buckets, options)


def open_floors(url: str, cache: str, buckets: int, options: StoreOptions) -> FloorStore:
    """See `open_floors` of `caching.stores.opening`."""
    return MemcachedFloors(cache, url, buckets, options)
