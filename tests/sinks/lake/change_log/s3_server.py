"""A server with S3's interface on loopback, in a process of its own."""

import http.client
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from shardstream.local.local_server import free_ports
from shardstream.local.processes import with_parent_guard

BUCKET = "lake"
START_S_MAX = 120.0


@dataclass(frozen=True)
class S3Server:
    """Where the server listens."""

    port: int

    @property
    def options(self) -> dict[str, str]:
        """What delta-rs needs: as storage options, or in capitals as environment variables."""
        return {
            "aws_endpoint_url": f"http://127.0.0.1:{self.port}",
            "aws_access_key_id": "someone",
            "aws_secret_access_key": "secret",
            "aws_region": "us-east-1",
            "aws_allow_http": "true",
        }

    def put(self, path: str, body: bytes = b"") -> None:
        """Store an object, or create a bucket."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request("PUT", f"/{path}", body)
        assert connection.getresponse().status == http.HTTPStatus.OK
        connection.close()


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """Run a server that has an empty bucket."""
    server = S3Server(free_ports(1)[0])
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(server.port)]
    process = subprocess.Popen(
        with_parent_guard(command), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _create_bucket(server, process)
        yield server
    finally:
        process.kill()
        process.wait()


def _create_bucket(server: S3Server, process: "subprocess.Popen[bytes]") -> None:
    deadline_s = time.monotonic() + START_S_MAX
    while True:
        try:
            server.put(BUCKET)
        except ConnectionRefusedError:
            assert process.poll() is None, "the S3 server has ended"
            assert time.monotonic() < deadline_s, "the S3 server did not start"
            time.sleep(0.1)
        else:
            return
