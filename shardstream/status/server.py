"""An HTTP server in a thread of its own, beside what the process does."""

import socket
import threading
from typing import Final, Self

from starlette.types import ASGIApp
from uvicorn import Config, Server

# Each open page holds one connection, and each has its own copy of every event.
CONNECTIONS_MAX: Final = 200
# Event streams end by themselves within EVENT_POLL_S; other requests take milliseconds.
_SHUTDOWN_S: Final = 3


class HttpServer:
    """Serves an application on a listening socket until the context is left."""

    def __init__(self, application: ASGIApp, listening: socket.socket) -> None:
        """The socket is closed with the server."""
        config = Config(
            application,
            loop="asyncio",
            http="h11",
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
