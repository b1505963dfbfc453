"""A small schema registry over HTTP: the part of Confluent's interface that is used."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote


class RegistryServer(ThreadingHTTPServer):
    """Gives ids from 1 on; counts calls, and can be told to fail or to change schemas."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.lock = threading.Lock()
        self.schemas: list[str] = []
        self.compatibility: dict[str, str] = {}
        self.subjects: dict[str, set[int]] = {}
        self.calls: list[str] = []
        self.status: int | None = None  # of every answer, where set
        self.conflicts = 0  # calls that are refused, as if another one had come first
        self.account: str | None = None  # name:password that is wanted
        self.rewrite = False  # give schemas back without their attributes

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: RegistryServer

    def do_GET(self) -> None:
        if not self._admitted():
            return
        if self.path.endswith("/versions/latest"):
            self._answer_latest(unquote(self.path.split("/")[2]))
            return
        schema_id = int(self.path.rpartition("/")[2])
        if not 1 <= schema_id <= len(self.server.schemas):
            self._answer(404, {"error_code": 40403, "message": "Schema not found"})
            return
        text = self.server.schemas[schema_id - 1]
        if self.server.rewrite:
            text = json.dumps({"type": "string"})
        self._answer(200, {"schema": text})

    def _answer_latest(self, subject: str) -> None:
        found = self.server.subjects.get(subject)
        if not found:
            self._answer(404, {"error_code": 40401, "message": "Subject not found"})
            return
        newest = max(found)
        self._answer(200, {"id": newest, "schema": self.server.schemas[newest - 1]})

    def do_PUT(self) -> None:
        if self._admitted():
            body = self._body()
            self.server.compatibility[unquote(self.path.split("/")[2])] = body["compatibility"]
            self._answer(200, body)

    def do_POST(self) -> None:
        if not self._admitted():
            return
        text = self._body()["schema"]
        with self.server.lock:
            if text not in self.server.schemas:
                self.server.schemas.append(text)
            schema_id = self.server.schemas.index(text) + 1
            self.server.subjects.setdefault(unquote(self.path.split("/")[2]), set()).add(schema_id)
            if self.server.conflicts:
                self.server.conflicts -= 1
                self._answer(409, {"error_code": 409, "message": "it already exists"})
                return
        self._answer(200, {"id": schema_id})

    def _admitted(self) -> bool:
        self.server.calls.append(f"{self.command} {self.path}")
        account = self.server.account
        if account is not None:
            wanted = "Basic " + base64.b64encode(account.encode()).decode()
            if self.headers.get("Authorization") != wanted:
                self._answer(401, {"message": "Unauthorized"})
                return False
        if self.server.status is not None:
            self._answer(self.server.status, {"message": "told to"})
            return False
        return True

    def _body(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def _answer(self, status: int, body: object) -> None:
        payload = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def log_message(self, *_args: object) -> None:
        """Say nothing."""


@contextmanager
def registry_server() -> Iterator[RegistryServer]:
    """Run a registry on a free port."""
    server = RegistryServer()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
