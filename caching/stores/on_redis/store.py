"""Both sides of a store on Redis or Valkey: a client's, and the invalidator's."""

import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from caching.errors import CacheFindings, StoreError, version_number
from caching.protocol import CacheLayout, Placeholder
from caching.protocol.layout import GROUPS
from caching.protocol.stored_forms import PLACEHOLDER_NONCE_BYTES
from caching.steps import Steps, run_steps
from caching.stores.on_redis.connections import (
    FILL,
    LEASE,
    PREPARE,
    RELEASE,
    REPLACE,
    SWAP,
    SWAP_CLOSED,
    SWAP_KEEPING,
    SWAP_LOST,
    AsyncConnections,
    Command,
    Connections,
)
from caching.stores.on_redis.servers import PinnedServers, Servers
from caching.stores.store import (
    FLOORS_OPTIONS,
    ROUNDS_MAX,
    Announcement,
    BucketSwap,
    EntryWrite,
    FloorStore,
    Invalidated,
    KeyChange,
    KeyState,
    KnownFloor,
    KnownFloors,
    Store,
    StoreOptions,
    by_bucket,
    decide_swap,
)
from event_token import ClockUncertainty

NODES = tuple(str(group) for group in range(GROUPS))
# An invalidation reads only the head of a slot: generation and tokens of a hundred shards. A slot
# whose tokens are longer is removed without a look at them.
SLOT_HEAD_LAST = str(4_096 - 1)
# The first whose scripts replicate what they did, so that a replica has the same floors.
VERSION_MIN = (5,)


class RedisStore(Store):
    """A `Store` whose nodes are the groups of buckets, each in one slot of a cluster.

    `url`: `redis://`, `rediss://`, `unix://` or `redis+cluster://`, with options as redis-py reads
    them.
    """

    def __init__(
        self,
        layout: CacheLayout,
        url: str,
        options: StoreOptions = StoreOptions(),  # noqa: B008 - frozen
    ) -> None:
        """Connect to nothing yet. LayoutError on a URL that cannot be used."""
        self.layout = layout
        self.nodes = NODES
        self.is_async = options.is_async
        self._stale_ok_s = options.stale_ok_s
        self.clock_uncertainty = options.clock_uncertainty
        self._servers: Servers[AsyncConnections] | Servers[Connections] = (
            Servers(layout, url, AsyncConnections, options)
            if options.is_async
            else Servers(layout, url, Connections, options)
        )

    def read(self, keys: Sequence[str]) -> Steps[list[KeyState]]:
        """See `Store.read`: both of a key in one MGET, which is one step on the server."""
        commands = []
        for key in keys:
            group, floor, slot = self.layout.place(key)
            commands.append(Command(group, ("MGET", floor, slot)))
        replies = yield from self._servers.run(commands)
        return [KeyState(floor, slot) for floor, slot in replies]

    def read_stale(self, key: str) -> Steps[KeyState]:
        """See `Store.read_stale`."""
        group, floor, _ = self.layout.place(key)
        command = Command(group, ("MGET", floor, self.layout.stale_key(key)))
        [(stored, slot)] = yield from self._servers.run([command])
        return KeyState(stored, slot)

    def prepare(self, fills: Sequence[Announcement]) -> Steps[list[KeyState | None]]:
        """See `Store.prepare`."""
        commands: list[Command] = []
        placeholders: list[bytes] = []
        for key, seen, lease_ms in fills:
            if lease_ms:
                group, *names = self.layout.place(key)
                placeholder = Placeholder(os.urandom(PLACEHOLDER_NONCE_BYTES)).to_bytes()
                arguments = (seen.slot or b"", placeholder, str(lease_ms))
                commands.append(PREPARE.command(group, names, arguments))
                placeholders.append(placeholder)
        replies = yield from self._servers.run(commands)
        leased = zip(replies, placeholders, strict=True)
        prepared: list[KeyState | None] = []
        for _, seen, lease_ms in fills:
            if lease_ms:
                reply, placeholder = next(leased)
                prepared.append(None if reply == 0 else KeyState(reply[0], seen.slot, placeholder))
            else:
                prepared.append(seen)
        return prepared

    def fill(self, writes: Sequence[EntryWrite]) -> Steps[list[bool]]:
        """See `Store.fill`."""
        commands = []
        for key, expected, entry, ttl_ms in writes:
            group, *names = self.layout.place(key)
            slot = expected.version or expected.slot or b""
            floor = expected.floor or b"\0"  # no floor is stored as this: nothing is filled in
            commands.append(FILL.command(group, names, (floor, slot, entry, str(ttl_ms))))
        replies = yield from self._servers.run(commands)
        return [bool(reply) for reply in replies]

    def read_again(self, keys: Sequence[str]) -> Steps[list[KeyState | None]]:
        """See `Store.read_again`."""
        return [*(yield from self.read(keys))]

    def release(self, prepared: Sequence[tuple[str, KeyState]]) -> Steps[None]:
        """See `Store.release`."""
        commands = []
        for key, state in prepared:
            if state.version is not None:
                group, _, slot = self.layout.place(key)
                commands.append(RELEASE.command(group, (slot,), (state.version,)))
        yield from self._servers.run(commands)

    def forget(self, keys: Sequence[str]) -> Steps[None]:
        """See `Store.forget`."""
        commands = []
        for key in keys:
            group, _, slot = self.layout.place(key)
            stale = (self.layout.stale_key(key),) if self._stale_ok_s else ()
            commands.append(Command(group, ("DEL", slot, *stale)))
        yield from self._servers.run(commands)

    def want_floors(self, buckets: Iterable[int]) -> Steps[None]:
        """See `Store.want_floors`."""
        groups = {bucket: self.layout.group(bucket) for bucket in buckets}
        yield from self._servers.run(
            [
                Command(group, ("SADD", self.layout.wanted_key(group), str(bucket)))
                for bucket, group in groups.items()
            ]
        )

    def invalidate(self, changes: Iterable[KeyChange]) -> Steps[Invalidated]:
        """See `Store.invalidate`."""
        known, clock = KnownFloors(0), self.clock_uncertainty
        return (
            yield from invalidate(
                self.layout, self._servers, changes, self._stale_ok_s, known, clock
            )
        )

    def positions(self, places: Sequence[tuple[str, str]]) -> Steps[list[bytes | None]]:
        """See `Store.positions`."""
        replies = yield from self._servers.run(
            [
                Command(int(node), ("GET", self.layout.position_key(int(node), key_range)))
                for node, key_range in places
            ]
        )
        return [None if reply is None else bytes(reply) for reply in replies]

    def check(self) -> Steps[CacheFindings]:
        """See `Store.check`: once per server, by its run id."""
        found = CacheFindings()
        infos = yield from self._servers.run(
            [Command(group, ("INFO", "server")) for group in range(GROUPS)]
        )
        servers: dict[str, tuple[int, dict[str, str]]] = {}
        for group, text in enumerate(infos):
            facts = _facts(text)
            servers.setdefault(facts.get("run_id", ""), (group, facts))
        for group, facts in servers.values():
            replication, memory, _ = yield from self._servers.run(
                [
                    Command(group, ("INFO", "replication")),
                    Command(group, ("INFO", "memory")),
                    Command(group, ("EVAL", "return 1", "0")),
                ]
            )
            found.add(
                check_server(
                    f"Redis server {self._servers.name_of(group)}",
                    facts | _facts(replication + memory),
                    is_cluster=self._servers.is_cluster,
                )
            )
        if found.problems:  # a member of a cluster, for one, may not have this key
            return found
        [stored] = yield from self._servers.run([Command(0, ("GET", self.layout.layout_key()))])
        found.layout = None if stored is None else bytes(stored).decode(errors="replace")
        return found

    def close(self) -> Steps[None]:
        """See `Store.close`."""
        return self._servers.close()


def invalidate(
    layout: CacheLayout,
    servers: Servers[Any],
    changes: Iterable[KeyChange],
    stale_ok_s: int,
    known: KnownFloors,
    clock: ClockUncertainty,
) -> Steps[Invalidated]:
    """See `Store.invalidate`: read all buckets, swap all, and again those that lost.

    Floors that are `known` are not read.
    """
    waiting = by_bucket(layout, changes)
    raised = removed = repeats = 0
    closed: set[int] = set()
    for _ in range(ROUNDS_MAX):
        if not waiting:
            return Invalidated(raised, removed, repeats, frozenset(closed))
        swaps = yield from _decide(layout, servers, waiting, known, clock)
        closed |= waiting.keys() - {swap.bucket for swap in swaps}
        replies = yield from servers.run([swap_command(layout, swap, stale_ok_s) for swap in swaps])
        lost = set()
        for swap, reply in zip(swaps, replies, strict=True):
            known.forget(swap.bucket)
            if reply == SWAP_LOST:
                lost.add(swap.bucket)
            elif reply == SWAP_CLOSED or swap.floor is None:
                closed.add(swap.bucket)
            else:
                raised += swap.floor != swap.seen
                removed += reply
                if swap.raised is not None:
                    known.note(swap.bucket, KnownFloor(swap.floor, swap.raised))
        repeats += len(lost)
        waiting = {bucket: waiting[bucket] for bucket in waiting if bucket in lost}
    bucket = next(iter(waiting))
    raise StoreError(
        str(layout.group(bucket)), f"bucket {bucket} changed {ROUNDS_MAX} times in a row"
    )


def swap_command(layout: CacheLayout, swap: BucketSwap, stale_ok_s: int = 0) -> Command:
    """Return the command that carries a swap out, and keeps removed values for `stale_ok_s`."""
    slots = [layout.slot_key(key) for key in (*swap.kept, *swap.removed)]
    keys = [layout.floor_key(swap.bucket), *slots]
    args = (swap.seen, swap.floor or b"", *swap.kept.values())
    group = layout.group(swap.bucket)
    if stale_ok_s:
        keys += [layout.stale_key(key) for key in swap.removed]
        return SWAP_KEEPING.command(group, keys, (*args, str(stale_ok_s * 1_000)))
    return SWAP.command(group, keys, args)


def _decide(
    layout: CacheLayout,
    servers: Servers[Any],
    waiting: dict[int, list[KeyChange]],
    known: KnownFloors,
    clock: ClockUncertainty,
) -> Steps[list[BucketSwap]]:
    commands = []
    asked = []
    for bucket, changes in waiting.items():
        group = layout.group(bucket)
        floor, keys = known.get(bucket), list(dict.fromkeys(each.key for each in changes))
        if floor is None:
            commands.append(Command(group, ("GET", layout.floor_key(bucket))))
        for key in keys:
            head = ("GETRANGE", layout.slot_key(key), "0", SLOT_HEAD_LAST)
            commands.append(Command(group, head))
        asked.append((bucket, floor, keys))
    replies = iter((yield from servers.run(commands)))
    swaps = []
    for bucket, floor, keys in asked:
        stored = next(replies) if floor is None else floor.stored
        slots = {key: next(replies) or None for key in keys}
        present = None if floor is None else floor.floor
        swap = decide_swap(bucket, waiting[bucket], stored, slots, clock, present)
        if swap is not None:
            swaps.append(swap)
    return swaps


def check_server(where: str, facts: dict[str, str], *, is_cluster: bool) -> CacheFindings:
    """Check a server by the fields of its INFO. Pure."""
    found = CacheFindings()
    version = facts.get("redis_version", "")
    if version_number(version) < VERSION_MIN:
        found.problems.append(f"{where}: version {version}. Fix: Redis 5 or newer, or Valkey")
    mode = facts.get("redis_mode") or facts.get("server_mode")  # the name of it in Valkey
    if mode == "cluster" and not is_cluster:
        found.problems.append(
            f"{where}: it is a member of a Redis Cluster. Fix: a URL that begins with "
            f"redis+cluster://"
        )
    if facts.get("role") == "slave":
        found.problems.append(
            f"{where}: it is a replica of {facts.get('master_host')}:{facts.get('master_port')}. "
            f"Fix: name the primary"
        )
    policy = facts.get("maxmemory_policy", "")
    if policy.startswith("allkeys-"):
        found.warnings.append(
            f"{where}: maxmemory-policy={policy} also evicts floors, and then no value of their "
            f"buckets is a hit until they are recreated. Fix: CONFIG SET maxmemory-policy "
            f"volatile-lru (values alone have a TTL)"
        )
    return found


def _facts(text: bytes) -> dict[str, str]:
    lines = bytes(text).decode(errors="replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


# As many as there are buckets by default: some tens of MB.
FLOORS_KNOWN = 16_384
# Wanted buckets that one call takes of a group; the others are taken by the next call.
WANTED_MAX = 1_000


class RedisFloors(FloorStore):
    """A `FloorStore` whose nodes are the groups of buckets."""

    def __init__(
        self, layout: CacheLayout, url: str, options: StoreOptions = FLOORS_OPTIONS
    ) -> None:
        """Connect to nothing yet. LayoutError on a URL that cannot be used."""
        self.layout = layout
        self.nodes = NODES
        self._stale_ok_s = options.stale_ok_s
        self.clock_uncertainty = options.clock_uncertainty
        self._known = KnownFloors(FLOORS_KNOWN)
        self._servers = PinnedServers(layout, url, options)

    def resume(self, key_range: str) -> dict[str, bytes | None]:
        """See `FloorStore.resume`."""
        commands = [
            Command(group, ("GET", self.layout.position_key(group, key_range)))
            for group in range(len(NODES))
        ]
        return {str(group): reply for group, reply in self._servers.resume(commands).items()}

    def publish(
        self, key_range: str, positions: Mapping[str, tuple[bytes | None, bytes]]
    ) -> dict[str, bytes | None]:
        """See `FloorStore.publish`."""
        commands = []
        for node, (seen, new) in positions.items():
            key = self.layout.position_key(int(node), key_range)
            commands.append(REPLACE.command(int(node), (key,), (seen or b"", new)))
        replies = run_steps(self._servers.run(commands))
        return {
            node: reply[0] for node, reply in zip(positions, replies, strict=True) if reply != 1
        }

    def invalidate(self, changes: Iterable[KeyChange]) -> Invalidated:
        """See `FloorStore.invalidate`."""
        known, clock = self._known, self.clock_uncertainty
        return run_steps(
            invalidate(self.layout, self._servers, changes, self._stale_ok_s, known, clock)
        )

    def wanted(self) -> list[int]:
        """See `FloorStore.wanted`."""
        keys = [self.layout.wanted_key(group) for group in range(len(NODES))]
        commands = [
            Command(group, ("SPOP", key, str(WANTED_MAX))) for group, key in enumerate(keys)
        ]
        named = [int(bucket) for bucket in chain(*run_steps(self._servers.run(commands)))]
        return [bucket for bucket in named if 0 <= bucket < self.layout.buckets]

    def store_layout(self) -> None:
        """See `FloorStore.store_layout`."""
        command = Command(0, ("SET", self.layout.layout_key(), self.layout.text))
        run_steps(self._servers.run([command]))

    def lease(self, key_range: str, holder: bytes, lease_ms: int) -> bool:
        """See `FloorStore.lease`."""
        key = self.layout.lease_key(key_range)
        return run_steps(
            self._servers.run([LEASE.command(0, (key,), (holder, str(lease_ms)))])
        ) == [1]

    def close(self) -> None:
        """See `FloorStore.close`."""
        run_steps(self._servers.close())

    def _stored_floors(self, buckets: Sequence[int]) -> list[bytes | None]:
        keys = {bucket: self.layout.floor_key(bucket) for bucket in buckets}
        commands = [Command(self.layout.group(each), ("GET", keys[each])) for each in buckets]
        return run_steps(self._servers.run(commands))

    def _replace(self, floors: Mapping[int, tuple[bytes | None, bytes | None]]) -> set[int]:
        commands = []
        for bucket, (seen, new) in floors.items():
            if seen is not None:
                commands.append(swap_command(self.layout, BucketSwap(bucket, seen, new, (), {})))
            elif new is not None:
                key = self.layout.floor_key(bucket)
                commands.append(REPLACE.command(self.layout.group(bucket), (key,), (b"", new)))
        replies = run_steps(self._servers.run(commands))
        return {
            bucket
            for bucket, reply in zip(floors, replies, strict=True)
            if isinstance(reply, list) or reply in {SWAP_LOST, SWAP_CLOSED}
        }


def open_client(url: str, cache: str, buckets: int, options: StoreOptions) -> Store:
    """See `open_store`."""
    return RedisStore(CacheLayout(cache, buckets), url, options)


def open_floors(url: str, cache: str, buckets: int, options: StoreOptions) -> FloorStore:
    """See `open_floors` of `caching.stores.opening`."""
    return RedisFloors(CacheLayout(cache, buckets), url, options)
