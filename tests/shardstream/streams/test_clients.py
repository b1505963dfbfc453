"""Clients that others have written read two real shards: curl, Chromium, Go, and Arrow in Java."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from shardstream import ClientConfig, EventType, Subscriber
from shardstream.local.kafka_cluster import KafkaCluster
from shardstream.local.local_server import free_ports
from shardstream.streams import outbox, readers, response
from tests.database_servers import DatabaseFixture
from tests.page.chromium import headless_chromium
from tests.shardstream.command_line import Background, background, streaming, write_settings
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
from tests.shardstream.streams.stream_server import StreamServer, stream_server
from tests.topics.shard_writer import TIMEOUT_S, Writers
from tests.waiting import wait_for

pytestmark = pytest.mark.full

# Transactions of two rows, on each of two shards in turn.
ROUNDS = 20
ROWS = ROUNDS * 4
# Of 100 kB: more than the sockets of a client that has stopped take.
BACKLOG_ROWS = 200


@dataclass
class World:
    """Two shards with producers, and a server of streams that can be killed."""

    folder: Path
    keyspace: str
    config: Path
    client: ClientConfig
    databases: tuple[DatabaseFixture, DatabaseFixture]
    names: list[str]
    port: int
    serves: Background | None = None

    @property
    def url(self) -> str:
        tables = "&".join(f"table={name}.t" for name in self.names)
        return f"http://127.0.0.1:{self.port}/v1/streams/{self.keyspace}?{tables}"

    def serve(self) -> None:
        """Start the server, at the same address each time."""
        address = f"127.0.0.1:{self.port}"
        self.serves = Background(
            self.folder,
            "serve",
            *("serve", "--streams", "--json", "--config", str(self.config), "--http", address),
        )
        self.serves.wait_for("its address", lambda found: bool(found.lines))

    def kill_server(self) -> None:
        """Send SIGKILL to the server."""
        assert self.serves is not None
        self.serves.process.kill()
        self.serves.process.wait()

    def write(self, rounds: Sequence[int]) -> None:
        """Commit a transaction of two rows on each shard per round."""
        for number in rounds:
            for database, name in zip(self.databases, self.names, strict=True):
                with database.connect() as connection, connection.cursor() as cursor:
                    cursor.execute("BEGIN")
                    for half in (0, 1):
                        cursor.execute(f"INSERT INTO {name}.t VALUES ({2 * number + half}, 'é\n')")
                    cursor.execute("COMMIT")

    def expected(self) -> list[tuple[str, int]]:
        """Shard and seq of all rows, in order, as a Subscriber has them."""
        with Subscriber(
            self.keyspace,
            start="earliest",
            config=self.client,
            tables=[f"{name}.t" for name in self.names],
        ) as events:
            found: list[tuple[str, int]] = []
            while len(found) < ROWS:
                taken = events.take(1_000, 1)
                found += [(e.shard, e.seq) for e in taken if e.type is EventType.ROW]
        return found


@pytest.fixture
def world(
    tmp_path: Path,
    kafka: KafkaCluster,
    keyspace: str,
    mysql_a: DatabaseFixture,
    mysql_b: DatabaseFixture,
) -> Iterator[World]:
    databases = {"-80": mysql_a, "80-": mysql_b}
    config = write_settings(tmp_path, kafka.bootstrap_servers, keyspace, databases)
    names = [database.new_database() for database in databases.values()]
    client = ClientConfig({"bootstrap.servers": kafka.bootstrap_servers})
    port = free_ports(1)[0]
    made = World(tmp_path, keyspace, config, client, (mysql_a, mysql_b), names, port)
    with ExitStack() as opened:
        producers = [
            opened.enter_context(
                background(
                    tmp_path, shard, "produce", keyspace, shard, "--json", "--config", str(config)
                )
            )
            for shard in databases
        ]
        for producer in producers:
            producer.wait_for("streaming", streaming)
        for database, name in zip(made.databases, names, strict=True):
            with database.connect() as connection, connection.cursor() as cursor:
                cursor.execute(f"CREATE TABLE {name}.t (id INT PRIMARY KEY, note TEXT)")
        made.serve()
        try:
            yield made
        finally:
            made.kill_server()


@contextmanager
def writing(world: World, rounds: Sequence[int]) -> Iterator[None]:
    """Write while the block runs; all is written at its end."""
    thread = threading.Thread(target=world.write, args=(rounds,))
    thread.start()
    try:
        yield
    finally:
        thread.join()


def places(events: Sequence[Received]) -> list[tuple[str, int]]:
    """Shard and seq of the rows."""
    return [(e.data["shard"], e.data["seq"]) for e in events if e.name == "row"]


def test_clients_that_others_have_written(world: World) -> None:
    """Each gets every row once and in order, while clients and the server are killed.

    Curl and the client in Go go on from the last id they have printed, Chromium's EventSource by
    itself. Arrow's batches have the order of each shard.
    """
    go = compiled_go(world.folder)

    def lines(number: int, start: str) -> ProcessClient:
        return ProcessClient(world.folder / f"go{number}", [go, f"{world.url}&start={start}"])

    world.write(range(5))
    by_curl_now = curl(world.folder / "curl0", f"{world.url}&start=earliest")
    by_go_now = lines(0, "earliest")
    wait_for("rows", lambda: len(places(by_curl_now.events)) >= 10)
    wait_for("rows in Go", lambda: len(places(by_go_now.events)) >= 10)
    by_curl, by_go = by_curl_now.kill(), by_go_now.kill()
    with headless_chromium(world.folder) as browser:
        watcher = PageClient(browser, f"{world.url}&start=earliest")
        wait_for("rows of the page", lambda: len(places(watcher.events)) >= 10)
        with writing(world, range(5, 12)):
            by_curl_now = curl(world.folder / "curl1", world.url, last_id(by_curl))
            by_go_now = lines(1, last_id(by_go))
            wait_for("more rows", lambda: len(places(by_curl_now.events)) >= 10)
            wait_for("more rows in Go", lambda: len(places(by_go_now.events)) >= 10)
            world.kill_server()
            by_curl += by_curl_now.wait_end()
            by_go += by_go_now.wait_end()
        with writing(world, range(12, ROUNDS)):
            world.serve()
            by_curl_now = curl(world.folder / "curl2", world.url, last_id(by_curl))
            by_go_now = lines(2, last_id(by_go))
        wait_for("all rows", lambda: len(places(by_curl + by_curl_now.events)) >= ROWS)
        wait_for("all rows in Go", lambda: len(places(by_go + by_go_now.events)) >= ROWS)
        by_curl += by_curl_now.kill()
        by_go += by_go_now.kill()
        wait_for("all rows of the page", lambda: len(places(watcher.events)) >= ROWS)
        by_page = watcher.events
    java_now = java(world.folder / "java", f"{world.url}&start=earliest")
    wait_for("all rows in Java", lambda: len(places(java_now.events)) >= ROWS)
    in_java = places(java_now.kill())
    expected = world.expected()

    assert places(by_curl) == expected
    assert places(by_go) == expected
    assert places(by_page) == expected
    assert len(in_java) == ROWS
    for shard in ("-80", "80-"):
        assert [at for at in in_java if at[0] == shard] == [at for at in expected if at[0] == shard]


def has_read(server: StreamServer, seq: int) -> bool:
    """Whether the shared reader has come to a seq, or no client is left to read for."""
    shared = [*server.service.readers._shared.values()]
    return not shared or shared[0]._end.shards["-"].seq >= seq


@pytest.mark.parametrize("kind", ["curl", "node", "go", "java"])
def test_clients_that_are_slow_and_late(
    kind: str,
    tmp_path: Path,
    config: ClientConfig,
    keyspace: str,
    writers: Writers,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who takes nothing is cut off and gets the rest at its last id; a start too old gets nothing.

    Node's EventSource, too, ends with a connection that is cut. The reader of an Arrow client waits
    until nothing could be sent for a time. `earliest` of the refusal gives what is left.
    """
    monkeypatch.setattr(outbox, "CLIENT_BYTES_MAX", 100_000)
    monkeypatch.setattr(readers, "CLIENT_BYTES_MAX", 100_000)
    monkeypatch.setattr(readers, "FIRST_S", TIMEOUT_S)
    monkeypatch.setattr(response, "SEND_S_MAX", 6.0)
    compiled = compiled_go(tmp_path) if kind == "go" else ""
    (writer,) = writers("-")
    written = 0

    def write(rows: int) -> None:
        nonlocal written
        at_us = written * 20_000
        note = "x" * 100_000
        writer.commit_events(
            [writer.row(at_us, n, last=n == rows - 1, note=note) for n in range(rows)]
        )
        written += rows
        writer.heartbeat(written * 20_000)

    with stream_server(tmp_path, config, keyspace) as server:

        def client(number: int, start: str) -> ProcessClient:
            path = tmp_path / f"{kind}{number}"
            url = f"http://127.0.0.1:{server.port}{server.path([('start', start)])}"
            if kind == "go":
                return ProcessClient(path, [compiled, url])
            return {"curl": curl, "node": node, "java": java}[kind](path, url)

        def seqs(events: Sequence[Received]) -> list[int]:
            return [seq for _, seq in places(events)]

        write(1)
        slow = client(0, "earliest")
        wait_for("a row", lambda: len(places(slow.events)) == 1)
        events = slow.events
        first = next(at for at, each in enumerate(events) if each.name == "row")
        begin = next(each.id for each in events[first:] if each.id)
        if kind != "java":
            wait_for("sharing", lambda: server.service.readers.shared == 1)
            wait_for("one reader", lambda: server.service.readers.readers == 1)
        slow.stop()
        while server.service.readers.streams == 1 and written < BACKLOG_ROWS:
            write(5)
            wait_for("the shared reader", lambda: has_read(server, written))
        wait_for("the cut", lambda: server.service.readers.streams == 0)
        slow.go_on()
        got = slow.wait_end()
        slow = client(1, last_id(got))
        wait_for("the rest", lambda: len(places(got + slow.events)) >= written)
        got += slow.kill()
        # It would still keep what retention removes.
        monkeypatch.setattr(readers, "SHARED_IDLE_S", 0.0)
        wait_for("no reader", lambda: server.service.readers.readers == 0)
        writer.wait_committed()
        writer.remove_until(written)
        status, _, refusal = server.ask(server.path([("start", begin)]))
        assert (status, refusal["error"]) == (410, "PositionTooOld")
        refused = client(2, begin).wait_end()
        again = client(3, refusal["earliest"])
        write(2)
        wait_for("what is left", lambda: seqs(again.events)[-1:] == [written])
        left = again.kill()

    assert seqs(got) == [*range(1, written - 1)]
    assert refused == []
    assert len(left) > 2
    assert seqs(left) == [*range(seqs(left)[0], written + 1)]
