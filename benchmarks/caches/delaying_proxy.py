"""A proxy that forwards what a server says some time later: the lag of a replica behind it."""

import asyncio
import threading
import time
from collections.abc import Coroutine
from typing import Any, Final, Self

from shardstream.local.local_server import HOST

READ_BYTES: Final = 65_536
STOP_S_MAX: Final = 10.0


class DelayingProxy:
    """Forwards connections to a port of this machine; `lag_s` may be changed at any time."""

    def __init__(self, port: int) -> None:
        """Listen on nothing yet."""
        self.lag_s = 0.0
        self.port = 0
        self._target = port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._tasks: set[asyncio.Task[Any]] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        listening = asyncio.start_server(self._serve, HOST, 0)
        server = asyncio.run_coroutine_threadsafe(listening, self._loop).result(STOP_S_MAX)
        self.port = server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *exc_info: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(STOP_S_MAX)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_S_MAX)

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        server, to_server = await asyncio.open_connection(HOST, self._target)
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        self._start(_forward(client, to_server))
        self._start(self._read(server, waiting))
        self._start(_write(waiting, to_client))

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _read(
        self, source: asyncio.StreamReader, waiting: asyncio.Queue[tuple[float, bytes]]
    ) -> None:
        while said := await source.read(READ_BYTES):
            waiting.put_nowait((time.monotonic() + self.lag_s, said))


async def _write(waiting: asyncio.Queue[tuple[float, bytes]], target: asyncio.StreamWriter) -> None:
    while True:
        due_s, said = await waiting.get()
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        target.write(said)
        await target.drain()


async def _forward(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while said := await source.read(READ_BYTES):
        target.write(said)
        await target.drain()
