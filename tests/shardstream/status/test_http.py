"""What `shardstream serve` answers, and to whom."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from starlette.applications import Starlette

from event_token import UsageError
from event_token.errors import Retry
from shardstream.status import refresh, server
from tests.shardstream.status.serving import LOOPBACK, REQUEST_S_MAX, Served, serving
from tests.shardstream.status.views import busy_keyspace, two_shards
from tests.waiting import wait_for

TOKEN = "a-token-of-the-tests"


def state(served: Served) -> dict[str, Any]:
    """What /status.json says."""
    found: dict[str, Any] = json.loads(served.get("/status.json").text)
    return found


def test_the_state_says_who_holds_readers_back() -> None:
    """Each keyspace is there with its sentence; one that keeps up and one that does not."""

    def looked(keyspace: str) -> Any:
        return two_shards(keyspace, high=41 if keyspace == "shop" else 0.2)

    with serving(looked, "commerce", "shop") as served:
        answer = served.get("/status.json")
    found = json.loads(answer.text)
    well, held = found["keyspaces"]

    assert answer.headers["content-type"] == "application/json"
    assert (well["keyspace"], well["is_held_back"], well["error"]) == ("commerce", False, "")
    assert [shard["shard"] for shard in well["shards"]] == ["-80", "80-"]
    assert held["is_held_back"]
    assert held["headline"].startswith("shop: 80- has written nothing for 41 s")
    assert found["at_us"] > 0


def test_a_client_that_vanishes_is_given_up() -> None:
    """The kernel gives up what a client does not acknowledge, long before its usual 15 minutes."""
    with LOOPBACK.listen() as listening, server.HttpServer(Starlette(), listening) as made:
        found = made._server.server_state.connections
        with socket.create_connection(listening.getsockname()):
            wait_for("a connection", lambda: bool(found))
            (connection,) = found
            accepted = connection.transport.get_extra_info("socket")
            limit_ms = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)

    assert limit_ms == server._UNANSWERED_MS_MAX


def test_row_values_are_left_out() -> None:
    """The key that a copy has reached is a row's, and everybody with the page would see it."""
    with serving(busy_keyspace, "commerce") as served:
        answer = served.get("/status.json").text

    [copy] = json.loads(answer)["keyspaces"][0]["copies"]
    assert (copy["table"], copy["rows"], copy["seconds_left"]) == ("shop.orders", 400, 30.0)
    assert "4242424242" not in answer


def test_a_failed_look_keeps_the_last_view_and_says_so() -> None:
    """Kafka that does not answer is the sentence; what was seen before stays, until it is back."""
    broken = threading.Event()

    def looked(keyspace: str) -> Any:
        if broken.is_set():
            raise Retry("no broker answers")
        return two_shards(keyspace)

    with serving(looked, "commerce", "shop") as served:
        broken.set()
        wait_for("the error", lambda: bool(state(served)["keyspaces"][1]["error"]))
        first, second = state(served)["keyspaces"]
        broken.clear()
        wait_for("the recovery", lambda: not state(served)["keyspaces"][1]["error"])

    assert first["error"] == second["error"] == "no broker answers"
    assert "not read for" in first["headline"]
    assert first["is_held_back"]
    assert len(second["shards"]) == 2


def test_a_keyspace_that_has_never_been_seen_says_why() -> None:
    """Before its first producer a keyspace has a sentence, and the others are looked at."""

    def looked(keyspace: str) -> Any:
        if keyspace == "new":
            raise UsageError("keyspace new has no topology: start a producer of it first")
        return two_shards(keyspace)

    with serving(looked, "new", "shop") as served:
        new, shop = state(served)["keyspaces"]

    assert "start a producer" in new["headline"]
    assert "shards" not in new
    assert not shop["is_held_back"]


def test_events_come_with_a_number_and_end_with_the_process() -> None:
    """A browser gets the state at once, a retry interval and rising ids; the end does not hang."""
    with serving(two_shards, "commerce") as served, served.event_lines() as lines:
        first = [next(lines) for _ in range(4)]
        second = next(line for line in lines if line.startswith("id: "))
    retry, _, event_id, event = first

    assert retry == "retry: 2000"
    assert json.loads(event.removeprefix("data: "))["keyspaces"][0]["keyspace"] == "commerce"
    assert int(second.removeprefix("id: ")) > int(event_id.removeprefix("id: "))


def test_probes_tell_when_nothing_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that hangs fails the liveness probe, so that a supervisor restarts the process."""
    hang, release = threading.Event(), threading.Event()

    def looked(keyspace: str) -> Any:
        if hang.is_set():
            release.wait()
        return two_shards(keyspace)

    with serving(looked, "commerce", token=TOKEN) as served:
        well = [served.get("/livez").status, served.get("/readyz").status]
        hang.set()
        monkeypatch.setattr(refresh, "STALE_S", 0.2)
        wait_for("a stale state", lambda: served.get("/livez").status == 503)
        ready = served.get("/readyz").status
        release.set()

    assert well == [200, 200]
    assert ready == 200


@pytest.mark.parametrize(
    "header", ["", TOKEN, "Bearer", "Bearer x", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer \xe9"]
)
def test_without_the_token_nothing_is_told(header: str) -> None:
    """Every address but the probes needs the token, those that do not exist as well."""
    with serving(two_shards, "commerce", token=TOKEN) as served:
        sent = {"authorization": header} if header else {}
        answers = [served.get(path, **sent) for path in ("/status.json", "/events", "/none")]
        right = served.get("/status.json", authorization=f"Bearer {TOKEN}")
        foreign = served.get("/status.json", host="x.example", authorization=f"bearer {TOKEN}")

    assert [answer.status for answer in answers] == [401] * 3
    assert all(answer.headers["www-authenticate"] == "Bearer" for answer in answers)
    assert "commerce" not in "".join(answer.text for answer in answers)
    assert (right.status, foreign.status) == (200, 200)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:9644", 200),
        ("LOCALHOST", 200),
        ("[::1]:9644", 200),
        ("evil.example:9644", 421),
        ("localhost.evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("", 421),
    ],
)
def test_loopback_refuses_foreign_host_names(host: str, status: int) -> None:
    """A web site whose name points to this machine cannot read it through its visitor's browser."""
    with serving(two_shards, "commerce") as served:
        answer = served.get("/status.json", host=host)

    assert answer.status == status
    assert ("commerce" in answer.text) is (status == 200)


def test_other_machines_use_any_name_where_no_token_is_asked_for() -> None:
    """With --no-auth on another address, names of the network are right."""
    with serving(two_shards, "commerce", is_loopback=False) as served:
        answer = served.get("/status.json", host="status.internal:9644")

    assert answer.status == 200


@pytest.mark.parametrize("path", ["/status.json", "/livez", "/none"])
def test_browsers_may_not_use_answers_elsewhere(path: str) -> None:
    """No other site may read, frame or cache an answer, and no script from elsewhere runs."""
    with serving(two_shards, "commerce") as served:
        answer = served.get(path, origin="https://evil.example")

    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    assert "access-control-allow-origin" not in answer.headers
    assert "server" not in answer.headers


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET /livez HTTP/1.1\r\n", b"POST /session HTTP/1.1\r\ncontent-length: 9\r\n\r\nto"],
)
def test_half_a_request_holds_no_connection(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever sends no whole request is disconnected; event streams of others go on."""
    monkeypatch.setattr(server, "REQUEST_S_MAX", 0.1)
    with serving(two_shards, "commerce", token=TOKEN) as served:
        address = ("127.0.0.1", served.port)
        with socket.create_connection(address, timeout=REQUEST_S_MAX) as slow:
            slow.sendall(sent)
            with suppress(ConnectionResetError):
                while slow.recv(4096):
                    pass
        monkeypatch.undo()
        assert served.get("/livez").status == 200


def test_a_stream_outlives_the_time_for_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that is under way is no idle connection."""
    monkeypatch.setattr(server, "REQUEST_S_MAX", 0.05)
    with serving(two_shards, "commerce") as served, ExitStack() as stack:
        opened: list[Iterator[str]] = []

        def is_open() -> bool:
            with suppress(OSError):  # a busy machine may not ask in that time
                opened.append(stack.enter_context(served.event_lines()))
            return bool(opened)

        wait_for("a stream", is_open)
        numbers = [line for line in lines_until(opened[0], 5) if line.startswith("id: ")]

    assert len(set(numbers)) == 5


def lines_until(lines: Iterator[str], events: int) -> Iterator[str]:
    """The lines of that number of events."""
    for line in lines:
        yield line
        events -= line.startswith("id: ")
        if events == 0:
            return


def test_metrics_are_served_where_there_are_any() -> None:
    """/metrics gives the text it is given, behind the same token; without any it is not there."""
    with serving(two_shards, "commerce", token=TOKEN, metrics=lambda: b"up 1\n") as served:
        refused = served.get("/metrics").status
        scraped = served.get("/metrics", authorization=f"Bearer {TOKEN}")
    with serving(two_shards, "commerce") as served:
        absent = served.get("/metrics").status

    assert (refused, scraped.status, scraped.text, absent) == (401, 200, "up 1\n", 404)
    assert scraped.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
