"""Clients that share a reader, that do not read, and that are too many."""

import asyncio
import json
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from event_token import StreamPosition
from shardstream.commands.serve import allow_files
from shardstream.streams import outbox, readers, response, service
from shardstream.streams.outbox import Outbox
from shardstream.streams.readers import EventWriter, SharedReader, StreamReaders
from shardstream.streams.request import StreamFormat, StreamRequest, parse_request
from shardstream.subscriber import Subscriber
from tests.shardstream.streams.received import received
from tests.shardstream.streams.stream_server import SSE, StreamServer, is_closed, stream_server
from tests.topics.shard_writer import ITEMS, TIMEOUT_S, ShardWriter, Writers
from tests.topics.subscribing import taken
from tests.waiting import wait_for
from topics.kafka.client import ClientConfig
from topics.reading.planner import Unmerged
from topics.records.vevent import VEvent
from topics.stream.subscriber import StreamSubscriber

STEP_US = 1_000_000


@pytest.fixture
def server(tmp_path: Path, config: ClientConfig, keyspace: str) -> Iterator[StreamServer]:
    with stream_server(tmp_path, config, keyspace) as found:
        yield found


def step(writer: ShardWriter, number: int, rows: int = 1, note: str = "") -> None:
    """Write rows of one time, and let readers have them."""
    at_us = number * STEP_US
    writer.commit_events([writer.row(at_us, i, last=i == rows - 1, note=note) for i in range(rows)])
    writer.heartbeat(at_us + STEP_US // 2)


def seqs(events: Iterator[object], count: int) -> list[int]:
    """The seqs of the next rows."""
    found: list[int] = []
    while len(found) < count:
        data = getattr(next(events), "data")  # noqa: B009 - of any event
        if "seq" in data:
            found.append(data["seq"])
    return found


@pytest.mark.full
def test_clients_at_the_live_edge_share_a_reader(server: StreamServer, writers: Writers) -> None:
    """Twenty clients end up with one reader, whatever they filter, and each gets its rows once.

    Those that start far back catch up on their own, and join without a gap or a repetition.
    """
    (writer,) = writers("-")
    for number in range(5):
        step(writer, number, 3)
    with ExitStack() as opened:
        old = [opened.enter_context(server.sse(("start", "earliest"))) for _ in range(10)]
        got = [seqs(events, 15) for events in old]
        wait_for("one reader", lambda: server.service.readers.readers == 1)
        items = [opened.enter_context(server.sse(("table", "shop.items"))) for _ in range(10)]
        for events in items:
            next(events)
        wait_for("one reader again", lambda: server.service.readers.readers == 1)
        step(writer, 6, 2)
        writer.commit_events([writer.row(7 * STEP_US, shape=ITEMS)])
        writer.heartbeat(8 * STEP_US)
        more = [seqs(events, 3) for events in old]
        few = [seqs(events, 1) for events in items]
        streams = server.service.readers.streams
    wait_for("no stream", lambda: server.service.readers.streams == 0)

    assert got == [[*range(1, 16)]] * 10
    assert more == [[16, 17, 18]] * 10
    assert few == [[18]] * 10
    assert streams == 20


def test_clients_join_under_load(server: StreamServer, writers: Writers) -> None:
    """While rows come all the time, clients that start far back still end up with one reader."""
    (writer,) = writers("-")
    for number in range(5):
        step(writer, number, 200)
    is_over = threading.Event()

    def write() -> None:
        number = 5
        while not is_over.is_set():
            step(writer, number, 5)
            number += 1

    busy = threading.Thread(target=write)
    with ExitStack() as opened:
        busy.start()
        try:
            clients = [opened.enter_context(server.sse(("start", "earliest"))) for _ in range(3)]
            got = [seqs(events, 1_000) for events in clients]
            wait_for("sharing", lambda: server.service.readers.shared == 1)
            wait_for("one reader", lambda: server.service.readers.readers == 1)
        finally:
            is_over.set()
            busy.join()
        last = writer.seq
        got = [
            [*first, *seqs(events, last - 1_000)]
            for first, events in zip(got, clients, strict=True)
        ]

    assert got == [[*range(1, last + 1)]] * 3


@pytest.mark.parametrize("events_max", [1, 256])
def test_who_comes_back_to_a_shared_reader(
    server: StreamServer, writers: Writers, monkeypatch: pytest.MonkeyPatch, events_max: int
) -> None:
    """The shared reader hands over what a client missed; nobody else has to be read for it."""
    monkeypatch.setattr(readers, "EVENTS_MAX", events_max)
    (writer,) = writers("-")
    step(writer, 0, 2)
    with server.sse(("start", "earliest")) as stays:
        assert seqs(stays, 2) == [1, 2]
        wait_for("sharing", lambda: server.service.readers.shared == 1)
        with server.sse(("start", "earliest")) as leaves:
            begin = next(leaves).id
            assert seqs(leaves, 2) == [1, 2]
            wait_for("one reader", lambda: server.service.readers.readers == 1)
        with server.sse(("start", "latest")) as leaves:
            last_id = next(leaves).id
        step(writer, 1, 3)
        assert seqs(stays, 3) == [3, 4, 5]
        with server.sse(last_id=last_id) as events:
            missed = seqs(events, 3)
            alone = server.service.readers.readers
        with server.sse(last_id=begin) as events:
            all_of_them = seqs(events, 5)

    assert missed == [3, 4, 5]
    assert alone == 1
    assert all_of_them == [1, 2, 3, 4, 5]


def test_who_is_further_in_one_shard(
    server: StreamServer, config: ClientConfig, writers: Writers
) -> None:
    """Unmerged, a client may lack events of one shard: their ids keep what it has of the others."""
    for writer in writers("-80", "80-"):
        step(writer, 0, 2)
    unmerged = (("start", "earliest"), ("order", "unmerged"))
    with server.sse(*unmerged) as events:
        start = StreamPosition.from_string(next(events).id)
    with StreamSubscriber(server.keyspace, start=start, mode=Unmerged(), config=config) as stream:
        found = taken(stream, 4)
    end = found[-1].position
    assert end is not None
    first, last = found[0].shard, found[-1].shard
    at = replace(end, shards={**end.shards, first: start.shards[first]})
    request = parse_request(server.keyspace, unmerged, SSE, at.to_string())

    async def joined() -> list[str]:
        outbox = Outbox(asyncio.get_running_loop())
        outbox.begin_at(at)
        shared = SharedReader(server.service.readers, request, start)
        shared._keep(found, end)
        assert shared.join(request, outbox, 0.0)
        chunks = (await outbox.take(0)).chunks
        return [each.id for each in received(b"".join(chunks).decode().splitlines(keepends=True))]

    positions = [StreamPosition.from_string(each) for each in asyncio.run(joined())]

    assert first != last
    assert [p.shards[first].seq for p in positions] == [1, 2]
    assert [p.shards[last].seq for p in positions] == [2, 2]


def test_a_shared_reader_ends_with_its_clients(
    server: StreamServer, writers: Writers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some time after the last client is gone nothing is read; the next one begins again."""
    monkeypatch.setattr(readers, "SHARED_IDLE_S", 0.2)
    (writer,) = writers("-")
    step(writer, 0, 2)
    for _ in range(2):
        with server.sse(("start", "earliest")) as events:
            assert seqs(events, 2) == [1, 2]
            wait_for("sharing", lambda: server.service.readers.shared == 1)
        wait_for("no reader", lambda: server.service.readers.readers == 0)


@pytest.mark.full
def test_a_client_that_does_not_read(
    server: StreamServer, writers: Writers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is cut off, the others go on, and from its last id on nothing is lost."""
    monkeypatch.setattr(outbox, "CLIENT_BYTES_MAX", 100_000)
    monkeypatch.setattr(readers, "CLIENT_BYTES_MAX", 100_000)
    (writer,) = writers("-")
    step(writer, 0)
    note = "x" * 100_000
    with server.sse(("start", "earliest")) as reads:
        last_id = next(reads).id
        assert seqs(reads, 1) == [1]
        wait_for("sharing", lambda: server.service.readers.shared == 1)
        with socket.socket() as sleeps:
            sleeps.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            asked(server, sleeps)
            wait_for("two streams", lambda: server.service.readers.streams == 2)
            wait_for("one reader", lambda: server.service.readers.readers == 1)
            number = 0
            while server.service.readers.streams == 2:
                number += 1
                step(writer, number, 5, note)
                assert seqs(reads, 5) == [*range(5 * number - 3, 5 * number + 2)]
            assert is_closed(sleeps)
        with server.sse(last_id=last_id) as events:
            assert seqs(events, 5 * number + 1) == [*range(1, 5 * number + 2)]


def test_a_client_that_stops_while_it_catches_up(
    server: StreamServer, writers: Writers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own reader waits for it, and is given up when nothing has been taken for long."""
    monkeypatch.setattr(readers, "CLIENT_BYTES_MAX", 100_000)
    monkeypatch.setattr(response, "SEND_S_MAX", 0.5)
    (writer,) = writers("-")
    for number in range(5):
        step(writer, number, 40, "x" * 50_000)
    with socket.socket() as sleeps:
        sleeps.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        asked(server, sleeps)
        wait_for("a stream", lambda: server.service.readers.streams == 1)
        wait_for("no stream", lambda: server.service.readers.streams == 0)
        wait_for("no reader", lambda: server.service.readers.readers == 0)
        assert is_closed(sleeps)


@pytest.mark.full
def test_too_many(server: StreamServer, writers: Writers, monkeypatch: pytest.MonkeyPatch) -> None:
    """429 says when to come back; a place becomes free with the client that has it.

    Clients that share no reader take no place of those that catch up, and the other way round.

    Browsers come back only after 200: they get a stream that says so, and ends.
    """
    (writer,) = writers("-")
    step(writer, 0)
    monkeypatch.setattr(service, "STREAMS_MAX", 1)
    with server.sse(("start", "earliest")) as events:
        next(events)
        status, headers, answer = server.ask(server.path())
        browser, _, text = server.ask(server.path(), accept=SSE)
    wait_for("no stream", lambda: server.service.readers.streams == 0)
    with server.sse(("start", "earliest")) as events:
        next(events)
    monkeypatch.undo()
    monkeypatch.setattr(readers, "READER_WAIT_S", 0.1)
    named = [("start", "earliest"), ("name", "billing")]
    with no_free_reader(server, dedicated=True) as count:
        full, _, why = server.ask(server.path(named))
        with server.sse(("start", "earliest")) as events:
            assert seqs(events, 1) == [1]
    with no_free_reader(server), server.sse(*named) as events:
        assert seqs(events, 1) == [1]

    assert (status, headers["retry-after"]) == (429, str(service.STREAMS_RETRY_S))
    assert "come back" in answer["message"]
    assert browser == 200
    assert text.startswith(": 1 streams are open")
    assert text.endswith(f"\nretry: {service.STREAMS_RETRY_S * 1_000}\n\n")
    assert (full, count) == (429, readers.DEDICATED_MAX)
    assert "have a reader each" in why["message"]


@contextmanager
def no_free_reader(server: StreamServer, *, dedicated: bool = False) -> Iterator[int]:
    """All readers of this kind are taken within the block, which gets their number."""
    made = server.service.readers
    places = made._free_dedicated if dedicated else made._free
    count = 0
    while places.acquire(timeout=1):
        count += 1
    try:
        yield count
    finally:
        for _ in range(count):
            places.release()


def asked(server: StreamServer, client: socket.socket) -> None:
    """Ask for a stream from the beginning, without reading it."""
    client.connect(("127.0.0.1", server.port))
    head = f"GET {server.path([('start', 'earliest')])} HTTP/1.1\r\nHost: localhost\r\n"
    client.sendall(f"{head}Accept: {SSE}\r\n\r\n".encode())


def test_who_waits_for_a_reader_may_leave(
    server: StreamServer, writers: Writers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that is gone before its stream has begun is forgotten."""
    monkeypatch.setattr(readers, "READER_WAIT_S", 600.0)
    (writer,) = writers("-")
    step(writer, 0)
    with no_free_reader(server):
        with socket.socket() as leaves:
            asked(server, leaves)
            wait_for("a stream", lambda: server.service.readers.streams == 1)
        wait_for("no stream", lambda: server.service.readers.streams == 0)
    with server.sse(("start", "earliest")) as events:
        assert seqs(events, 1) == [1]


def test_who_waits_for_a_reader_may_find_a_shared_one(
    server: StreamServer, writers: Writers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is looked for as long as the client waits."""
    monkeypatch.setattr(readers, "READER_WAIT_S", 600.0)
    (writer,) = writers("-")
    step(writer, 0, 2)
    with server.sse(("start", "earliest")) as first:
        assert seqs(first, 2) == [1, 2]
        wait_for("sharing", lambda: server.service.readers.shared == 1)
        with monkeypatch.context() as hidden, no_free_reader(server):
            answers = iter((False, False))
            join = SharedReader.join
            hidden.setattr(
                SharedReader,
                "join",
                lambda shared, *client: next(answers, True) and join(shared, *client),
            )
            with server.sse(("start", "latest")) as events:
                step(writer, 1)
                got = seqs(events, 1)

    assert got == [3]


def test_all_clients_come_back_at_once(
    server: StreamServer, config: ClientConfig, writers: Writers
) -> None:
    """The shared reader begins where the last of them is, so one reader is enough for all."""
    (writer,) = writers("-")
    step(writer, 0, 5)
    with StreamSubscriber(server.keyspace, start="earliest", config=config) as stream:
        found = [event.position for event in taken(stream, 5)]
    first, last = found[0], found[-1]
    assert first is not None
    assert last is not None
    made = server.service.readers

    async def joined() -> list[bool]:
        request = parse_request(server.keyspace, (), SSE, last.to_string())
        clients = [made.register(request, asyncio.get_running_loop()) for _ in range(2)]
        for client, position in zip(clients, (first, last), strict=True):
            client.begin_at(position)
            made.note_begun(request, client)
        results = [
            await asyncio.to_thread(made.join_or_share, request, client, TIMEOUT_S)
            for client in reversed(clients)
        ]
        for client in clients:
            made.forget(client)
        return results

    results = asyncio.run(joined())

    assert results == [True, True]


# As `shardstream serve` is meant for; each is a connection with two ends in this process.
CLIENTS = 500


@pytest.mark.full
def test_hundreds_of_clients_come_back_at_once(
    tmp_path: Path,
    config: ClientConfig,
    keyspace: str,
    writers: Writers,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A new server has four readers for 500 clients of many places; each gets its rest once."""
    monkeypatch.setattr(readers, "READERS_MAX", 4)
    allow_files()
    (writer,) = writers("-")
    step(writer, 0, 20)
    with StreamSubscriber(keyspace, start="earliest", config=config) as stream:
        ids = [event.position.to_string() for event in taken(stream, 20) if event.position]

    async def client(port: int, number: int) -> list[int]:
        """What EventSource does: it comes back at its last id when a stream has ended."""
        at = number % 10
        last_id = ids[at]
        found: list[int] = []
        while len(found) < 21 - at:
            reader, connection = await asyncio.open_connection("127.0.0.1", port)
            head = f"GET /v1/streams/{keyspace} HTTP/1.0\r\nHost: localhost\r\nAccept: {SSE}\r\n"
            connection.write(f"{head}Last-Event-ID: {last_id}\r\n\r\n".encode())
            assert b" 200 " in await reader.readline()
            while len(found) < 21 - at and (line := await reader.readline()):
                if line.startswith(b"id: "):
                    last_id = line[4:].decode().strip()
                elif b'"seq": ' in line:
                    found.append(json.loads(line.removeprefix(b"data: "))["seq"])
            connection.close()
        return found

    async def all_clients(server: StreamServer) -> list[list[int]]:
        async with asyncio.TaskGroup() as group:
            clients = [group.create_task(client(server.port, each)) for each in range(CLIENTS)]
            await asyncio.to_thread(wait_for, "one reader", lambda: has_one_reader(server))
            await asyncio.to_thread(step, writer, 1, 2)
        return [each.result() for each in clients]

    def has_one_reader(server: StreamServer) -> bool:
        made = server.service.readers
        return made.streams == CLIENTS and made.readers == made.shared == 1

    with stream_server(tmp_path, config, keyspace) as server:
        got = asyncio.run(all_clients(server))

    assert got == [[*range(each % 10 + 2, 23)] for each in range(CLIENTS)]


@pytest.mark.full
def test_a_fault_of_one_choice(
    server: StreamServer, writers: Writers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What nobody foresaw ends the streams that it concerns, behind the rows before it.

    The error says what it was; other streams go on.
    """
    (writer,) = writers("-")
    step(writer, 0)
    begin = ("start", "earliest")
    faulty = {4}
    written = EventWriter._chunks

    def broken(
        self: EventWriter, events: Sequence[VEvent], read: StreamPosition | None
    ) -> list[bytes]:
        if self._encoding.format is StreamFormat.NDJSON and any(e.seq in faulty for e in events):
            raise ZeroDivisionError("a fault of the test")
        return written(self, events, read)

    with server.sse(begin) as events:
        assert seqs(events, 1) == [1]
        wait_for("sharing", lambda: server.service.readers.shared == 1)
        with server.ndjson(begin) as lines:
            next(lines)
            wait_for("one reader", lambda: server.service.readers.readers == 1)
            monkeypatch.setattr(EventWriter, "_chunks", broken)
            step(writer, 1, 3)
            *first, shared = lines
        assert seqs(events, 3) == [2, 3, 4]
        with server.ndjson(begin) as lines:
            *second, joining = lines
        with server.ndjson(begin, ("name", "billing")) as lines:
            *third, alone = lines

    before = [[each["seq"] for each in got if "seq" in each] for got in (first, second, third)]
    assert before == [[1, 2, 3]] * 3
    for end in (shared, joining, alone):
        assert (end["type"], end["error"]) == ("ERROR", "Halt")
        assert "ZeroDivisionError: a fault of the test" in end["message"]


@pytest.mark.full
def test_the_end_does_not_wait_for_who_begins(
    tmp_path: Path,
    config: ClientConfig,
    keyspace: str,
    writers: Writers,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Streams that are being opened end with the server; what hangs in Kafka holds up nothing."""
    monkeypatch.setattr(readers, "END_S_MAX", 0.1)
    may_go_on = threading.Event()
    resolved, opened = StreamReaders._resolved, StreamReaders.subscriber

    def slow_start(self: StreamReaders, request: StreamRequest) -> StreamPosition:
        may_go_on.wait()
        return resolved(self, request)

    @contextmanager
    def slow_subscriber(self: StreamReaders, *arguments: Any, **more: Any) -> Iterator[Subscriber]:
        may_go_on.wait()
        with opened(self, *arguments, **more) as events:
            yield events

    (writer,) = writers("-")
    step(writer, 0)
    with ExitStack() as clients:
        try:
            with stream_server(tmp_path, config, keyspace) as server:
                monkeypatch.setattr(StreamReaders, "subscriber", slow_subscriber)
                asked(server, clients.enter_context(socket.socket()))
                wait_for("a reader", lambda: server.service.readers.readers == 1)
                monkeypatch.setattr(StreamReaders, "_resolved", slow_start)
                asked(server, clients.enter_context(socket.socket()))
                wait_for("two streams", lambda: server.service.readers.streams == 2)
                assert all(each.daemon for each in stream_threads())
            wait_for("one opener", lambda: len(stream_threads("stream-opener")) == 1)
        finally:
            may_go_on.set()
        wait_for("no thread", lambda: not stream_threads())

    assert server.service.readers.readers == 0


def stream_threads(name: str = "stream-") -> list[threading.Thread]:
    """The threads of streams that are under way."""
    return [each for each in threading.enumerate() if each.name.startswith(name)]
