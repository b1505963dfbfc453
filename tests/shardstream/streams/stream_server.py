"""A server of streams within the test's process, and a client that reads them line by line."""

import http.client
import json
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.middleware import Middleware

from shardstream.settings.model import load_settings
from shardstream.status.access import Access
from shardstream.status.address import Address, TokenFile
from shardstream.status.server import HttpServer
from shardstream.streams.service import STREAMS_MAX, StreamService
from tests.shardstream.command_line import write_settings
from tests.shardstream.streams.received import Received, received
from tests.topics.shard_writer import TIMEOUT_S
from topics.kafka.client import ClientConfig

SSE = "text/event-stream"
NDJSON = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"


@dataclass(frozen=True)
class _NoDatabase:
    """What the settings need to know of a server that no stream asks."""

    flavor: str = "mysql"
    host: str = "127.0.0.1"
    port: int = 3306
    user: str = "nobody"
    password: str = "none"


@dataclass
class StreamServer:
    """A running server."""

    port: int
    keyspace: str
    service: StreamService
    headers: dict[str, str] = field(default_factory=dict)

    def ask(
        self, path: str, method: str = "GET", body: str | None = None, **headers: str
    ) -> tuple[int, dict[str, str], Any]:
        """Status, headers and JSON of an answer that ends."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        try:
            connection.request(method, path, body, {**self.headers, **headers})
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            assert "content-length" in found, "a stream, which does not end"
            text = answer.read().decode()
            is_json = found.get("content-type") == "application/json"
            return answer.status, found, json.loads(text) if is_json and text else text
        finally:
            connection.close()

    def path(self, parameters: Sequence[tuple[str, object]] = ()) -> str:
        """The path of a stream."""
        query = urlencode(parameters)
        return f"/v1/streams/{self.keyspace}" + (f"?{query}" if query else "")

    @contextmanager
    def opened(
        self, *parameters: tuple[str, object], accept: str, last_id: str = ""
    ) -> Iterator[http.client.HTTPResponse]:
        """An open stream."""
        headers = {**self.headers, "accept": accept}
        if last_id:
            headers["last-event-id"] = last_id
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        try:
            connection.request("GET", self.path(parameters), headers=headers)
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            assert answer.headers["content-type"] == accept
            yield answer
        finally:
            connection.close()

    @contextmanager
    def sse(
        self, *parameters: tuple[str, object], last_id: str = ""
    ) -> Iterator[Iterator[Received]]:
        """The server-sent events of a stream."""
        with self.opened(*parameters, accept=SSE, last_id=last_id) as answer:
            yield received(line.decode() for line in answer)

    @contextmanager
    def ndjson(
        self, *parameters: tuple[str, object], last_id: str = ""
    ) -> Iterator[Iterator[dict[str, Any]]]:
        """The lines of a stream."""
        with self.opened(*parameters, accept=NDJSON, last_id=last_id) as answer:
            yield (json.loads(line) for line in answer)


@contextmanager
def stream_server(
    folder: Path, config: ClientConfig, keyspace: str, token: TokenFile | None = None
) -> Iterator[StreamServer]:
    """Serve the streams of a keyspace until the block ends."""
    path = write_settings(folder, config["bootstrap.servers"], keyspace, {"-": _NoDatabase()})
    with serving_file(path, keyspace, token) as server:
        yield server


@contextmanager
def serving_file(
    path: Path, keyspace: str, token: TokenFile | None = None
) -> Iterator[StreamServer]:
    """Serve the streams of the keyspaces of a settings file until the block ends."""
    service = StreamService(load_settings(path))
    application = Starlette(
        routes=service.routes(), middleware=[Middleware(Access, token=token, is_loopback=True)]
    )
    with (
        Address("127.0.0.1", 0).listen() as listening,
        HttpServer(application, listening, STREAMS_MAX),
        service,
    ):
        headers = {} if token is None else {"authorization": f"Bearer {token()}"}
        yield StreamServer(listening.getsockname()[1], keyspace, service, headers)


def is_closed(connection: socket.socket) -> bool:
    """Read what is left of a connection; return whether the other side has ended it."""
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionResetError:
        return True
    return True
