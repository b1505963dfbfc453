"""The decisions of a client, without a store, a thread or a clock: generators of steps.

`look_up` finds hits; `load` reads the database and fills in what it is proven to be allowed to. A
store that does not answer costs the cache, never the answer.
"""

import os
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from caching.client.answers import Found, Missed, Value
from caching.client.codecs import Codec
from caching.client.counters import Counted, Counters
from caching.client.options import CacheOptions
from caching.client.positions import PositionWatch
from caching.client.refusals import RefusedKeys
from caching.client.steps import Load, Loaded, Pause, ServerChoice, Steps, StoreCall, each
from caching.errors import StoreError
from caching.protocol import Entry, Hit, MissReason, Refusal, decide_fill, decide_hit
from caching.protocol.entry import ENTRY_NONCE_BYTES
from caching.stores.store import AsyncStore, KeyChange, Pair, Store
from event_token import EventToken
from event_token.errors import UsageError

# A fill is decided on this often: more than the changes of one bucket during one fill.
FILL_ATTEMPTS = 3
# Values live up to this share shorter, so that those filled together do not end together.
TTL_JITTER = 0.1
# Looks at a value that another client loads, within `lease_ms`.
LEASE_LOOKS = 8

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


_NOT_READ = Missed(None)


class Core:
    """The decisions of one cache's clients in one process; any thread may use it."""

    def __init__(
        self,
        store: Store | AsyncStore,
        options: CacheOptions,
        codec: Codec,
        *,
        primary_after: int,
        prefers_fresh: bool,
        clock: Callable[[], float],
    ) -> None:
        """The store is only asked where keys lie; `clock` gives monotonic seconds."""
        self.options = options
        self.counters = Counters()
        self._codec = codec
        self._store = store
        self._clock = clock
        self._positions = PositionWatch(options.max_behind_s, clock)
        self._refused = RefusedKeys(primary_after)
        self._prefers_fresh = prefers_fresh
        self._fresh: dict[str, str] = {}  # by shard, the replica whose read was last filled in

    def find(self, key: str, newer_than: tuple[EventToken, ...]) -> Steps[Found | Missed]:
        """Return what the store has of a key: `look_up` of one, at half its cost."""
        node = self._store.node_of(self._store.layout.bucket(key))
        if not all(self._positions.is_current((node, each)) for each in self.options.key_ranges):
            return (yield from self.look_up((key,), newer_than))[0]
        try:
            [pair] = yield StoreCall("read", ((key,),))
        except StoreError:
            self.counters.add("store_errors")
            return _NOT_READ
        found = self._decide(pair, newer_than)
        if not isinstance(found, Found):
            self.counters.add("misses")
            return found
        self.counters.add("hits")
        if found.hit.value is None:
            self.counters.add("negative_hits")
        return found

    def look_up(
        self, keys: Sequence[str], newer_than: tuple[EventToken, ...]
    ) -> Steps[list[Found | Missed]]:
        """Return what the store has of each key."""
        behind = yield from self._keys_behind(keys)
        asked = keys
        if behind and self.options.on_behind == "bypass":
            asked = [key for key in keys if key not in behind]
            self.counters.add("bypassed", len(behind))
        try:
            pairs: list[Pair] = (yield StoreCall("read", (asked,))) if asked else []
        except StoreError:
            self.counters.add("store_errors")
            return [_NOT_READ] * len(keys)
        found = dict(zip(asked, (self._decide(pair, newer_than) for pair in pairs), strict=True))
        self._count(found, behind)
        return [found.get(key, _NOT_READ) for key in keys]

    def load(
        self,
        key: str,
        missed: Missed,
        newer_than: tuple[EventToken, ...],
        *,
        takes_stale: bool = False,
    ) -> Steps[Value]:
        """Read a key that was no hit and fill it in, or find it filled by another client.

        `takes_stale`: rather than wait for that client, return what was last removed.
        """
        prepared = None
        try:
            if missed.reason is not MissReason.LEASED:
                prepared = yield from self._prepare_one(key, missed)
            if prepared is None and missed.reason in _SHARED:
                if takes_stale and (stale := (yield from self._stale(key, newer_than))):
                    return stale
                found = yield from self._wait(key, newer_than)
                if isinstance(found, Found):
                    return Value(found.hit.value, found.hit.tokens)
                prepared = found
        except StoreError:
            self.counters.add("store_errors")
        values = yield from self._load({key: prepared}, newer_than)
        return values[key]

    def load_many(
        self, missed: Mapping[str, Missed], newer_than: tuple[EventToken, ...]
    ) -> Steps[dict[str, Value]]:
        """Read several keys at once and fill them in; other clients are not waited for."""
        prepared: dict[str, Pair | None] = dict.fromkeys(missed)
        try:
            prepared |= yield from self._prepare(missed)
        except StoreError:
            self.counters.add("store_errors")
        return (yield from self._load(prepared, newer_than))

    def forget(self, keys: Sequence[str]) -> Steps[bool]:
        """Delete values; tell whether the store did."""
        return (yield from self._try(StoreCall("forget", (keys,))))

    def invalidate(self, keys: Iterable[str], token: EventToken) -> Steps[bool]:
        """Apply a change of these keys; tell whether the store did."""
        changes = [KeyChange(key, token) for key in keys]
        return (yield from self._try(StoreCall("invalidate", (changes,))))

    def decode(self, key: str, value: Value) -> object:
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

    def _decide(self, pair: Pair, newer_than: tuple[EventToken, ...]) -> Found | Missed:
        decision = decide_hit(pair.floor, pair.slot, newer_than)
        if not isinstance(decision, Hit):
            return Missed(pair, decision.reason)
        if decision.value is None:
            return Found(None, decision)
        if decision.codec == self._codec.number:
            try:
                return Found(self._codec.decode(decision.value), decision)
            except Exception:  # noqa: BLE001 - a class that was renamed raises anything
                self.counters.add("unreadable")
                return Missed(pair)
        self.counters.add("unreadable")
        return Missed(pair)

    def _count(self, found: Mapping[str, Found | Missed], behind: Collection[str]) -> None:
        hits = {key: each.hit for key, each in found.items() if isinstance(each, Found)}
        if hits:
            self.counters.add("hits", len(hits))
        if len(found) > len(hits):
            self.counters.add("misses", len(found) - len(hits))
        negative = sum(hit.value is None for hit in hits.values())
        if negative:
            self.counters.add("negative_hits", negative)
        if behind:
            self.counters.add("behind_hits", sum(key in behind for key in hits))

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
                for place, position in zip(due, (yield from each("position", due)), strict=True):
                    self._positions.look(place, position)
            except StoreError:
                self.counters.add("store_errors")
        return [key for key, place in places if self._positions.is_behind(place)]

    def _prepare(self, missed: Mapping[str, Missed]) -> Steps[dict[str, Pair | None]]:
        """Announce fills; leave out, or give None for, the keys that are not to be filled."""
        unfloored = [key for key, found in missed.items() if found.reason is MissReason.NO_FLOOR]
        if unfloored:
            self.counters.add("fills_refused_no_floor", len(unfloored))
            buckets = sorted({self._store.layout.bucket(key) for key in unfloored})
            yield StoreCall("want_floors", (buckets,))
        lease_ms = self.options.lease_ms
        arguments = [
            (key, found.pair, lease_ms if found.reason in _SHARED else 0)
            for key, found in missed.items()
            if found.pair is not None and found.reason is not MissReason.NO_FLOOR
        ]
        pairs: list[Pair | None] = yield from each("prepare", arguments)
        return {key: pair for (key, *_), pair in zip(arguments, pairs, strict=True)}

    def _prepare_one(self, key: str, missed: Missed) -> Steps[Pair | None]:
        return (yield from self._prepare({key: missed})).get(key)

    def _stale(self, key: str, newer_than: tuple[EventToken, ...]) -> Steps[Value | None]:
        """Return the value that was last removed, if it is of the floor's generation."""
        found = self._decide((yield StoreCall("read_stale", (key,))), newer_than)
        if not isinstance(found, Found):
            return None
        self.counters.add("stale_hits")
        return Value(found.hit.value, found.hit.tokens, is_stale=True)

    def _wait(self, key: str, newer_than: tuple[EventToken, ...]) -> Steps[Found | Pair | None]:
        """Wait for the client that loads a key now; then take its place, or read without filling.

        Whoever loads takes no longer than `lease_ms`, or another one takes over.
        """
        missed = _NOT_READ
        for _ in range(LEASE_LOOKS if self.options.lease_ms else 0):
            self.counters.add("lease_waits")
            yield Pause(self.options.lease_ms / 1_000 / LEASE_LOOKS)
            [pair] = yield StoreCall("read", ([key],))
            found = self._decide(pair, newer_than)
            if isinstance(found, Found):
                return found
            missed = found
            if missed.reason not in _SHARED:
                break
            if missed.reason is not MissReason.LEASED:
                prepared = yield from self._prepare_one(key, missed)
                if prepared is not None:
                    return prepared
        prepared = (yield from self._prepare_one(key, missed)) if missed.pair is not None else None
        if prepared is None:
            self.counters.add("fills_refused_leased")
        return prepared

    def _load(
        self, prepared: Mapping[str, Pair | None], newer_than: tuple[EventToken, ...]
    ) -> Steps[dict[str, Value]]:
        needs_primary = any(self._refused.need_primary(key) for key in prepared)
        started = self._clock()
        try:
            server: ServerChoice = "primary" if needs_primary else "any"
            loaded: Loaded = yield Load(tuple(prepared), newer_than, server, dict(self._fresh))
            values = {
                key: Value(self._encode(key, loaded.values.get(key)), loaded.tokens)
                for key in prepared
            }
        except Exception:
            yield from self._release(prepared)
            raise
        self.counters.add("loads")
        self.counters.add("load_seconds", self._clock() - started)
        announced = {key: pair for key, pair in prepared.items() if pair is not None}
        yield from self._fill(announced, values, loaded.replicas)
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
        self, prepared: Mapping[str, Pair], values: Mapping[str, Value], replicas: Mapping[str, str]
    ) -> Steps[None]:
        """Fill values in; those that lose to a change of floor or slot are decided on again."""
        expected = dict(prepared)
        try:
            for _ in range(FILL_ATTEMPTS):
                fills = yield from self._decide_fills(prepared, expected, values, replicas)
                written: list[bool] = yield from each("fill", fills)
                lost = []
                for (key, *_), is_written in zip(fills, written, strict=True):
                    if is_written:
                        self.counters.add("fills")
                        self._refused.clear(key)
                        self._prefer(replicas, is_fresh=True)
                    else:
                        lost.append(key)
                present: list[Pair | None] = yield from each("read_again", [(k,) for k in lost])
                expected = {k: p for k, p in zip(lost, present, strict=True) if p is not None}
                self.counters.add("fills_refused_changed", len(lost) - len(expected))
                if not expected:
                    return
            self.counters.add("fills_refused_changed", len(expected))
        except StoreError:
            self.counters.add("store_errors")

    def _decide_fills(
        self,
        prepared: Mapping[str, Pair],
        expected: Mapping[str, Pair],
        values: Mapping[str, Value],
        replicas: Mapping[str, str],
    ) -> Steps[list[tuple[str, Pair, bytes, int]]]:
        """Return the arguments of the fills that are allowed, and release the other slots."""
        fills, refused = [], []
        for key, pair in expected.items():
            decision = decide_fill(pair.floor, pair.slot, values[key].tokens)
            if isinstance(decision, Refusal):
                self._refuse(key, decision, replicas)
                refused.append((key, prepared[key]))
            else:
                entry = self._entry(decision.generation, values[key])
                fills.append((key, pair, entry, self._ttl_ms()))
        yield from each("release", refused)
        return fills

    def _ttl_ms(self) -> int:
        return int(self.options.ttl_s * 1_000 * (1 - TTL_JITTER * random.random()))  # noqa: S311

    def _entry(self, generation: bytes, value: Value) -> bytes:
        nonce = os.urandom(ENTRY_NONCE_BYTES)
        entry = Entry(generation, nonce, value.tokens, self._codec.number, value.encoded)
        return entry.to_bytes()

    def _refuse(self, key: str, refusal: Refusal, replicas: Mapping[str, str]) -> None:
        self.counters.add(_REFUSED[refusal])
        if refusal in _TOO_OLD:
            self._refused.add(key)
            self._prefer(replicas, is_fresh=False)

    def _release(self, prepared: Mapping[str, Pair | None]) -> Steps[None]:
        for key, pair in prepared.items():
            if pair is not None:
                yield from self._try(StoreCall("release", (key, pair)))

    def _try(self, call: StoreCall) -> Steps[bool]:
        try:
            yield call
        except StoreError:
            self.counters.add("store_errors")
            return False
        return True
