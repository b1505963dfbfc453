import sys
import time
from pathlib import Path

import pytest

from event_token.errors import UsageError
from producers.session.counters import ProducerCounters
from shardstream.commands.http.options import observed, serves_metrics
from shardstream.commands.http.probe import LIVE_S_MAX, READY_S_MAX, Probe, Watched
from shardstream.local.ports import free_ports
from shardstream.status.metrics.producer import producer_families
from tests.shardstream.status.answers import get


class Clock:
    """A monotonic clock that a test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1_000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)


def test_a_process_that_waits_is_ready_for_a_while_and_stays_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An outage shorter than a failover is nobody's business, and a restart helps none."""
    clock = Clock(monkeypatch)
    probe = Probe(lambda: 1_000.0, is_ready=False)
    first = probe.ready()
    probe.report("")
    works = probe.ready()
    probe.report("the server is gone")
    clock.now_s += READY_S_MAX
    probe.report("no server answers")

    assert first == (False, "starting")
    assert works == (True, "ok")
    assert probe.ready() == (True, "no server answers")
    clock.now_s += 1
    assert probe.ready() == (False, "no server answers")
    assert probe.live() == (True, "ok")
    probe.report("")
    assert probe.ready() == (True, "ok")


def test_a_loop_that_stands_still_is_not_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer that works but does not turn hangs; one whose loop is not known never does."""
    clock = Clock(monkeypatch)
    producer, sink = Probe(lambda: 1_000.0, is_ready=True), Probe(is_ready=True)
    clock.now_s += LIVE_S_MAX

    assert producer.live() == (True, "ok")
    clock.now_s += 1
    assert producer.live() == (False, "the loop has not turned for 31 s")
    assert sink.live() == (True, "ok")


def test_statuses_are_passed_on_and_kept() -> None:
    """The line is printed as before, and the last status is there for scrapes."""
    told: list[str] = []
    probe = Probe(is_ready=True)
    watched = Watched(told.append, probe, lambda status: "" if status == "fine" else status)

    for status in ("fine", "broken"):
        watched(status)

    assert told == ["fine", "broken"]
    assert watched.last == "broken"
    assert probe.ready()[1] == "broken"


def test_a_process_serves_metrics_and_probes(tmp_path: Path) -> None:
    """Probes come without a token, scrapes do not; counters are read when asked for."""
    token_file = tmp_path / "token"
    token_file.write_text("0123456789abcdef\n")
    [port] = free_ports(1)
    counters, probe = ProducerCounters(), Probe(is_ready=False)
    answers = {}

    @serves_metrics
    def command() -> None:
        with observed(probe, lambda: producer_families("commerce", "-80", counters, None)):
            answers["early"] = get(port, "/readyz")
            probe.report("")
            answers["ready"] = get(port, "/readyz")
            answers["live"] = get(port, "/livez")
            answers["no token"] = get(port, "/metrics")
            counters.committed(records=5, transactions=2, size=640, took_s=0.01)
            answers["metrics"] = get(port, "/metrics", "0123456789abcdef")

    command(http=f"127.0.0.1:{port}", token_file=token_file)

    assert answers["early"] == (503, "starting\n")
    assert answers["ready"] == answers["live"] == (200, "ok\n")
    assert answers["no token"][0] == 401
    status, text = answers["metrics"]
    assert status == 200
    assert 'shardstream_producer_rows_total{keyspace="commerce",shard="-80"} 5.0' in text
    assert "process_start_time_seconds" in text
    assert "shardstream_build_info" in text


def test_without_the_option_nothing_is_served() -> None:
    """A command without --http runs as ever, whatever is not installed."""
    ran = []

    @serves_metrics
    def command() -> None:
        with observed(Probe(is_ready=True), tuple):
            ran.append("shardstream.status.process" in sys.modules or "served nothing")

    sys.modules.pop("shardstream.status.process", None)
    command()

    assert ran == ["served nothing"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"no_auth": True}, "add it"),
        ({"http": "0.0.0.0:1"}, "--auth-token-file FILE"),
        ({"http": "9644"}, "give HOST:PORT"),
    ],
)
def test_an_address_that_others_reach_needs_a_token(
    options: dict[str, str | bool], says: str
) -> None:
    """What is wrong is said before anything is started."""

    @serves_metrics
    def command() -> None:
        with observed(Probe(is_ready=True), tuple):
            raise AssertionError

    with pytest.raises(UsageError, match=says):
        command(**options)
