"""An invalidator whose store comes back older on connections that stay open."""

import threading
from collections.abc import Iterable
from typing import Any, cast

from caching.invalidating.invalidator import Invalidator, InvalidatorOptions, InvalidatorStatus
from caching.invalidating.log import LogStream, PublishedPosition
from caching.key_map import KeyMap
from caching.stores.memory import MemoryStore
from event_token import KeyRange, ShardPosition, StreamPosition
from tests.caching.stores.opened import RANGE, open_memory


def at(seq: int) -> StreamPosition:
    """A position in the only log."""
    return StreamPosition(0, seq, {"-": ShardPosition(seq + 1, seq, None)})


class QuietStream:
    """A log of three records that nothing is made of; `opened` is where it was opened."""

    key_range = KeyRange.parse(RANGE)
    read_us: Any = None

    def __init__(self) -> None:
        self.opened: list[StreamPosition] = []
        self.position = at(0)

    def open_events(self, begin: StreamPosition, _: object) -> "QuietStream":
        self.opened.append(begin)
        self.position = begin
        return self

    def take(self, *_: object) -> Iterable[Any]:
        self.position = at(3)
        return ()

    def ancestors(self) -> dict[str, frozenset[str]]:
        return {}

    def behind(self, _: object) -> tuple[None, None]:
        return None, None

    def close(self) -> None: ...


def test_a_position_that_is_older_than_it_was_is_gone_on_from() -> None:
    """H7 without a new connection, as after REPLICAOF and back: what was lost is applied again."""
    opened, stream, stop = open_memory(), QuietStream(), threading.Event()
    nodes = cast("MemoryStore", opened.raw).memory.values()
    for node in nodes:
        node.positions[RANGE] = PublishedPosition(1, at(1)).to_bytes()
    saved = [dict(node.positions) for node in nodes]
    statuses: list[InvalidatorStatus] = []

    def report(status: InvalidatorStatus) -> None:
        statuses.append(status)
        if len(statuses) == 2:
            for node, positions in zip(nodes, saved, strict=True):
                node.positions = dict(positions)
        elif len(statuses) == 6:
            stop.set()

    options = InvalidatorOptions(publish_ms=1, lease_ms=0)
    floors = opened.more_floors
    Invalidator(cast("LogStream", stream), KeyMap(), floors, options, report).run(stop)

    assert stream.opened == [at(1), at(1)]
    assert statuses[-1].store_rewinds == 1
