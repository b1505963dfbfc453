import sys
import time
from pathlib import Path
from typing import Any

import pytest

from event_token.errors import UsageError
from producers.session.context import ProducerCounters
from shardstream.commands.options import HttpOptions, observed
from shardstream.local.local_server import free_ports
from shardstream.status.metrics.processes import producer_families
from shardstream.status.probe import LIVE_S_MAX, READY_S_MAX, Probe, StatusRelay
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
    watched = StatusRelay(told.append, probe, lambda status: "" if status == "fine" else status)

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

    options = HttpOptions(http=f"127.0.0.1:{port}", token_file=token_file)

    with observed(options, probe, lambda: producer_families("commerce", "-80", counters, None)):
        answers["early"] = get(port, "/readyz")
        probe.report("")
        answers["ready"] = get(port, "/readyz")
        answers["live"] = get(port, "/livez")
        answers["no token"] = get(port, "/metrics")
        counters.committed(records=5, transactions=2, size=640, took_s=0.01)
        answers["metrics"] = get(port, "/metrics", "0123456789abcdef")

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
    sys.modules.pop("shardstream.status.server", None)

    with observed(HttpOptions(), Probe(is_ready=True), tuple):
        is_imported = "shardstream.status.server" in sys.modules

    assert not is_imported


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"no_auth": True}, "require --http"),
        ({"http": "0.0.0.0:1"}, "--auth-token-file FILE"),
        ({"http": "9644"}, "give HOST:PORT"),
    ],
)
def test_an_address_that_others_reach_needs_a_token(options: dict[str, Any], says: str) -> None:
    """What is wrong is said before anything is started."""
    with (
        pytest.raises(UsageError, match=says),
        observed(HttpOptions(**options), Probe(is_ready=True), tuple),
    ):
        raise AssertionError
