"""What waits for a client: how much at a time, and for how long."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from starlette.types import Message

from event_token import ShardPosition, StreamPosition
from shardstream.status.access import ABORT
from shardstream.streams import outbox as outboxes
from shardstream.streams import response
from shardstream.streams.encoding import Reached
from shardstream.streams.outbox import Outbox
from shardstream.streams.request import parse_request
from shardstream.streams.response import StreamResponse

Check = Callable[[Outbox], Coroutine[Any, Any, None]]


def at(seq: int) -> Reached:
    return Reached(StreamPosition(0, seq, {"-": ShardPosition(seq, seq, None)}), None)


def run(check: Check, bytes_max: int = 100) -> None:
    async def checked() -> None:
        await check(Outbox(asyncio.get_running_loop(), bytes_max))

    asyncio.run(checked())


def test_a_part_has_no_position(monkeypatch: pytest.MonkeyPatch) -> None:
    """Much comes in parts; only behind the last one holds what the reader has reached."""
    monkeypatch.setattr(outboxes, "SEND_BYTES_MAX", 4)

    async def check(outbox: Outbox) -> None:
        assert outbox.put([b"aa", b"bb", b"cc"], at(3))
        outbox.finish()
        first, second = await outbox.take(1), await outbox.take(1)
        assert (first.chunks, first.reached, first.is_over) == ([b"aa", b"bb"], None, False)
        assert (second.chunks, second.reached, second.is_over) == ([b"cc"], at(3), True)
        assert outbox.messages == 3

    run(check)


def test_a_burst_waits_for_the_client() -> None:
    """A client that takes what it gets is not cut off by more than fits at a time."""

    async def check(outbox: Outbox) -> None:
        assert outbox.put([b"x" * 80], at(1), 0.0)
        results: list[bool] = []
        burst = threading.Thread(
            target=lambda: results.append(outbox.put([b"y" * 80], at(2), 600.0))
        )
        outbox._patience_s = 600.0
        burst.start()
        first = await outbox.take(1)
        await asyncio.to_thread(burst.join)
        second = await outbox.take(1)
        assert results == [True]
        assert [*first.chunks, *second.chunks] == [b"x" * 80, b"y" * 80]

    run(check)


def test_who_was_waited_for_is_not_waited_for_again() -> None:
    """Until it has caught up, a slow client holds the others up only once."""

    async def check(outbox: Outbox) -> None:
        assert outbox.put([b"x" * 80], at(1), 0.0)
        outbox._patience_s = 0.0
        assert not outbox.put([b"y" * 80], at(2), 600.0)
        assert outbox.is_closed
        await outbox.overflowed.wait()

    run(check)


def test_the_end_is_not_waited_for_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that does not take the end of its stream is cut off."""
    monkeypatch.setattr(response, "SEND_S_MAX", 0.05)
    aborted: list[bool] = []

    async def check(outbox: Outbox) -> None:
        gone = asyncio.Event()

        def abort() -> None:
            aborted.append(True)
            gone.set()

        async def receive() -> Message:
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            if not message.get("more_body", True):
                await asyncio.Event().wait()

        outbox.finish()
        request = parse_request("commerce", (), "*/*", "")
        answer = StreamResponse(request, outbox, outbox.close)
        async with asyncio.timeout(60):
            await answer({"type": "http", "state": {ABORT: abort}}, receive, send)

    run(check)

    assert aborted == [True]
