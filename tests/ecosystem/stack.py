"""The running stack of docker/compose.yaml, as a user of `docker compose` sees it."""

import json
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from http import HTTPStatus
from http.client import HTTPConnection
from typing import Any

from testcontainers.compose import DockerCompose
from testcontainers.core.docker_client import DockerClient

from tests import waiting
from tests.prometheus_server import Prometheus

# As docker/compose.yaml publishes it.
PAGE = ("127.0.0.1", 9644)
PROMETHEUS = Prometheus(9090)
# A look runs a command in a container.
wait_for = partial(waiting.wait_for, poll_s=1.0)
# The page answers at once, but on such a machine it may have to wait for its turn.
ANSWER_S_MAX = 60.0
# Its threads end after the transaction that they are at.
STOP_S_MAX = 120
# What the shop says when it is stopped.
_WRITTEN = re.compile(r"stopped: ([0-9,]+) row changes")
_SERVICE = "com.docker.compose.service"


class ComposeStack:
    """The containers by service, the page, and what the shop counts."""

    def __init__(self, compose: DockerCompose) -> None:
        self._compose = compose
        self._docker = DockerClient().client

    def container(self, service: str) -> Any:
        """The one container of a service, an object of the package docker."""
        label = f"{_SERVICE}={service}"
        [found] = self._docker.containers.list(all=True, filters={"label": label})
        return found

    def is_healthy(self) -> bool:
        """Whether all containers run, and all health checks pass."""
        found = self._docker.containers.list(all=True, filters={"label": _SERVICE})
        states = [each.attrs["State"] for each in found]
        health = [state.get("Health", {}).get("Status", "healthy") for state in states]
        return {*health} == {"healthy"} and all(state["Running"] for state in states)

    def execute(self, service: str, *command: str) -> str:
        """Run a command in a container; CalledProcessError if it fails."""
        said, _, _ = self._compose.exec_in_container(list(command), service)
        return said

    def succeeds(self, service: str, *command: str) -> bool:
        """Whether a command in a container ends with status 0."""
        return bool(self.container(service).exec_run(list(command)).exit_code == 0)

    def fetch(self, path: str) -> str:
        """Fetch a part of the page from outside of the containers."""
        connection = HTTPConnection(*PAGE, timeout=ANSWER_S_MAX)
        with closing(connection):
            connection.request("GET", path)
            answer = connection.getresponse()
            assert answer.status == HTTPStatus.OK, path
            return answer.read().decode()

    def status(self) -> dict[str, Any]:
        """The state of the keyspace as the page gets it."""
        [keyspace] = json.loads(self.fetch("/status.json"))["keyspaces"]
        assert isinstance(keyspace, dict)
        return keyspace

    def changes_in(self) -> int:
        """The row changes that all ended runs of the shop have committed, as its log says."""
        log = self.container("shop").logs(stderr=False).decode()
        return sum(int(found.replace(",", "")) for found in _WRITTEN.findall(log))

    @contextmanager
    def stopped_shop(self) -> Iterator[None]:
        """Stop the traffic in order, so that the shop says what it has written."""
        shop = self.container("shop")
        shop.stop(timeout=STOP_S_MAX)
        try:
            yield
        finally:
            shop.start()

    def query(self, sql: str) -> list[dict[str, Any]]:
        """Query the change log."""
        program = (
            "import json, sys; from deltalake import DeltaTable, QueryBuilder; "
            "log = QueryBuilder().register('log', DeltaTable('/lake/commerce')); "
            "rows = log.execute(sys.argv[1]).read_all(); "
            "import pyarrow; print(json.dumps(pyarrow.table(rows).to_pylist()))"
        )
        found = json.loads(self.execute("spark", "python", "-c", program, sql))
        assert isinstance(found, list)
        return found
