"""A fleet whose views the test sets, and requests to what serves it."""

import http.client
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Self

from shardstream.status.address import Address
from shardstream.status.application import application
from shardstream.status.refresh import FleetRefresh
from shardstream.status.server import HttpServer
from tests.waiting import wait_for
from topics.fleet.view import KeyspaceView

LOOPBACK = Address("127.0.0.1", 0)
REQUEST_S_MAX = 60


@dataclass
class ScriptedFleet:
    """Returns what the test's function returns; counts how often it was opened."""

    looked: Callable[[str], KeyspaceView]
    opened: list[object] = field(default_factory=list)

    def __enter__(self) -> Self:
        self.opened.append(object())
        return self

    def __exit__(self, *exc_info: object) -> None:
        pass

    def look(self, keyspace: str) -> KeyspaceView:
        return self.looked(keyspace)


@dataclass(frozen=True)
class Answer:
    """What a server answered."""

    status: int
    headers: Mapping[str, str]
    text: str


@dataclass(frozen=True)
class Served:
    """A running server."""

    port: int
    fleet: FleetRefresh

    def get(self, path: str, **headers: str) -> Answer:
        """Ask for a path; `host` and other headers by name."""
        return self.ask("GET", path, **headers)

    def ask(self, method: str, path: str, body: str | None = None, **headers: str) -> Answer:
        """Send a request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=REQUEST_S_MAX)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read().decode())
        finally:
            connection.close()

    @contextmanager
    def event_lines(self) -> Iterator[Iterator[str]]:
        """The lines of the event stream."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=REQUEST_S_MAX)
        connection.request("GET", "/events")
        answer = connection.getresponse()
        try:
            yield (line.decode().rstrip("\n") for line in answer)
        finally:
            connection.close()


@contextmanager
def serving(
    looked: Callable[[str], KeyspaceView],
    *keyspaces: str,
    token: str | None = None,
    is_loopback: bool = True,
    metrics: Callable[[], bytes] | None = None,
    runbook_url: str | None = None,
    interval_s: float = 0.05,
) -> Iterator[Served]:
    """Serve keyspaces until the block ends, from the end of the first look on."""
    fleet = FleetRefresh(lambda: ScriptedFleet(looked), keyspaces, interval_s=interval_s)
    app = application(
        fleet,
        token=None if token is None else lambda: token,
        is_loopback=is_loopback,
        max_behind_s=10,
        metrics=metrics,
        runbook_url=runbook_url,
    )
    with LOOPBACK.listen() as listening, HttpServer(app, listening), fleet:
        wait_for("the first look", lambda: fleet.state().number > 0)
        yield Served(listening.getsockname()[1], fleet)
