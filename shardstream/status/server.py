"""An HTTP server in a thread of its own, beside what the process does."""

import asyncio
import socket
import threading
from typing import Final, Self

import h11
from starlette.types import ASGIApp
from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol

# Each open page holds one connection, and each has its own copy of every event.
CONNECTIONS_MAX: Final = 200
# Event streams end by themselves within EVENT_POLL_S; other requests take milliseconds.
_SHUTDOWN_S: Final = 3
# A request is a few hundred bytes. Who sends none, or half of one, would hold a connection for
# ever, and CONNECTIONS_MAX of them would keep everybody else out, probes included.
REQUEST_S_MAX: Final = 10.0


class _Connection(H11Protocol):
    """Closes a connection on which no whole request has come for REQUEST_S_MAX.

    One whose answer is under way, such as an event stream, stays. Between two requests uvicorn
    itself waits for 5 s.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
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

    def __init__(self, application: ASGIApp, listening: socket.socket) -> None:
        """The socket is closed with the server."""
        config = Config(
            application,
            loop="asyncio",
            http=_Connection,
            ws="none",
            lifespan="off",
            # Lines of requests would hold nothing an operator needs.
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=CONNECTIONS_MAX,
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
