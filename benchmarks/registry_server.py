"""A schema registry as far as a reader needs one: it answers which schema an id stands for."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import urlsplit

_PATH = "/schemas/ids/"


@contextmanager
def serving_schemas(text_of: Callable[[int], str]) -> Iterator[str]:
    """Serve the schemas of ids on a free port of loopback; yields the registry's URL."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            schema_id = path.removeprefix(_PATH)
            known = path.startswith(_PATH) and schema_id.isdigit()
            answer = {"schema": text_of(int(schema_id))} if known else {"error_code": 404}
            body = json.dumps(answer).encode()
            self.send_response(200 if known else 404)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
            """Say nothing of requests."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
