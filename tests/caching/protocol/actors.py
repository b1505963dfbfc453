"""The processes of the cache model: fillers and invalidators, one store operation per step.

`left_out` names rules of the protocol that an actor does not keep; the tests show that each such
history is caught.
"""

import itertools
import json
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field

from caching.protocol import (
    CacheEntry,
    Fill,
    Floor,
    Hit,
    Placeholder,
    Refusal,
    decide_fill,
    decide_hit,
    parse_slot,
)
from caching.protocol.freshness import oldest
from event_token import EventToken, Order, compare
from tests.caching.protocol.database import Change, Database, Server
from tests.caching.protocol.invalidation import Invalidation, decide_invalidation
from tests.caching.protocol.store import ConnectionLost, Node
from tests.caching.protocol.tokens import TRUSTED

# Which rows an entry is made of. `pair` is a composite of two shards; `r20` and `r60` share a
# bucket, and part at the split.
ROWS = {"k20": ("r20",), "k60": ("r60",), "ka0": ("ra0",), "pair": ("r20", "ra0")}
BUCKETS = {"k20": 0, "k60": 0, "ka0": 1, "pair": 1}
NODE_OF_BUCKET = {0: 0, 1: 1}
POSITION = "pos"
CLAIM_BYTE = 0x43

Steps = Iterator[None]
# The token of an own write, its row, and the row's version by it.
OwnWrite = tuple[EventToken, str, int]


def keys_of(rows: dict[str, int]) -> list[str]:
    """The cache keys that a change of these rows touches."""
    return [key for key, parts in ROWS.items() if any(row in rows for row in parts)]


def floor_name(bucket: int) -> str:
    """The name of a bucket's floor."""
    return f"f{bucket}"


@dataclass
class World:
    """The database, the nodes, and what the invariants need to know."""

    database: Database = field(default_factory=Database)
    nodes: list[Node] = field(default_factory=lambda: [Node(), Node()])
    left_out: frozenset[str] = frozenset()
    applied: dict[str, dict[str, int]] = field(default_factory=lambda: {key: {} for key in ROWS})
    applied_at_save: dict[int, dict[str, dict[str, int]]] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    hits: int = 0
    fills: int = 0
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def node(self, key: str) -> Node:
        """The node of a cache key."""
        return self.nodes[NODE_OF_BUCKET[BUCKETS[key]]]

    def random_bytes(self, count: int) -> bytes:
        """Bytes that were never given out before."""
        return next(self._numbers).to_bytes(count)

    def keeps(self, rule: str) -> bool:
        """Tell whether the actors keep a rule."""
        return rule not in self.left_out

    def save(self, number: int) -> None:
        """Take a snapshot of a node, with what was applied by then."""
        self.nodes[number].save()
        self.applied_at_save[number] = {key: dict(rows) for key, rows in self.applied.items()}

    def restore(self, number: int) -> None:
        """Restart a node from its snapshot: what was applied to it since then is undone."""
        self.nodes[number].restore()
        saved = self.applied_at_save.get(number, {})
        for key, bucket in BUCKETS.items():
            if NODE_OF_BUCKET[bucket] == number:
                self.applied[key] = dict(saved.get(key, {}))

    def check_hit(self, key: str, value: bytes | None, newer_than: list[OwnWrite]) -> None:
        """SAFE: a hit holds every applied change. OWN: it holds the reader's own writes."""
        self.hits += 1
        versions = json.loads(value or b"{}")
        for row, applied in self.applied[key].items():
            if versions[row] < applied:
                self.violations.append(f"SAFE: {key} has {row}@{versions[row]} after @{applied}")
        for _, row, version in newer_than:
            if row in versions and versions[row] < version:
                self.violations.append(f"OWN: {key} has {row}@{versions[row]} after @{version}")


def read_steps(
    world: World, key: str, servers: dict[str, Server]
) -> Generator[None, None, CacheEntry]:
    """Read the rows of a key, each on its server; yield between steps, return the entry."""
    tokens: list[EventToken] = []
    versions: dict[str, int] = {}
    for row in ROWS[key]:
        if world.keeps("1"):
            tokens.append(servers[row].token())
            yield
        versions[row] = servers[row].version(row)
        yield
        if not world.keeps("1"):
            tokens.append(servers[row].token())
    value = json.dumps(versions).encode()
    return CacheEntry(b"", world.random_bytes(8), oldest(tokens), 0, value)


def hit_of(world: World, key: str, own: list[OwnWrite]) -> Hit | None:
    """Look up a key; both reads are one step."""
    contents = world.node(key).contents
    floor, slot = contents.get(floor_name(BUCKETS[key])), contents.get(key)
    newer_than = [token for token, _, _ in own] if world.keeps("15") else []
    found = decide_hit(floor, slot, TRUSTED, newer_than)
    if not world.keeps("3"):
        entry = parse_slot(slot)
        if isinstance(entry, CacheEntry) and slot is not None:
            found = Hit(entry.codec, entry.value, slot)
    if isinstance(found, Hit):
        world.check_hit(key, found.value, own)
        return found
    return None


def checked(
    world: World, floor: bytes | None, slot: bytes | None, read: CacheEntry
) -> Fill | Refusal:
    """The decision about a fill, without the rules that are left out."""
    decision = decide_fill(floor, slot, read.tokens, TRUSTED)
    present = Floor.parse(floor)
    if present is not None and (
        (decision is Refusal.REPLACED and not world.keeps("5"))
        or (decision is not Refusal.REPLACED and not world.keeps("4-fresh"))
    ):
        return Fill(present.generation)
    return decision


def filled(world: World, key: str, slot: bytes | None, entry: CacheEntry) -> None:
    """Count a fill; BACK: a live value is not replaced by what an older read brought."""
    world.fills += 1
    before = parse_slot(slot)
    if isinstance(before, CacheEntry) and before.generation == entry.generation:
        for shard in before.tokens.keys() & entry.tokens.keys():
            if compare(entry.tokens[shard], before.tokens[shard]) is Order.OLDER:
                world.violations.append(f"BACK: {key} on shard {shard}")


def redis_client(world: World, key: str, servers: dict[str, Server], own: list[OwnWrite]) -> Steps:
    """Get a key and fill it: judge, then write if floor and slot are still the same bytes."""
    if hit_of(world, key, own) is not None:
        return
    yield
    entry = yield from read_steps(world, key, servers)
    contents = world.node(key).contents
    name = floor_name(BUCKETS[key])
    floor, slot = contents.get(name), contents.get(key)
    decision = checked(world, floor, slot, entry)
    yield
    if isinstance(decision, Fill):
        written = CacheEntry(decision.generation, entry.nonce, entry.tokens, 0, entry.value)
        expected = {name: floor, key: slot} if world.keeps("4-cas") else {}
        if world.node(key).replace(expected, {key: written.to_bytes()}):
            filled(world, key, slot, written)


def memcached_client(
    world: World, key: str, servers: dict[str, Server], own: list[OwnWrite]
) -> Steps:
    """Get a key and fill it: placeholder, then floor, then the read, then compare-and-set."""
    if hit_of(world, key, own) is not None:
        return
    yield
    node, name = world.node(key), floor_name(BUCKETS[key])
    floor = node.contents.get(name)
    if not world.keeps("4-placeholder-first"):
        yield
    placeholder = Placeholder(world.random_bytes(16)).to_bytes()
    before = node.contents.get(key)
    if not node.replace({key: before}, {key: placeholder}):
        return
    if world.keeps("4-placeholder-first"):
        yield
        floor = node.contents.get(name)
    yield
    entry = yield from read_steps(world, key, servers)
    decision = checked(world, floor, before, entry)
    if isinstance(decision, Fill):
        written = CacheEntry(decision.generation, entry.nonce, entry.tokens, 0, entry.value)
        if node.replace({key: placeholder}, {key: written.to_bytes()}):
            filled(world, key, before, written)


class Invalidator:
    """Applies the changes of all shards, in the order of each log, to every node."""

    def __init__(self, world: World, *, in_two_steps: bool, changes_back: int = 0) -> None:
        """Start some changes before the stored position.

        `in_two_steps` raises the floor and deletes the value apart, as on memcached.
        """
        self.changes_back = changes_back
        self.world = world
        self.in_two_steps = in_two_steps
        self.epochs = [-1, -1]
        self.position: dict[str, int] = {}

    def run(self) -> Steps:
        """Apply changes until stopped: reconnect wherever a node was restarted."""
        while True:
            try:
                yield from self._apply_all()
            except ConnectionLost:
                yield

    def is_idle(self) -> bool:
        """Tell whether all that is in the logs has been applied on live connections."""
        shards = self.world.database.shards
        return self.epochs == [node.epoch for node in self.world.nodes] and all(
            self.position.get(name, 0) == len(shard.log) for name, shard in shards.items()
        )

    def _apply_all(self) -> Steps:
        yield from self._connect()
        while True:
            for name in list(self.world.database.shards):
                shard, at = self.world.database.shards[name], self.position.get(name, 0)
                if at < len(shard.log):
                    if not self.world.keeps("8"):
                        self._publish({**self.position, name: at + 1})
                        yield
                    yield from self._apply(shard.log[at])
                    self.position[name] = at + 1
            yield
            self._publish(self.position)
            yield from self._make_wanted()

    def _connect(self) -> Steps:
        """Read the position of each node and go on from the earliest (rules 10 and 11)."""
        restarted = [
            number for number, node in enumerate(self.world.nodes)
            if self.epochs[number] != node.epoch
        ]  # fmt: skip
        positions = [self.position] if len(restarted) < len(self.world.nodes) else []
        for number in restarted:
            node = self.world.nodes[number]
            self.epochs[number] = node.epoch
            stored = node.contents.get(POSITION)
            found = json.loads(stored) if stored is not None else self._ends()
            if stored is None and self.world.keeps("10"):
                yield from self._renew_all(number)
                node.contents[POSITION] = json.dumps(found).encode()
            positions.append(found)
            yield
        if self.world.keeps("11") or not self.position:
            self.position = {
                shard: max(0, min(at.get(shard, 0) for at in positions) - self.changes_back)
                for shard in self.world.database.shards
            }
            self.changes_back = 0

    def _ends(self) -> dict[str, int]:
        return {name: len(shard.log) for name, shard in self.world.database.shards.items()}

    def _node(self, bucket: int) -> Node:
        number = NODE_OF_BUCKET[bucket]
        if self.world.nodes[number].epoch != self.epochs[number]:
            raise ConnectionLost
        return self.world.nodes[number]

    def _publish(self, position: dict[str, int]) -> None:
        """Publish the position on every node; one that has none gets rule 10 by a reconnect."""
        for bucket, number in NODE_OF_BUCKET.items():
            node = self._node(bucket)
            stored = node.contents.get(POSITION)
            if stored is None and self.world.keeps("10"):
                self.epochs[number] = -1
                raise ConnectionLost
            newest = json.loads(stored or b"{}")
            if all(newest.get(shard, 0) <= at for shard, at in position.items()):
                node.contents[POSITION] = json.dumps(position).encode()

    def _apply(self, change: Change) -> Steps:
        if change.begins and self.world.keeps("12"):
            for bucket in NODE_OF_BUCKET:
                yield from self._raise_floor(bucket, change.token)
        if change.is_ddl:
            if self.world.keeps("13"):
                for bucket in NODE_OF_BUCKET:
                    yield from self._raise_floor(bucket, change.token, renew=True)
        else:
            for key in keys_of(change.rows):
                yield from self._invalidate(key, change.token)
        for key in keys_of(change.rows):
            for row in ROWS[key]:
                if row in change.rows:
                    version = max(self.world.applied[key].get(row, 0), change.rows[row])
                    self._node(BUCKETS[key])
                    self.world.applied[key][row] = version

    def _raise_floor(self, bucket: int, token: EventToken, *, renew: bool = False) -> Steps:
        while True:
            node, name = self._node(bucket), floor_name(bucket)
            stored = node.contents.get(name)
            floor = Floor.parse(stored)
            if floor is None:
                self._drop_claim(name, stored, node)
                return
            generation = self.world.random_bytes(16)
            raised = floor.renewed(generation, token) if renew else floor.raised(token)
            yield
            if self._node(bucket).replace({name: stored}, {name: raised.to_bytes()}):
                return

    def _invalidate(self, key: str, token: EventToken) -> Steps:
        name = floor_name(BUCKETS[key])
        while True:
            contents = self._node(BUCKETS[key]).contents
            floor, slot = contents.get(name), contents.get(key)
            decision = self._decide(floor, slot, token)
            yield
            node = self._node(BUCKETS[key])
            if decision is None or not self.world.keeps("6-floor"):
                # No floor: the bucket is closed until it is made at the end of the logs.
                if node.replace({name: floor, key: slot}, {key: None}):
                    self._drop_claim(name, floor, node)
                    return
                continue
            writes: dict[str, bytes | None] = {name: decision.floor}
            if not self.in_two_steps:
                writes |= {key: None} if decision.remove else {}
                if node.replace({name: floor, key: slot}, writes):
                    return
                continue
            if not self.world.keeps("6-order"):
                node.replace({}, {key: None} if decision.remove else {})
                yield
                if self._node(BUCKETS[key]).replace({name: floor}, writes):
                    return
                continue
            if node.replace({name: floor}, writes):
                yield
                yield from self._remove(key, token)
                return

    def _drop_claim(self, name: str, stored: bytes | None, node: Node) -> None:
        """Take away the claim of a floor that is being made: its ends may lack the change."""
        if stored is not None and stored[0] == CLAIM_BYTE:
            node.replace({name: stored}, {name: None})

    def _remove(self, key: str, token: EventToken) -> Steps:
        """Delete the value as it is now, unless it holds the change."""
        contents = self._node(BUCKETS[key]).contents
        decision = self._decide(contents.get(floor_name(BUCKETS[key])), contents.get(key), token)
        if decision is None or decision.remove:
            contents.pop(key, None)
        yield

    def _decide(
        self, floor: bytes | None, slot: bytes | None, token: EventToken
    ) -> Invalidation | None:
        decision = decide_invalidation(floor, slot, token)
        if decision is not None and not self.world.keeps("7"):
            present = Floor.parse(floor)
            assert present is not None
            tokens = {**present.tokens, token.shard: token}
            return Invalidation(Floor(present.generation, tokens).to_bytes(), decision.remove)
        if decision is not None and not self.world.keeps("6-remove"):
            return Invalidation(decision.floor, remove=False)
        return decision

    def _made_floor(self) -> Floor:
        """A floor at the end of each log that serves, as it is now (rule 9)."""
        shards = self.world.database.shards
        tokens = {name: shard.end() for name, shard in shards.items()}
        if not self.world.keeps("9"):
            tokens = {
                name: shard.log[self.position.get(name, 0) - 1].token
                for name, shard in shards.items()
                if self.position.get(name, 0)
            }
        if {"-40", "40-80"} <= tokens.keys():
            tokens.pop("-80", None)
        return Floor(self.world.random_bytes(16), tokens)

    def _make_wanted(self) -> Steps:
        for bucket in NODE_OF_BUCKET:
            name = floor_name(bucket)
            stored = self._node(bucket).contents.get(name)
            if Floor.parse(stored) is None:
                claim = stored
                if claim is None and self.world.keeps("9-claim"):
                    claim = bytes([CLAIM_BYTE]) + self.world.random_bytes(16)
                    self._node(bucket).add(name, claim)
                yield
                made = self._made_floor().to_bytes()
                yield
                self._node(bucket).replace({name: claim}, {name: made})

    def _renew_all(self, number: int) -> Steps:
        """Give all floors of a node new generations, at the end of the logs."""
        for bucket, owner in NODE_OF_BUCKET.items():
            if owner == number:
                made = self._made_floor().to_bytes()
                yield
                self._node(bucket).contents[floor_name(bucket)] = made
