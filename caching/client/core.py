"""The decisions of a client, for threads and for asyncio: generators of the calls that wait.

`look_up` finds hits; `load` reads the database and fills in the values that are proven to be fresh.
A store that does not answer costs the cache, never the answer.
"""

import os
import random
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, NamedTuple

from caching.client.options import CacheOptions, Codec
from caching.client.reads import Counted, Counters, Read, ReadsRows, Recorder
from caching.errors import StoreError
from caching.protocol import CacheEntry, Hit, MissReason, Refusal, decide_fill, decide_hit
from caching.protocol.freshness import Tokens
from caching.protocol.stored_forms import ENTRY_NONCE_BYTES
from caching.reading.reader import ServerRole
from caching.steps import Call, Steps
from caching.stores.store import Announcement, EntryWrite, KeyChange, KeyState, Store
from credentials.per_process import PerProcess
from event_token import EventToken
from event_token.errors import UsageError

# A fill is decided on this often: more than the changes of one bucket during one fill.
FILL_ATTEMPTS = 3
# Values live up to this share shorter, so that those filled together do not end together.
TTL_JITTER = 0.1
# Checks for a value that another client loads, within `lease_ms`.
LEASE_LOOKS = 8
# Positions are looked at this often within `max_behind_s`, so that it is kept to a tenth.
POSITION_LOOKS = 10
# More keys than are refused at a time; those refused longest ago are dropped.
REFUSED_KEYS_MAX = 10_000

_REFUSED: Mapping[Refusal, Counted] = {
    Refusal.OLDER: "fills_refused_older",
    Refusal.UNKNOWN: "fills_refused_unknown",
    Refusal.UNCOVERED: "fills_refused_uncovered",
    Refusal.NO_FLOOR: "fills_refused_no_floor",
    Refusal.REPLACED: "fills_refused_replaced",
}
# Where a primary may do better than a replica.
_TOO_OLD = frozenset((Refusal.OLDER, Refusal.UNKNOWN))
# One client loads and the others wait where the slot has nothing that anybody wants.
_SHARED = frozenset((MissReason.ABSENT, MissReason.GENERATION, MissReason.LEASED))


class FoundValue(NamedTuple):
    """A hit with its value."""

    value: object
    hit: Hit


class Missed(NamedTuple):
    """A key that is no hit: its state, and why.

    `state` is None where the store was bypassed or did not answer; `reason` is None for a value
    that cannot be decoded.
    """

    state: KeyState | None
    reason: MissReason | None = None


@dataclass(frozen=True, slots=True)
class LoadedValue:
    """A value as it is stored (None: there is no such row), and what it is proven to hold.

    `is_stale`: it was removed from the cache by a change that it may lack.
    """

    encoded: bytes | None
    tokens: Tokens
    is_stale: bool = False


# Lets the application read values by key, through the `Read` that it is given.
Load = Callable[[Read], Steps[Mapping[str, object]]]

_NOT_READ = Missed(None)


class Core:
    """The decisions of one cache's clients in one process; any thread may use it.

    `read_class` and `sleep` are those for threads or for asyncio.
    """

    def __init__(
        self,
        store: Store,
        readers: ReadsRows,
        options: CacheOptions,
        codec: Codec,
        *,
        read_class: type[Read],
        sleep: Callable[[float], Any],
        primary_after: int,
        prefers_fresh: bool,
    ) -> None:
        """Connect to nothing."""
        self.options = options
        self.counters = Counters()
        self.readers = readers
        self._codec = codec
        self._store = store
        self._read_class = read_class
        self._sleep = sleep
        self._positions = PositionWatch(options.max_behind_s, time.monotonic)
        self._refused = RefusedKeys(primary_after)
        self._prefers_fresh = prefers_fresh
        self._fresh: dict[str, str] = {}  # by shard, the replica whose read was last filled in

    def find(self, key: str, newer_than: tuple[EventToken, ...]) -> Steps[FoundValue | Missed]:
        """Find one key in the store: as `look_up`, at half its cost."""
        node = self._store.node_of(self._store.layout.bucket(key))
        if not all(self._positions.is_current((node, each)) for each in self.options.key_ranges):
            return (yield from self.look_up((key,), newer_than))[0]
        try:
            [state] = yield from self._store.read((key,))
        except StoreError:
            self.counters.add("store_errors")
            return _NOT_READ
        found = self._decide(state, newer_than)
        if not isinstance(found, FoundValue):
            self.counters.add("misses")
            return found
        self.counters.add("hits")
        if found.hit.value is None:
            self.counters.add("negative_hits")
        return found

    def look_up(
        self, keys: Sequence[str], newer_than: tuple[EventToken, ...]
    ) -> Steps[list[FoundValue | Missed]]:
        """Find keys in the store."""
        behind = yield from self._keys_behind(keys)
        asked = keys
        if behind and self.options.on_behind == "bypass":
            asked = [key for key in keys if key not in behind]
            self.counters.add("bypassed", len(behind))
        try:
            states = (yield from self._store.read(asked)) if asked else []
        except StoreError:
            self.counters.add("store_errors")
            return [_NOT_READ] * len(keys)
        decided = (self._decide(state, newer_than) for state in states)
        found = dict(zip(asked, decided, strict=True))
        self._count(found, behind)
        return [found.get(key, _NOT_READ) for key in keys]

    def load(
        self,
        key: str,
        missed: Missed,
        newer_than: tuple[EventToken, ...],
        load: Load,
        *,
        takes_stale: bool = False,
    ) -> Steps[LoadedValue]:
        """Read a key that was no hit and fill it in, or find it filled by another client.

        `takes_stale`: rather than wait for that client, return the value that was last removed.
        """
        prepared = None
        try:
            if missed.reason is not MissReason.LEASED:
                prepared = yield from self._prepare_one(key, missed)
            if prepared is None and missed.reason in _SHARED:
                if takes_stale and (stale := (yield from self._stale(key, newer_than))):
                    return stale
                found = yield from self._wait(key, newer_than)
                if isinstance(found, FoundValue):
                    return LoadedValue(found.hit.value, found.hit.tokens)
                prepared = found
        except StoreError:
            self.counters.add("store_errors")
        values = yield from self._load({key: prepared}, newer_than, load)
        return values[key]

    def load_many(
        self, missed: Mapping[str, Missed], newer_than: tuple[EventToken, ...], load: Load
    ) -> Steps[dict[str, LoadedValue]]:
        """Read several keys at once and fill them in; other clients are not waited for."""
        prepared: dict[str, KeyState | None] = dict.fromkeys(missed)
        try:
            prepared |= yield from self._prepare(missed)
        except StoreError:
            self.counters.add("store_errors")
        return (yield from self._load(prepared, newer_than, load))

    def forget(self, keys: Sequence[str]) -> Steps[bool]:
        """Delete values; return whether the store did."""
        return (yield from self._try(self._store.forget(keys)))

    def invalidate(self, keys: Iterable[str], token: EventToken) -> Steps[bool]:
        """Apply a change of these keys; return whether the store did."""
        changes = [KeyChange(key, token) for key in keys]
        return (yield from self._try(self._store.invalidate(changes)))

    def decode(self, key: str, value: LoadedValue) -> object:
        """Return a loaded value as a hit returns it; UsageError if the codec cannot read it."""
        if value.encoded is None:
            return None
        try:
            return self._codec.decode(value.encoded)
        except Exception as error:
            raise UsageError(f"{key}: {self._codec.name} cannot read its value: {error}") from error

    def _encode(self, key: str, value: object) -> bytes | None:
        if value is None:
            return None
        try:
            return self._codec.encode(value)
        except Exception as error:
            raise UsageError(
                f"{key}: {self._codec.name} cannot encode its value ({error}); convert it in the "
                "loader, or choose another codec"
            ) from error

    def _decide(self, state: KeyState, newer_than: tuple[EventToken, ...]) -> FoundValue | Missed:
        clock = self._store.clock_uncertainty
        decision = decide_hit(state.floor, state.slot, clock, newer_than)
        if not isinstance(decision, Hit):
            return Missed(state, decision.reason)
        if decision.value is None:
            return FoundValue(None, decision)
        if decision.codec == self._codec.number:
            try:
                return FoundValue(self._codec.decode(decision.value), decision)
            except Exception:  # noqa: BLE001 - a class that was renamed raises anything
                self.counters.add("unreadable")
                return Missed(state)
        self.counters.add("unreadable")
        return Missed(state)

    def _count(self, found: Mapping[str, FoundValue | Missed], behind: Collection[str]) -> None:
        hits = {key: each.hit for key, each in found.items() if isinstance(each, FoundValue)}
        self.counters.add("hits", len(hits))
        self.counters.add("misses", len(found) - len(hits))
        self.counters.add("negative_hits", sum(hit.value is None for hit in hits.values()))
        self.counters.add("behind_hits", sum(key in behind for key in hits) if behind else 0)

    def _keys_behind(self, keys: Sequence[str]) -> Steps[Collection[str]]:
        """Return the keys whose node's position has not moved for too long (rule 16)."""
        places, due = [], []
        for key in keys:
            node = self._store.node_of(self._store.layout.bucket(key))
            for key_range in self.options.key_ranges:
                place = (node, key_range)
                places.append((key, place))
                if self._positions.is_due(place):
                    due.append(place)
        if due:
            try:
                stored = yield from self._store.positions(due)
                for place, position in zip(due, stored, strict=True):
                    self._positions.look(place, position)
            except StoreError:
                self.counters.add("store_errors")
        return [key for key, place in places if self._positions.is_behind(place)]

    def _prepare(self, missed: Mapping[str, Missed]) -> Steps[dict[str, KeyState | None]]:
        """Announce fills; leave out, or give None for, the keys that are not to be filled."""
        unfloored = [key for key, found in missed.items() if found.reason is MissReason.NO_FLOOR]
        if unfloored:
            self.counters.add("fills_refused_no_floor", len(unfloored))
            buckets = sorted({self._store.layout.bucket(key) for key in unfloored})
            yield from self._store.want_floors(buckets)
        lease_ms = self.options.lease_ms
        fills = [
            Announcement(key, found.state, lease_ms if found.reason in _SHARED else 0)
            for key, found in missed.items()
            if found.state is not None and found.reason is not MissReason.NO_FLOOR
        ]
        prepared = (yield from self._store.prepare(fills)) if fills else []
        return {each.key: state for each, state in zip(fills, prepared, strict=True)}

    def _prepare_one(self, key: str, missed: Missed) -> Steps[KeyState | None]:
        return (yield from self._prepare({key: missed})).get(key)

    def _stale(self, key: str, newer_than: tuple[EventToken, ...]) -> Steps[LoadedValue | None]:
        """Return the value that was last removed, if it is of the floor's generation."""
        found = self._decide((yield from self._store.read_stale(key)), newer_than)
        if not isinstance(found, FoundValue):
            return None
        self.counters.add("stale_hits")
        return LoadedValue(found.hit.value, found.hit.tokens, is_stale=True)

    def _wait(
        self, key: str, newer_than: tuple[EventToken, ...]
    ) -> Steps[FoundValue | KeyState | None]:
        """Wait for the client that loads a key now; then take its place, or read without filling.

        A client loads no longer than `lease_ms`, or another one takes over.
        """
        missed = _NOT_READ
        for _ in range(LEASE_LOOKS if self.options.lease_ms else 0):
            self.counters.add("lease_waits")
            yield Call(self._sleep, (self.options.lease_ms / 1_000 / LEASE_LOOKS,))
            [state] = yield from self._store.read([key])
            found = self._decide(state, newer_than)
            if isinstance(found, FoundValue):
                return found
            missed = found
            if missed.reason not in _SHARED:
                break
            if missed.reason is not MissReason.LEASED:
                prepared = yield from self._prepare_one(key, missed)
                if prepared is not None:
                    return prepared
        prepared = (yield from self._prepare_one(key, missed)) if missed.state is not None else None
        if prepared is None:
            self.counters.add("fills_refused_leased")
        return prepared

    def _load(
        self,
        prepared: Mapping[str, KeyState | None],
        newer_than: tuple[EventToken, ...],
        load: Load,
    ) -> Steps[dict[str, LoadedValue]]:
        needs_primary = any(self._refused.need_primary(key) for key in prepared)
        server: ServerRole = "primary" if needs_primary else "any"
        recorder = Recorder(newer_than)
        read = self._read_class(self.readers, recorder, self.counters, server, dict(self._fresh))
        started = time.monotonic()
        try:
            loaded = yield from load(read)
            tokens = recorder.tokens()
            values = {
                key: LoadedValue(self._encode(key, loaded.get(key)), tokens) for key in prepared
            }
        except Exception:
            announced = [(key, state) for key, state in prepared.items() if state is not None]
            for each in announced:  # one by one: a dead server keeps none on the others
                yield from self._try(self._store.release([each]))
            raise
        self.counters.add("loads")
        self.counters.add("load_seconds", time.monotonic() - started)
        yield from self._fill(
            {key: state for key, state in prepared.items() if state is not None},
            values,
            recorder.replicas,
        )
        return values

    def _prefer(self, replicas: Mapping[str, str], *, is_fresh: bool) -> None:
        """Remember the replicas that were new enough, or forget those that were not."""
        if not self._prefers_fresh:
            return
        if is_fresh:
            self._fresh |= replicas
            return
        for shard, replica in replicas.items():
            if self._fresh.get(shard) == replica:
                self._fresh.pop(shard, None)

    def _fill(
        self,
        prepared: Mapping[str, KeyState],
        values: Mapping[str, LoadedValue],
        replicas: Mapping[str, str],
    ) -> Steps[None]:
        """Fill values in; those that lose to a change of floor or slot are decided on again."""
        expected = dict(prepared)
        try:
            for _ in range(FILL_ATTEMPTS):
                writes = yield from self._decide_fills(prepared, expected, values, replicas)
                written = (yield from self._store.fill(writes)) if writes else []
                lost = []
                for write, is_written in zip(writes, written, strict=True):
                    if is_written:
                        self.counters.add("fills")
                        self._refused.clear(write.key)
                        self._prefer(replicas, is_fresh=True)
                    else:
                        lost.append(write.key)
                present = (yield from self._store.read_again(lost)) if lost else []
                expected = {k: s for k, s in zip(lost, present, strict=True) if s is not None}
                self.counters.add("fills_refused_changed", len(lost) - len(expected))
                if not expected:
                    return
            self.counters.add("fills_refused_changed", len(expected))
        except StoreError:
            self.counters.add("store_errors")

    def _decide_fills(
        self,
        prepared: Mapping[str, KeyState],
        expected: Mapping[str, KeyState],
        values: Mapping[str, LoadedValue],
        replicas: Mapping[str, str],
    ) -> Steps[list[EntryWrite]]:
        """Return the fills that are allowed, and release the other slots."""
        writes, refused = [], []
        for key, state in expected.items():
            value = values[key]
            decision = decide_fill(
                state.floor, state.slot, value.tokens, self._store.clock_uncertainty
            )
            if isinstance(decision, Refusal):
                self._refuse(key, decision, replicas)
                refused.append((key, prepared[key]))
            else:
                nonce, codec = os.urandom(ENTRY_NONCE_BYTES), self._codec.number
                entry = CacheEntry(decision.generation, nonce, value.tokens, codec, value.encoded)
                writes.append(EntryWrite(key, state, entry.to_bytes(), self._ttl_ms()))
        if refused:
            yield from self._store.release(refused)
        return writes

    def _ttl_ms(self) -> int:
        return int(self.options.ttl_s * 1_000 * (1 - TTL_JITTER * random.random()))  # noqa: S311

    def _refuse(self, key: str, refusal: Refusal, replicas: Mapping[str, str]) -> None:
        self.counters.add(_REFUSED[refusal])
        if refusal in _TOO_OLD:
            self._refused.add(key)
            self._prefer(replicas, is_fresh=False)

    def _try(self, steps: Steps[object]) -> Steps[bool]:
        try:
            yield from steps
        except StoreError:
            self.counters.add("store_errors")
            return False
        return True


class RefusedKeys:
    """Counts the refusals of each key in a row; after `primary_after`, its primary is read."""

    def __init__(self, primary_after: int) -> None:
        self._primary_after = primary_after
        self._counts: OrderedDict[str, int] = OrderedDict()
        self._lock = PerProcess(Lock)

    def add(self, key: str) -> None:
        """Count a refusal."""
        with self._lock.here():
            self._counts[key] = self._counts.pop(key, 0) + 1
            if len(self._counts) > REFUSED_KEYS_MAX:
                self._counts.popitem(last=False)

    def clear(self, key: str) -> None:
        """Forget the refusals of a key that was filled."""
        if self._counts:
            with self._lock.here():
                self._counts.pop(key, None)

    def need_primary(self, key: str) -> bool:
        """Return whether the key should be read from its primary."""
        return self._counts.get(key, 0) >= self._primary_after


@dataclass(slots=True)
class _Seen:
    position: bytes | None
    moved_at: float
    looked_at: float


class PositionWatch:
    """When each position was last seen to move, by the monotonic clock of this process.

    A position lies on a node, for a key range. One that does not exist does not move either.
    """

    def __init__(self, max_behind_s: float, clock: Callable[[], float]) -> None:
        self._max_behind_s = max_behind_s
        self._clock = clock
        self._seen: dict[tuple[str, str], _Seen] = {}

    def is_current(self, place: tuple[str, str]) -> bool:
        """Return whether a position is neither due to be looked at nor behind."""
        seen = self._seen.get(place)
        if seen is None:
            return False
        now = self._clock()
        is_due = now - seen.looked_at >= self._max_behind_s / POSITION_LOOKS
        return not is_due and now - seen.moved_at <= self._max_behind_s

    def is_due(self, place: tuple[str, str]) -> bool:
        """Return whether it is time to look at a position; the caller then does."""
        seen, now = self._seen.get(place), self._clock()
        if seen is None:
            self._seen[place] = _Seen(None, now, now)
            return True
        if now - seen.looked_at < self._max_behind_s / POSITION_LOOKS:
            return False
        seen.looked_at = now
        return True

    def look(self, place: tuple[str, str], position: bytes | None) -> None:
        """Note the position that is stored there now."""
        seen = self._seen[place]
        if position != seen.position:
            seen.position, seen.moved_at = position, self._clock()

    def is_behind(self, place: tuple[str, str]) -> bool:
        """Return whether the position has not moved for longer than allowed."""
        seen = self._seen.get(place)
        return seen is not None and self._clock() - seen.moved_at > self._max_behind_s
