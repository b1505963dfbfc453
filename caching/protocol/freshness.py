"""What one set of tokens proves about another: the comparisons on which the protocol rests.

All take tokens by shard name. UNKNOWN proves nothing: it never fills and never keeps.

`clock`: how far the servers' clocks may be off. It counts where a read is compared with a change of
another shard. Floors are joined without it: their tokens are of the logs, in which a target's times
begin at its hop time, behind everything in its sources' logs, whatever the clocks say. With it, the
last changes of a source would keep their buckets closed for reads without a time.

The writes of a session are joined without it, too, but their times are those at which servers were
asked after the commit. So a write on a source that is asked for only after a session's write on the
target can succeed it: then values that were read on the source do not have to hold the latter.
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from functools import lru_cache
from itertools import combinations

from event_token import (
    ClockUncertainty,
    EventToken,
    KeyRange,
    Order,
    ShardName,
    compare,
    covers,
)

Tokens = Mapping[str, EventToken]

_AT_LEAST = frozenset((Order.NEWER, Order.EQUAL))
# Shard names that are parsed once: more than the shards of a keyspace and its reshards.
_SHARDS_CACHED = 4_096


class Freshness(Enum):
    """How the tokens of a read compare with the newest changes of a bucket."""

    FRESH = "fresh"
    OLDER = "older"
    UNKNOWN = "unknown"
    UNCOVERED = "uncovered"


def freshness(read: Tokens, floor: Tokens, clock: ClockUncertainty) -> Freshness:
    """Return whether a read is proven to hold every change that the floor names.

    FRESH: for every shard that was read, the floor's tokens that overlap its key range cover that
    range, and the read's token is NEWER than or EQUAL to each of them. A read without tokens
    proves nothing, nor does one of a shard about which the floor says nothing: UNCOVERED.
    """
    if not read:
        return Freshness.UNCOVERED
    worst = Freshness.FRESH
    for shard, token in read.items():
        below = _overlapping(floor, shard)
        key_range = _range(shard)
        if not covers((_range(each.shard) for each in below), key_range):
            return Freshness.UNCOVERED
        orders = {compare(token, each, clock) for each in below}
        if Order.OLDER in orders:
            return Freshness.OLDER
        if not orders <= _AT_LEAST:
            worst = Freshness.UNKNOWN
    return worst


def holds(tokens: Tokens, change: EventToken, clock: ClockUncertainty) -> bool:
    """Return whether a read at these tokens is proven to hold the change.

    At least one of them is of a shard that overlaps the change's, and all those are NEWER than or
    EQUAL to it.
    """
    overlapping = _overlapping(tokens, change.shard)
    return bool(overlapping) and all(
        compare(each, change, clock) in _AT_LEAST for each in overlapping
    )


def holds_writes(tokens: Tokens, writes: Iterable[EventToken], clock: ClockUncertainty) -> bool:
    """Return whether a value that was read at these tokens is proven to hold a session's writes.

    A write constrains a value only through those of its tokens whose shards overlap the write's:
    each of these must be NEWER than or EQUAL to it. Shards overlap their sources and targets, so
    this follows splits and merges. If no token overlaps, no row of the value was read where the
    write was made. A value without tokens proves nothing.
    """
    return bool(tokens) and all(
        compare(each, write, clock) in _AT_LEAST
        for write in writes
        for each in _overlapping(tokens, write.shard)
    )


def lacks(tokens: Tokens, change: EventToken, clock: ClockUncertainty) -> bool:
    """Return whether a read at these tokens is proven to be from before the change."""
    return any(
        compare(each, change, clock) is Order.OLDER for each in _overlapping(tokens, change.shard)
    )


def is_not_older(read: Tokens, present: Tokens, clock: ClockUncertainty) -> bool:
    """Return whether a read is proven to be as new as a value on every shard they share."""
    return all(
        compare(token, each, clock) in _AT_LEAST
        for each in present.values()
        for token in _overlapping(read, each.shard)
    )


def joined(floor: Tokens, change: EventToken) -> dict[str, EventToken]:
    """Return the floor raised by a change: the newest token per shard.

    An older or repeated change leaves it as it is, so a replay never lowers a floor. Two tokens of
    one shard that the GTID sets do not order are joined to their union, which only a read of both
    satisfies. A shard's token goes once tokens that are NEWER cover its whole key range: after a
    reshard, when all targets have begun.
    """
    raised = dict(floor)
    present = raised.get(change.shard)
    order = Order.NEWER if present is None else compare(change, present)
    if present is None or order is Order.NEWER:
        raised[change.shard] = change
    elif order is Order.UNKNOWN:
        raised[change.shard] = _union(present, change)
    if _are_disjoint(tuple(raised)):
        return raised
    return {shard: token for shard, token in raised.items() if not _is_succeeded(token, raised)}


def oldest(tokens: Iterable[EventToken]) -> dict[str, EventToken]:
    """Return one token per shard of several reads: what all of them are proven to hold.

    Reads of one shard on diverged servers hold only the intersection of their GTID sets.
    """
    found: dict[str, EventToken] = {}
    for token in tokens:
        present = found.get(token.shard)
        order = Order.OLDER if present is None else compare(token, present)
        if present is None or order is Order.OLDER:
            found[token.shard] = token
        elif order is Order.UNKNOWN:
            common = present.position.intersection(token.position)
            found[token.shard] = EventToken(None, token.shard, common)
    return found


@lru_cache(_SHARDS_CACHED)
def _range(shard: str) -> KeyRange:
    return ShardName.parse(shard).key_range


@lru_cache(_SHARDS_CACHED)
def _are_disjoint(shards: tuple[str, ...]) -> bool:
    """Return whether no two of the shards overlap, so that none can succeed another."""
    return not any(_overlap(*pair) for pair in combinations(shards, 2))


@lru_cache(_SHARDS_CACHED)
def _overlap(shard: str, other: str) -> bool:
    return _range(shard).overlaps(_range(other))


def _overlapping(tokens: Tokens, shard: str) -> list[EventToken]:
    return [token for name, token in tokens.items() if _overlap(name, shard)]


def _is_succeeded(token: EventToken, floor: Tokens) -> bool:
    over = [each for each in _overlapping(floor, token.shard) if each is not token]
    newer = [_range(each.shard) for each in over if compare(each, token) is Order.NEWER]
    return bool(newer) and covers(newer, _range(token.shard))


def _union(a: EventToken, b: EventToken) -> EventToken:
    times = (a.timestamp_us, b.timestamp_us)
    newest = max((time for time in times if time is not None), default=None)
    return EventToken(newest, a.shard, a.position.union(b.position))
