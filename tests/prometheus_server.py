"""Prometheus and promtool from Debian's packages, unpacked as the databases are."""

import json
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from shardstream.local.cache_server import CacheBinary, find_server
from shardstream.local.local_server import free_ports
from shardstream.local.processes import with_parent_guard
from tests.waiting import wait_for

PROMETHEUS = CacheBinary("prometheus", "prometheus")
# A start takes a second; this is for a busy machine.
READY_S_MAX = 120
REQUEST_S_MAX = 60


def promtool(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run promtool."""
    *loader, server = find_server(PROMETHEUS)
    command = [*loader, str(Path(server).with_name("promtool")), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=READY_S_MAX)


class Prometheus:
    """A running server."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def is_ready(self) -> bool:
        """Whether it answers queries."""
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=REQUEST_S_MAX) as answer:  # noqa: S310
                return bool(answer.status == 200)
        except OSError:
            return False

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples of an expression as of now; fails on one that is not valid."""
        result = self._ask(f"query?{urlencode({'query': expression})}")["result"]
        assert isinstance(result, list), result
        return result

    def alerts(self) -> dict[str, str]:
        """The health of every alert rule that is loaded: ok, unknown or err."""
        groups = self._ask("rules?type=alert")["groups"]
        return {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}

    def _ask(self, what: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self._url}/api/v1/{what}", timeout=REQUEST_S_MAX) as answer:  # noqa: S310
            found = json.loads(answer.read())
        assert found["status"] == "success", found
        answered = found["data"]
        assert isinstance(answered, dict), found
        return answered


@contextmanager
def prometheus(folder: Path, scraped: Sequence[int]) -> Iterator[Prometheus]:
    """Scrape these ports of this machine every second for the duration of a block."""
    targets = [f"127.0.0.1:{port}" for port in scraped]
    config = {
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [{"job_name": "shardstream", "static_configs": [{"targets": targets}]}],
    }
    path = folder / "prometheus.json"
    path.write_text(json.dumps(config))  # which is YAML as well
    [port] = free_ports(1)
    command = [
        *find_server(PROMETHEUS),
        f"--config.file={path}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(with_parent_guard(command), stdout=log, stderr=log)
    try:
        server = Prometheus(port)
        wait_for(
            "Prometheus is ready", server.is_ready, (folder / "prometheus.log").read_text, process
        )
        yield server
    finally:
        process.kill()
        process.wait()
