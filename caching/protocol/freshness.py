"""What one set of tokens proves about another: the comparisons on which the protocol rests.

All three take tokens by shard name. UNKNOWN proves nothing: it never fills and never keeps.
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from functools import lru_cache
from itertools import combinations

from event_token import EventToken, KeyRange, Order, ShardName, compare, covers

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


def freshness(read: Tokens, floor: Tokens) -> Freshness:
    """Tell whether a read is proven to hold every change that the floor names.

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
        orders = {compare(token, each) for each in below}
        if Order.OLDER in orders:
            return Freshness.OLDER
        if not orders <= _AT_LEAST:
            worst = Freshness.UNKNOWN
    return worst


def holds(tokens: Tokens, change: EventToken) -> bool:
    """Tell whether what was read at these tokens is proven to hold the change.

    At least one of them is of a shard that overlaps the change's, and all those are NEWER than or
    EQUAL to it.
    """
    overlapping = _overlapping(tokens, change.shard)
    return bool(overlapping) and all(compare(each, change) in _AT_LEAST for each in overlapping)


def lacks(tokens: Tokens, change: EventToken) -> bool:
    """Tell whether what was read at these tokens is proven to be from before the change."""
    return any(compare(each, change) is Order.OLDER for each in _overlapping(tokens, change.shard))


def is_not_older(read: Tokens, present: Tokens) -> bool:
    """Tell whether a read may replace a value: proven at least as new on every shard they share."""
    return all(
        compare(token, each) in _AT_LEAST
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
    """Tell whether no two of the shards overlap, so that none can succeed another."""
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
