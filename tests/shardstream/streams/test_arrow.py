"""Streams as Arrow IPC, as pyarrow reads them from the connection."""

import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.shardstream.streams.stream_server import ARROW, StreamServer, stream_server
from tests.topics.shard_writer import ITEMS, Writers
from tests.topics.splits import FAR_US, Seen, split
from tests.waiting import wait_for
from topics.kafka.client import ClientConfig


@pytest.fixture
def server(tmp_path: Path, config: ClientConfig, keyspace: str) -> Iterator[StreamServer]:
    with stream_server(tmp_path, config, keyspace) as found:
        yield found


Part = tuple[pa.RecordBatch, dict[bytes, bytes], str]


def parts(answer: http.client.HTTPResponse) -> Iterator[Part]:
    """Each record batch, the metadata of its schema, and the position behind it ("" for none)."""
    source = pa.PythonFile(answer, mode="r")
    while True:
        with pa.ipc.open_stream(source) as reader:
            while True:
                try:
                    batch, metadata = reader.read_next_batch_with_custom_metadata()
                except StopIteration:
                    break
                position = (metadata or {}).get(b"position", b"").decode()
                yield batch, reader.schema.metadata or {}, position


def places(batch: pa.RecordBatch) -> list[Seen]:
    """What identifies the rows, or the events, of a batch."""
    if batch.schema.names != ["event"]:
        columns = (batch["timestamp_us"], batch["shard"], batch["seq"])
        return list(zip(*(column.to_pylist() for column in columns), strict=True))
    found: list[dict[str, Any]] = [json.loads(text) for text in batch["event"].to_pylist()]
    return [(each["timestamp_us"], each["shard"], each["seq"]) for each in found if "seq" in each]


@pytest.mark.full
def test_a_split_in_batches(server: StreamServer, writers: Writers, targets: Writers) -> None:
    """From any position the rest comes once, rows and marks; the watermark has the first one."""
    _, everything = split(writers, targets)

    def read(start: str, count: int) -> tuple[list[Seen], list[tuple[int, str]]]:
        got: list[Seen] = []
        ends: list[tuple[int, str]] = []
        with server.opened(("start", start), accept=ARROW) as answer:
            for batch, _, position in parts(answer):
                got += places(batch)
                if position:
                    ends.append((len(got), position))
                if len(got) >= count and position:
                    return got, ends
        raise AssertionError(got)

    got, ends = read("earliest", len(everything))
    some = ends[::3]
    rests = [read(position, len(everything) - at)[0] for at, position in some]

    assert sorted(got) == everything
    assert ends[0][0] == 0
    assert len({position for _, position in ends}) > 2
    assert [sorted(rest) for rest in rests] == [sorted(got[at:]) for at, _ in some]


def test_each_table_has_its_columns(server: StreamServer, writers: Writers) -> None:
    """Rows are typed, and the schema names their table; other tables are left out."""
    (writer,) = writers("-")
    writer.commit_events([writer.row(0), writer.row(1_000, shape=ITEMS), writer.row(2_000)])
    writer.heartbeat(FAR_US)

    with server.opened(("start", "earliest"), ("table", "shop.orders"), accept=ARROW) as answer:
        batch, metadata = next(
            (batch, metadata) for batch, metadata, _ in parts(answer) if metadata
        )
    rows = batch.to_pylist()

    assert (metadata[b"database"], metadata[b"table"]) == (b"shop", b"orders")
    assert [row["op"] for row in rows] == ["INSERT", "INSERT"]
    assert [row["after"] for row in rows] == [
        {"id": 1, "note": "-"},
        {"id": 3, "note": "-"},
    ]


@pytest.mark.full
def test_rows_that_trickle(server: StreamServer, writers: Writers) -> None:
    """They come at once, also to a client that starts at the end; one that leaves is noticed."""
    (writer,) = writers("-")
    is_over = threading.Event()

    def write() -> None:
        number = 0
        while not is_over.wait(0.1):
            number += 1
            writer.commit((number * 100_000, 1))
            writer.heartbeat(number * 100_000 + 50_000)

    trickling = threading.Thread(target=write)
    trickling.start()
    try:
        with server.opened(("start", "latest"), accept=ARROW) as answer:
            got = [at for _, at in zip(range(5), rows_of(answer), strict=False)]
        wait_for("no reader", lambda: server.service.readers.readers == 0)
    finally:
        is_over.set()
        trickling.join()

    seqs = [seq for _, _, seq in got]
    assert seqs == [*range(seqs[0], seqs[0] + 5)]


def rows_of(answer: http.client.HTTPResponse) -> Iterator[Seen]:
    """The rows of a stream."""
    for batch, _, _ in parts(answer):
        yield from places(batch)
