"""Streams over HTTP through a real split."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from shardstream.local.kafka_cluster import KafkaCluster
from shardstream.local.local_server import free_ports
from tests.database_servers import DatabaseFixture
from tests.page.chromium import headless_chromium
from tests.resharding.application import write_old_rows
from tests.resharding.flow import flow, reading, wait_read
from tests.resharding.operating import Application, follow, switch_over
from tests.resharding.shards import fresh_schema
from tests.resharding.writers import at_work, make_tables
from tests.shardstream.streams.process_clients import (
    PageClient,
    ProcessClient,
    compiled_go,
    curl,
    java,
    last_id,
    node,
)
from tests.shardstream.streams.received import Received

pytestmark = pytest.mark.full

HALVES = ("-80", "80-")
Opened = Callable[[Path, str], ProcessClient | PageClient]


class Killed:
    """A client that is killed several times; each goes on from the last id of those before."""

    def __init__(self, opened: Opened, path: Path, url: str) -> None:
        """`path`: the begin of their outputs' names."""
        self._opened, self._path, self._url = opened, path, url
        self._killed: list[Received] = []
        self._number = 0
        self._client: ProcessClient | PageClient | None = None
        self._open("earliest")

    @property
    def events(self) -> list[Received]:
        """All events so far."""
        return self._killed + ([] if self._client is None else self._client.events)

    def kill(self) -> None:
        """Send SIGKILL."""
        assert self._client is not None
        self._killed += self._client.kill()
        self._client = None

    def start(self) -> None:
        """Start the next one."""
        self._open(last_id(self._killed))

    def _open(self, start: str) -> None:
        self._number += 1
        path = Path(f"{self._path}{self._number}")
        self._client = self._opened(path, f"{self._url}?start={start}")


def places(events: Sequence[Received]) -> list[tuple[str, int]]:
    """Shard and seq of the events of logs."""
    return [each.place for each in events if each.place is not None]


def test_clients_follow_a_real_split(
    clean_servers: list[DatabaseFixture], kafka: KafkaCluster, keyspace: str, tmp_path: Path
) -> None:
    """Each gets what a Subscriber gets, in its order, while it and the server are killed.

    Curl, Node's EventSource, Go's standard library, a page in Chromium, and Arrow in Java, whose
    batches are by table. The server is away during the switch. Each goes on from its last id.
    """
    compiled = compiled_go(tmp_path)

    def go(path: Path, url: str) -> ProcessClient:
        return ProcessClient(path, [compiled, url])

    def page(_: Path, url: str) -> PageClient:
        return PageClient(browser, url)

    servers = dict(zip(("-", *HALVES), clean_servers, strict=True))
    schema = fresh_schema()
    make_tables(servers["-"], schema)
    write_old_rows(servers["-"], schema)
    port = free_ports(1)[0]
    serve = ("serve", "--streams", "--http", f"127.0.0.1:{port}")
    url = f"http://127.0.0.1:{port}/v1/streams/{keyspace}"
    with flow(tmp_path, kafka, keyspace, schema=schema, servers=servers, first=("-",)) as played:
        played.produce("-")
        played.start(*serve).wait_for("its address", lambda found: bool(found.lines))
        application = Application(played, has_moves=True)
        with reading(played.client, keyspace) as reader, headless_chromium(tmp_path) as browser:
            ways: dict[str, Opened] = {"curl": curl, "node": node, "go": go, "java": java}
            ways["Chromium"] = page
            named = {name: Killed(opened, tmp_path / name, url) for name, opened in ways.items()}
            clients = [*named.values()]
            with at_work(application.writers):
                application.wait_writes("-")
                for each in clients:
                    reader.wait_for("events", lambda each=each: len(places(each.events)) > 10)  # type: ignore[misc]
                    each.kill()
                    each.start()
                follow(played, "halves", ("-",), HALVES)
                for each in clients:
                    each.kill()
                played.kill(*serve)
                switch_over(played, application, "halves", HALVES)
                played.start(*serve).wait_for("its address", lambda found: bool(found.lines))
                for each in clients:
                    each.start()
                application.wait_writes(*HALVES)
            wait_read(played, reader)
            expected = [(event.shard, event.seq) for event in list(reader.events)]
            for each in clients:
                reader.wait_for(
                    "everything",
                    lambda each=each: len(places(each.events)) >= len(expected),  # type: ignore[misc]
                )
                each.kill()

    assert {shard for shard, _ in expected} == {"-", *HALVES}
    for name, each in named.items():
        got = places(each.events)
        assert len(got) == len(set(got)), name
        if name == "java":
            assert set(expected) <= set(got)
        else:
            assert got[: len(expected)] == expected, name
