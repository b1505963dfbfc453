"""The answer that is a stream: what a reader puts into an outbox, until either side ends it."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from starlette.types import Message, Receive, Scope, Send

from event_token.errors import ShardstreamError
from shardstream.status.access import ABORT
from shardstream.streams.encoding import Encoding, Reached
from shardstream.streams.outbox import Outbox
from shardstream.streams.request import StreamFormat, StreamRequest

# A watermark comes at least every second; the rest is for a busy event loop.
WATERMARK_S: Final = 0.8
# A client that takes nothing for this long is gone, or will come back.
SEND_S_MAX: Final = 30.0
# How long SSE clients wait before they connect again.
RETRY_MS: Final = 2_000


@dataclass(frozen=True, slots=True)
class _Writing:
    watermark: Callable[[Reached], bytes]
    error: Callable[[ShardstreamError], bytes]


def _writing(request: StreamRequest) -> _Writing:
    if request.format is StreamFormat.ARROW:
        from shardstream.streams.arrow import arrow_error, arrow_watermark  # noqa: PLC0415 - extra

        return _Writing(arrow_watermark, arrow_error)
    encoding = Encoding(request.format, request.has_every_id)
    return _Writing(encoding.watermark, encoding.error)


class StreamResponse:
    """Sends a stream. A client that does not read is cut off; what it lacks comes at its next id.

    A stream ends with a whole answer where the server or an error ends it, and is cut otherwise.
    """

    def __init__(
        self, request: StreamRequest, outbox: Outbox, at_end: Callable[[], object]
    ) -> None:
        """`at_end` is called when the client is gone."""
        self._format = request.format
        self._writing = _writing(request)
        self._outbox = outbox
        self._begin = outbox.begin
        self._at_end = at_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the end."""
        sending = asyncio.ensure_future(self._send_all(send))
        gone = asyncio.ensure_future(await_disconnect(receive))
        full = asyncio.ensure_future(self._outbox.overflowed.wait())
        try:
            await asyncio.wait((sending, gone, full), return_when=asyncio.FIRST_COMPLETED)
            if sending.done() and not sending.cancelled():
                with suppress(TimeoutError):  # a client that takes nothing is cut off
                    sending.result()
                    return
            if not gone.done():
                scope["state"][ABORT]()
                await gone
        finally:
            self._at_end()
            for task in (sending, gone, full):
                task.cancel()
            await asyncio.gather(sending, gone, full, return_exceptions=True)

    async def _send_all(self, send: Send) -> None:
        headers = [
            (b"content-type", self._format.value.encode()),
            # A proxy that buffers would hold events back.
            (b"x-accel-buffering", b"no"),
        ]
        await _send(send, {"type": "http.response.start", "status": 200, "headers": headers})
        # Whoever is cut off before the first event comes back to where the stream began. Where an
        # error has kept the start from being found, there is no position to come back to.
        has_begun = bool(self._begin.shards)
        first = self._writing.watermark(Reached(self._begin, None)) if has_begun else b""
        if self._format is StreamFormat.SSE:
            first = f"retry: {RETRY_MS}\n\n".encode() + first
        if first:
            await _send_body(send, first)
        now_s = asyncio.get_running_loop().time
        due_s = now_s() + WATERMARK_S
        while True:
            found = await self._outbox.take(due_s - now_s())
            body = b"".join(found.chunks)
            if found.reached is not None and has_begun and now_s() >= due_s:
                body += self._writing.watermark(found.reached)
                due_s = now_s() + WATERMARK_S
            if found.error is not None:
                body += self._writing.error(found.error)
            if body:
                await _send_body(send, body)
            if found.is_over:
                await _send_body(send, b"", has_more=False)
                return


async def _send_body(send: Send, body: bytes, *, has_more: bool = True) -> None:
    await _send(send, {"type": "http.response.body", "body": body, "more_body": has_more})


async def _send(send: Send, message: Message) -> None:
    async with asyncio.timeout(SEND_S_MAX):
        await send(message)


async def await_disconnect(receive: Receive) -> None:
    """Wait until the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
