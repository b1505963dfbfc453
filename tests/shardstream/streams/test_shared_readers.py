"""When a shared reader may begin, and whom it takes over. Pure."""

from types import SimpleNamespace
from typing import Any

import pytest

from event_token import ShardPosition, StreamPosition
from shardstream.streams import readers as stream_readers
from shardstream.streams.readers import OwnReader, SharedReader, is_at_ends
from shardstream.streams.request import StreamFormat, parse_request
from tests.topics.reading.shard_histories import History
from topics.progress.record import GRID_US, cell_start_us
from topics.reading.followed_shards import Wait


def test_who_waits_far_behind_is_not_at_the_ends() -> None:
    """Merged, the shards that hold the order back have to be read; unmerged, all of them."""
    near, far = History("-80"), History("80-")
    for history, rows in ((near, 1), (far, 3)):
        for _ in range(rows):
            history.commit([(GRID_US, 1)])
    last = {each.shard: each.progress[-1] for each in (near, far)}

    def at(frontier_us: int, seq: int) -> StreamPosition:
        shards = {"-80": ShardPosition(1, 1, None), "80-": ShardPosition(seq, seq, None)}
        return StreamPosition(0, frontier_us, shards)

    head_us = cell_start_us(near.head_us)
    assert is_at_ends(at(head_us, 1), last, ("-80",))
    assert not is_at_ends(at(head_us - GRID_US, 3), last, ("-80",))
    assert not is_at_ends(at(head_us, 1), last, ("80-",))
    assert is_at_ends(at(head_us, 1), {**last, "80-": None}, ("80-",))
    assert is_at_ends(at(0, 3), last, None)
    assert not is_at_ends(at(head_us, 2), last, None)


def lacking(mode: str, base: StreamPosition, at: StreamPosition, *events: Any) -> Any:
    """What a reader that began at `base` and has read `events` hands over to a client."""
    parameters = [("max_hold_ms", "100")] if mode == "max_hold" else []
    request = parse_request("shop", parameters, StreamFormat.SSE, "")
    reader = SharedReader(None, request, base)  # type: ignore[arg-type]
    end = StreamPosition(0, 1_000, {"-": ShardPosition(9, len(events), None)})
    reader._keep(events, end)
    with reader._changed:
        return reader._lacking(at, 0.0)


def test_whom_a_shared_reader_takes_over() -> None:
    """Nobody hears of a time that it has not come to, or gets a row unmarked behind a newer one."""

    def place(frontier_us: int, seq: int) -> StreamPosition:
        return StreamPosition(0, frontier_us, {"-": ShardPosition(seq, seq, None)})

    def event(timestamp_us: int, *, late: bool = False) -> Any:
        return SimpleNamespace(
            shard="-", seq=1, offset=0, timestamp_us=timestamp_us, late=late, record=b""
        )

    base = place(100, 0)
    early, late = event(150), event(150, late=True)
    assert lacking("strict", base, place(100, 0), early) == [early]
    assert lacking("strict", base, place(90, 0), early) is None
    assert lacking("strict", base, place(200, 1), early) == []
    assert lacking("max_hold", base, place(120, 0), early) == [early]
    assert lacking("max_hold", base, place(200, 0), early) is None
    assert lacking("max_hold", base, place(200, 0), late) == [late]


def test_who_waits_for_the_targets_of_a_reshard_is_far_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their progress is read only after the sources' end; a reshard that is stuck goes on so."""
    at = StreamPosition(0, 100, {"-": ShardPosition(5, 5, None)})
    readers = SimpleNamespace(last_progress=lambda *_: {"-": None})
    outbox = SimpleNamespace(position=at)
    request = parse_request("shop", [], StreamFormat.SSE, "")
    reader = OwnReader(readers, request, outbox)  # type: ignore[arg-type]
    reader._has_begun.set()
    targets = Wait("BEGIN of a reshard", ("-80", "80-"))

    assert not reader._is_at_ends(targets)
    monkeypatch.setattr(stream_readers, "HOP_S_MAX", 0.0)
    assert reader._is_at_ends(targets)
