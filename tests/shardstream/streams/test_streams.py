"""Streams over HTTP: order, positions, filters, and what is refused."""

import http.client
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from event_token import StreamPosition
from shardstream.status.address import TokenFile
from shardstream.streams import readers
from tests.shardstream.streams.received import Received
from tests.shardstream.streams.stream_server import StreamServer, stream_server
from tests.topics.shard_writer import ITEMS, START_US, TIMEOUT_S, ShardWriter, Writers
from tests.topics.splits import FAR_US, Seen, seen, split
from tests.topics.subscribing import taken
from tests.waiting import wait_for
from topics.kafka.client import ClientConfig
from topics.names import ShardTopics
from topics.progress.copy_topic import CopyFeed
from topics.records.vevent import Op
from topics.stream.subscriber import StreamSubscriber

TOKEN = "a-token-of-the-tests"


@pytest.fixture
def server(tmp_path: Path, config: ClientConfig, keyspace: str) -> Iterator[StreamServer]:
    with stream_server(tmp_path, config, keyspace) as found:
        yield found


def two_shards(writers: Writers) -> list[Seen]:
    """Two shards with interleaved transactions; return everything in order."""
    made = writers("-80", "80-")
    for n in range(4):
        made[0].commit((n * 25_000, 3), (n * 25_000 + 4_000, 1))
        made[1].commit((n * 25_000 + 1_000, 2))
    for writer in made:
        writer.heartbeat(FAR_US)
    return sorted(seen([event for writer in made for event in writer.written]))


def is_event(line: dict[str, Any]) -> bool:
    return "seq" in line


def of(line: dict[str, Any]) -> Seen:
    return line["timestamp_us"], line["shard"], line["seq"]


def lines_of(lines: Iterator[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """The next events of a stream of lines, without its watermarks."""
    return list(islice(filter(is_event, lines), count))


def events_of(events: Iterator[Received], count: int) -> list[Received]:
    """The next events of a stream of server-sent events, without its watermarks."""
    return list(islice((each for each in events if is_event(each.data)), count))


@pytest.mark.full
def test_any_id_resumes_with_the_rest(server: StreamServer, writers: Writers) -> None:
    """Events come in the merged order, each once; from any id on comes exactly what follows."""
    everything = two_shards(writers)

    with server.sse(("start", "earliest")) as events:
        begin = next(events)
        found = events_of(events, len(everything))
    rests = []
    for at in (0, 3, len(found) - 2):
        with server.sse(("start", "latest"), last_id=found[at].id) as events:
            rests.append([of(each.data) for each in events_of(events, len(found) - at - 1)])

    assert begin.name == "watermark"
    assert [of(each.data) for each in found] == everything
    assert {each.name for each in found} == {"row"}
    assert rests == [everything[at + 1 :] for at in (0, 3, len(found) - 2)]
    assert all("position" not in each.data for each in found)


@pytest.mark.full
def test_lines_have_their_position(server: StreamServer, writers: Writers) -> None:
    """NDJSON is what `tail --json` prints; the parameter `start` takes the position of a line."""
    everything = two_shards(writers)

    with server.ndjson(("start", "earliest")) as lines:
        found = lines_of(lines, len(everything))
    with server.ndjson(("start", found[4]["position"])) as lines:
        rest = lines_of(lines, len(everything) - 5)

    assert [of(line) for line in found] == everything
    assert [of(line) for line in rest] == everything[5:]
    assert {"before", "after", "token", "gtid", "offset"} <= found[0].keys()


@pytest.mark.full
def test_positions_of_batches(server: StreamServer, writers: Writers) -> None:
    """With ids=batch few events have an id, and the last id loses and repeats nothing."""
    everything = two_shards(writers)

    with server.sse(("start", "earliest"), ("ids", "batch")) as events:
        found: list[Received] = []
        while len([each for each in found if is_event(each.data)]) < len(everything):
            found.append(next(events))
        while not found[-1].id:
            found.append(next(events))
    with_id = [at for at, each in enumerate(found) if each.id and is_event(each.data)]
    last = with_id[0]
    behind = len([each for each in found[: last + 1] if is_event(each.data)])
    with server.sse(last_id=found[last].id) as events:
        rest = [of(each.data) for each in events_of(events, len(everything) - behind)]

    assert 0 < len(with_id) < len(everything)
    assert rest == everything[behind:]


def test_who_gets_no_row_moves_on(server: StreamServer, writers: Writers) -> None:
    """Watermarks have an id, also where no row passes the filter; from there on comes the rest."""
    (writer,) = writers("-")
    writer.commit((0, 5))
    writer.heartbeat(1_000_000)

    with server.sse(("start", "earliest"), ("table", "shop.items")) as events:
        marks: list[Received] = []
        while not marks or marks[-1].data["frontier_us"] < START_US + 1_000_000:
            marks.append(next(events))
    writer.commit_events([writer.row(1_100_000), writer.row(1_100_000, shape=ITEMS)])
    writer.heartbeat(FAR_US)
    with server.sse(("table", "shop.items"), last_id=marks[-1].id) as events:
        [found] = events_of(events, 1)

    assert {mark.name for mark in marks} == {"watermark"}
    assert StreamPosition.from_string(marks[-1].id).shards["-"].seq == 5
    assert marks[-1].data["waiting"] == ["-"]
    assert (found.data["table"], found.data["seq"]) == ("items", 7)


def test_parts_of_a_keyspace(server: StreamServer, writers: Writers) -> None:
    """Rows of a key range, of tables, and in the order of each shard alone."""
    left, right = writers("-80", "80-")
    right.commit_events([right.row(0), right.row(1_000, shape=ITEMS), right.row(2_000)])
    right.heartbeat(FAR_US)
    begin = (("start", "earliest"),)

    with server.ndjson(*begin, ("key_range", "80-"), ("table", "shop.orders")) as lines:
        ranged = [(line["shard"], line["seq"]) for line in lines_of(lines, 2)]
    # Nothing of -80 is known, so the merged order would wait.
    with server.ndjson(*begin, ("order", "unmerged")) as lines:
        unmerged = [(line["shard"], line["seq"]) for line in lines_of(lines, 3)]
    left.commit((3_000, 1))
    left.heartbeat(FAR_US)
    both = (("table", "shop.orders"), ("table", "shop.items"))
    with server.ndjson(*begin, *both) as lines:
        merged = [(line["shard"], line["seq"]) for line in lines_of(lines, 4)]

    assert ranged == [("80-", 1), ("80-", 3)]
    assert unmerged == [("80-", 1), ("80-", 2), ("80-", 3)]
    assert merged == [*unmerged, ("-80", 1)]


@pytest.mark.full
def test_a_split_is_hopped_over(server: StreamServer, writers: Writers, targets: Writers) -> None:
    """Whoever comes back at any id, before or behind the hop, gets the rest once and in order."""
    _, everything = split(writers, targets)

    got: list[Seen] = []
    names, last_id = set(), ""
    while len(got) < len(everything):
        with server.sse(("start", "earliest"), last_id=last_id) as events:
            for each in events_of(events, min(3, len(everything) - len(got))):
                got.append(of(each.data))
                names.add(each.name)
                last_id = each.id

    assert got == everything
    assert names == {"row", "hop"}


def test_what_is_refused(server: StreamServer, writers: Writers) -> None:
    """Each wrong request is answered by its status and one sentence."""
    two_shards(writers)
    with server.sse(("start", "earliest")) as events:
        position = next(events).id
    tomorrow_us = time.time_ns() // 1_000 + 86_400_000_000
    ahead = replace(StreamPosition.from_string(position), frontier_us=tomorrow_us)
    asked: list[tuple[int, str, dict[str, str]]] = [
        (400, server.path([("start", "yesterday")]), {}),
        (400, server.path(), {"last-event-id": position[:-1]}),
        (400, server.path([("colour", "red")]), {}),
        (400, server.path([("order", "merged"), ("order", "merged")]), {}),
        (400, server.path([("table", "orders")]), {}),
        (404, "/v1/streams/none", {}),
        (406, server.path(), {"accept": "image/png"}),
        (409, server.path([("key_range", "-80"), ("start", position)]), {}),
        (409, server.path([("start", ahead.to_string())]), {}),
    ]
    answers = [server.ask(path, **headers) for _, path, headers in asked]
    head, _, _ = server.ask(server.path(), "HEAD")

    assert [status for status, _, _ in answers] == [status for status, _, _ in asked]
    assert all(answer["message"] and answer["type"] == "ERROR" for _, _, answer in answers)
    assert "colour" in answers[2][2]["message"]
    assert head == 405


def test_a_wrong_column_is_named(server: StreamServer, writers: Writers) -> None:
    """In a 400, or in the last event of a stream that has begun before its first row."""
    two_shards(writers)
    path = server.path([("start", "earliest"), ("columns", "colour")])
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT_S)
    with closing(connection):
        connection.request("GET", path)
        answer = connection.getresponse()
        text = answer.read().decode()

    assert answer.status in (200, 400)
    assert "there is no column colour" in text


def test_pages_of_other_sites_may_not_ask(server: StreamServer, writers: Writers) -> None:
    """A browser says for whom it asks, so that no web site uses the right of who looks at it."""
    two_shards(writers)
    own = f"http://127.0.0.1:{server.port}"
    refused = [
        server.ask("/v1/keyspaces", **headers)[0]
        for headers in (
            {"sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "same-site", "origin": own},
            {"origin": "https://elsewhere.example"},
            {"origin": "null"},
        )
    ]
    stream = server.ask(server.path([("name", "theirs")]), **{"sec-fetch-site": "cross-site"})[0]
    answered = [
        server.ask("/v1/keyspaces", **headers)[0]
        for headers in (
            {"sec-fetch-site": "same-origin", "origin": "https://behind-a-proxy.example"},
            {"sec-fetch-site": "none"},
            {"origin": own},
            {},
        )
    ]

    assert refused == [403] * 4
    assert stream == 403
    assert answered == [200] * 4


def test_a_stream_starts_no_copy(
    server: StreamServer, config: ClientConfig, writers: Writers
) -> None:
    """Where there is none, `start=copy` says what to run; nothing is written for a GET."""
    late_writer(writers)

    status, _, answer = server.ask(server.path([("start", "copy")]))
    with CopyFeed(config, ShardTopics(server.keyspace, "-")) as feed:
        feed.read_to_end()
        requests = feed.requests

    assert status == 400
    assert "shardstream copy start" in answer["message"]
    assert not requests


@pytest.mark.full
def test_without_the_token_there_is_no_stream(
    tmp_path: Path, config: ClientConfig, keyspace: str, writers: Writers
) -> None:
    """Every path needs the token; with it the stream comes, until the token is withdrawn."""
    two_shards(writers)
    file = tmp_path / "token"
    file.write_text(TOKEN)
    with stream_server(tmp_path, config, keyspace, TokenFile(file)) as server:
        found = server.headers.pop("authorization")
        paths = (server.path(), "/v1/keyspaces", "/v1/openapi.json")
        refused = [server.ask(path)[0] for path in paths]
        server.headers["authorization"] = found
        with server.sse(("start", "earliest")) as events:
            name = next(events).name
            file.write_text(TOKEN[::-1])
            with suppress(http.client.IncompleteRead, ConnectionResetError):
                list(events)  # it ends
        withdrawn, _, _ = server.ask("/v1/keyspaces")
        server.headers["authorization"] = f"Bearer {TOKEN[::-1]}"
        with server.sse(("start", "earliest")) as events:
            assert next(events).name == name

    assert withdrawn == 401
    assert refused == [401, 401, 401]
    assert name == "watermark"


@pytest.mark.full
def test_a_position_that_retention_has_passed(
    server: StreamServer,
    config: ClientConfig,
    writers: Writers,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """410 has the earliest start, from which the stream can be read."""
    monkeypatch.setattr(readers, "FIRST_S", TIMEOUT_S)
    (writer,) = writers("-")
    for n in range(4):
        writer.commit((20_000 * n, 2), (20_000 * n + 1, 2))
    writer.heartbeat(FAR_US)
    # Not from the server, whose shared reader would still keep what follows.
    with StreamSubscriber(server.keyspace, start="earliest", config=config) as stream:
        old = taken(stream, 2)[-1].position
    assert old is not None
    writer.wait_committed()
    writer.remove_until(7)

    status, _, answer = server.ask(server.path([("start", old.to_string())]))
    with server.ndjson(("start", answer["earliest"])) as lines:
        rest = [line["seq"] for line in lines_of(lines, 8)]

    assert (status, answer["error"]) == (410, "PositionTooOld")
    assert "retention has removed" in answer["message"]
    assert rest == list(range(9, 17))


def test_a_position_of_another_keyspace(server: StreamServer, writers: Writers) -> None:
    """A position that the log cannot have is a conflict, not a stream that waits for ever."""
    (writer,) = writers("-")
    writer.commit((0, 2))
    writer.heartbeat(FAR_US)
    with server.ndjson(("start", "earliest")) as lines:
        position = StreamPosition.from_string(lines_of(lines, 2)[-1]["position"])
    document: dict[str, Any] = position.to_json_dict()
    document["shards"]["-"] |= {"seq": 900, "offset": 900}
    other = StreamPosition.from_json_dict(document).to_string()

    status, _, answer = server.ask(server.path([("start", other)]))

    assert (status, answer["error"]) == (409, "LogShrank")


def test_a_position_of_the_same_seqs(
    server: StreamServer, writers: Writers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A position that does not fit the log is refused also where others share a reader of it."""
    monkeypatch.setattr(readers, "FIRST_S", TIMEOUT_S)
    writer = late_writer(writers)
    with server.sse(("start", "earliest")) as events:
        [first] = events_of(events, 1)
        wait_for("sharing", lambda: server.service.readers.shared == 1)
        writer.commit((20_000, 2))
        writer.heartbeat(FAR_US)
        events_of(events, 2)
        document: dict[str, Any] = StreamPosition.from_string(first.id).to_json_dict()
        document["shards"]["-"]["offset"] += 900
        other = StreamPosition.from_json_dict(document).to_string()
        status, _, answer = server.ask(server.path([("start", other)]))

    assert (status, answer["error"]) == (409, "WrongPosition")
    assert "lies before the start (seq 1, offset 901)" in answer["message"]


@pytest.mark.full
def test_a_halted_reader_says_why(server: StreamServer, writers: Writers) -> None:
    """The stream ends with an event `error`, and whoever comes back gets the same."""
    (writer,) = writers("-")
    writer.commit((0, 2))
    writer.heartbeat(10_000)
    with server.sse(("start", "earliest")) as events:
        last_id = events_of(events, 2)[-1].id
    broken, offset = writer.row(20_000), writer.end_offset()
    writer.producer.begin_transaction()
    writer.producer.produce(writer.topics.log, value=b"no record", partition=0)
    writer.produce_progress(writer.progress([broken], offset))
    writer.producer.commit_transaction(TIMEOUT_S)
    writer.heartbeat(FAR_US)
    ends = []
    for _ in range(2):
        with server.sse(last_id=last_id) as events:
            for each in events:
                last_id = each.id or last_id
        ends.append(each)

    assert [end.name for end in ends] == ["error", "error"]
    assert {end.data["error"] for end in ends} == {"CorruptRecord"}
    assert StreamPosition.from_string(last_id).shards["-"].seq == 2


def test_keyspaces_and_tokens(server: StreamServer, writers: Writers) -> None:
    """What a keyspace consists of, which of two tokens is newer, and what a position says."""
    two_shards(writers)
    with server.ndjson(("start", "earliest")) as lines:
        found = lines_of(lines, 20)
    on_left = [line["token"] for line in found if line["shard"] == "-80"]

    def compared(a: object, b: object) -> tuple[int, Any]:
        status, _, answer = server.ask("/v1/tokens/compare", "POST", json.dumps({"a": a, "b": b}))
        return status, answer.get("order")

    first, last = on_left[0], on_left[-1]
    orders = [compared(*pair) for pair in ((first, last), (last, first), (first, first))]
    wrong = [compared(first, "x"), compared(first, None)]
    broken = [server.ask("/v1/tokens/compare", "POST", body)[0] for body in ("{", "[]", '{"a": 1}')]
    _, _, keyspaces = server.ask("/v1/keyspaces")
    _, _, shards = server.ask(f"/v1/keyspaces/{server.keyspace}")
    missing = server.ask("/v1/keyspaces/none")[0]
    _, _, position = server.ask(f"/v1/positions/{found[-1]['position']}")
    _, _, token = server.ask(f"/v1/positions/{last}")
    neither = server.ask("/v1/positions/x")[0]

    assert orders == [(200, "OLDER"), (200, "NEWER"), (200, "EQUAL")]
    assert wrong == [(400, None), (400, None)]
    assert broken == [400, 400, 400]
    assert keyspaces == {"keyspaces": [server.keyspace]}
    assert [(each["name"], each["state"], each["key_range"]) for each in shards["shards"]] == [
        ("-80", "SERVING", "-80"),
        ("80-", "SERVING", "80-"),
    ]
    assert (missing, neither) == (404, 400)
    assert (position["kind"], position["shards"].keys()) == ("position", {"-80", "80-"})
    assert position["shards"]["-80"]["token"]["gtids"].startswith("3e11fa47-")
    assert (token["kind"], token["shard"]) == ("token", "-80")


@pytest.mark.full
def test_rows_of_a_condition(server: StreamServer, writers: Writers) -> None:
    """Columns, rows and images as asked for; clients that share a reader do not share their choice.

    What one of them asks in vain ends its stream alone.
    """
    writer = late_writer(writers)
    only = (("where", "id > 2"), ("columns", "note"), ("images", "after"))
    with ExitStack() as opened:
        everything, chosen, wrong = (
            opened.enter_context(server.sse(*parameters))
            for parameters in ((), only, (("columns", "colour"),))
        )
        for events in (everything, chosen, wrong):
            next(events)
        wait_for("one reader", lambda: server.service.readers.readers == 1)
        writer.commit_events(
            [writer.row(2_000_000), writer.row(2_000_000), writer.row(2_000_000, op=Op.UPDATE)]
        )
        writer.heartbeat(FAR_US)
        all_of_them = [each.data["seq"] for each in events_of(everything, 3)]
        rows = events_of(chosen, 2)
        *_, end = wrong

    assert all_of_them == [2, 3, 4]
    assert [each.data["seq"] for each in rows] == [3, 4]
    assert rows[1].data["before"] == {"id": 4}
    assert rows[1].data["after"] == {"id": 4, "note": "-"}
    assert (end.name, end.data["error"]) == ("error", "UsageError")


def late_writer(writers: Writers) -> ShardWriter:
    """A shard with one row, and its writer."""
    (writer,) = writers("-")
    writer.commit((0, 1))
    writer.heartbeat(10_000)
    return writer


@pytest.mark.full
def test_latest_begins_behind_what_there_is(server: StreamServer, writers: Writers) -> None:
    """The default start delivers what comes after the request."""
    writer = late_writer(writers)

    with server.sse() as events:
        next(events)
        writer.commit((2_000_000, 1))
        writer.heartbeat(FAR_US)
        [found] = events_of(events, 1)

    assert found.data["seq"] == 2
