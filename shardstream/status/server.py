"""An HTTP server in a separate thread, and the metrics and probes of a process."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Self

import h11
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp
from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol

from shardstream.status.access import ABORT, Access, ReadToken
from shardstream.status.address import Address
from shardstream.status.metrics.families import Families, scrape
from shardstream.status.probe import Probe, ProbeResult

# Each open page holds one connection, and each has its own copy of every event.
CONNECTIONS_MAX: Final = 200
# Event streams end by themselves within EVENT_POLL_S; other requests take milliseconds.
_SHUTDOWN_S: Final = 3
# A request is a few hundred bytes. A client that sends none, or half of one, would hold a
# connection for ever, and CONNECTIONS_MAX of them would keep all others out, probes included.
REQUEST_S_MAX: Final = 10.0
# A client that is gone without a word would hold its place for as long as Linux repeats what it
# does not acknowledge: a quarter of an hour. Something is sent every second.
_UNANSWERED_MS_MAX: Final = 30_000
# A position has some 100 characters per shard, and a client may send it in a header or in the path.
HEADERS_BYTES_MAX: Final = 256 * 1024


class _Connection(H11Protocol):
    """Closes a connection on which no whole request has come for REQUEST_S_MAX.

    A connection with an answer under way, such as an event stream, stays. Between two requests
    uvicorn itself waits for 5 s.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {**self.app_state, ABORT: transport.abort}
        connected: socket.socket = transport.get_extra_info("socket")
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNANSWERED_MS_MAX)
        self._has_asked = False
        self._await_request()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._has_asked = self._has_asked or self._is_answering

    @property
    def _is_answering(self) -> bool:
        return self.conn.their_state not in {h11.IDLE, h11.SEND_BODY}

    def _await_request(self) -> None:
        self._waiting = self.loop.call_later(REQUEST_S_MAX, self._check)

    def _check(self) -> None:
        if self._has_asked or self._is_answering:
            self._has_asked = False
            self._await_request()
        else:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._waiting.cancel()
        super().connection_lost(exc)


class HttpServer:
    """Serves an application on a listening socket until the context is left."""

    def __init__(
        self, application: ASGIApp, listening: socket.socket, streams_max: int = 0
    ) -> None:
        """The socket is closed with the server.

        `streams_max`: connections beyond the usual, whose requests may have a position.
        """
        config = Config(
            application,
            loop="asyncio",
            http=_Connection,
            ws="none",
            lifespan="off",
            # Request lines hold nothing that an operator needs.
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=CONNECTIONS_MAX + streams_max,
            h11_max_incomplete_event_size=HEADERS_BYTES_MAX if streams_max else None,
            timeout_graceful_shutdown=_SHUTDOWN_S,
        )
        self._server = Server(config)
        self._thread = threading.Thread(
            target=self._server.run, args=([listening],), name="http", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._server.should_exit = True
        self._thread.join()


@contextmanager
def serving(
    address: Address, token: ReadToken | None, probe: Probe, families: Families
) -> Iterator[None]:
    """Serve `/metrics`, `/livez` and `/readyz` within the block.

    `token`: what scrapes must carry; probes come without. UsageError if it cannot listen.
    """
    application = Starlette(
        routes=[
            metrics_route(scrape(families)),
            Route("/livez", _answering(probe.live)),
            Route("/readyz", _answering(probe.ready)),
        ],
        middleware=[Middleware(Access, token=token, is_loopback=address.is_loopback)],
    )
    with address.listen() as listening, HttpServer(application, listening):
        yield


def _answering(ask: Callable[[], ProbeResult]) -> Callable[[Request], Response]:
    def answer(_request: Request) -> Response:
        is_well, text = ask()
        return PlainTextResponse(f"{text}\n", 200 if is_well else 503)

    return answer


def metrics_route(scraped: Callable[[], bytes]) -> Route:
    """Return the route `/metrics`; `scraped` returns the answer in Prometheus' text format."""

    async def answer(_request: Request) -> Response:
        return Response(await asyncio.to_thread(scraped), media_type="text/plain; version=0.0.4")

    return Route("/metrics", answer)
