"""What commands that run until they are stopped print, and how often."""

import io
import json
import logging
import re
from datetime import datetime
from pathlib import Path

import pytest

from shardstream.commands.status_lines import (
    BUSY_INTERVAL_S,
    FIRST_INTERVAL_S,
    IDLE_INTERVAL_S,
    Status,
    StatusLines,
    library_formatter,
)
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
from tests.shardstream.command_line import background, streaming, write_settings
from tests.waiting import wait_for

LINE = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (DEBUG|INFO|WARNING|ERROR|CRITICAL) +\S+: "
)


class Clock:
    """A clock that tests set."""

    now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("shardstream.commands.status_lines.time", clock)
    return clock


def printed_at(clock: Clock, lines: StatusLines, steps: list[tuple[float, int]]) -> list[float]:
    """Report a number of rows at each time; return the times at which a line was printed."""
    printed: list[float] = []
    out = lines._out = io.StringIO()
    for at_s, rows in steps:
        clock.now_s = 1000.0 + at_s
        before = out.tell()
        lines.report(Status("commerce/-80", "text", {"rows": rows}, progress=rows))
        printed += [at_s] * (out.tell() > before)
    return printed


def test_an_idle_command_prints_a_line_a_minute(clock: Clock) -> None:
    """C6: a line at the start, and one a minute while nothing changes."""
    lines = StatusLines(as_json=False)

    assert printed_at(clock, lines, [(s, 0) for s in range(150)]) == [
        0,
        IDLE_INTERVAL_S,
        2 * IDLE_INTERVAL_S,
    ]


def test_a_busy_command_prints_a_line_every_ten_seconds(clock: Clock) -> None:
    """C6: the first progress shows at once, the rest every ten seconds."""
    lines = StatusLines(as_json=False)
    steps = [(0.0, 0), *((s / 10, s) for s in range(5, 220))]

    assert printed_at(clock, lines, steps) == [
        0,
        FIRST_INTERVAL_S,
        FIRST_INTERVAL_S + BUSY_INTERVAL_S,
        FIRST_INTERVAL_S + 2 * BUSY_INTERVAL_S,
    ]


def test_every_sets_the_interval(clock: Clock) -> None:
    """`--every` replaces both intervals."""
    lines = StatusLines(as_json=False, every_s=5)

    assert printed_at(clock, lines, [(s, s // 10) for s in range(21)]) == [0, 5, 10, 15, 20]


def test_the_last_progress_is_not_held_back_for_ever() -> None:
    """C6: progress that came too early for a line is printed later, even if nothing follows it."""
    out = io.StringIO()
    lines = StatusLines(as_json=True, every_s=0.2, out=out)
    for rows in range(20):
        lines.report(Status("commerce/-80", "text", {"rows": rows}, progress=rows))

    wait_for("the last progress", lambda: '"rows": 19}' in out.getvalue())


def test_lines_begin_with_time_and_level() -> None:
    """C6: text, JSON and the log records of libraries have a time in UTC and a level."""
    text, as_json = io.StringIO(), io.StringIO()
    for stream, is_json in ((text, False), (as_json, True)):
        lines = StatusLines(as_json=is_json, out=stream)
        lines.report(Status("commerce/-80", "streaming", {"rows": 1}, progress=1))
    record = logging.LogRecord("shardstream.kafka", logging.ERROR, "", 0, "%s", ("FAIL",), None)

    assert LINE.match(text.getvalue())
    fields = json.loads(as_json.getvalue())
    assert datetime.fromisoformat(fields.pop("time")).tzinfo is not None
    assert fields == {"level": "info", "event": "streaming", "rows": 1}
    assert LINE.match(library_formatter(as_json=False).format(record))
    assert json.loads(library_formatter(as_json=True).format(record))["event"] == "FAIL"


def test_a_producer_prints_lines_with_a_time(
    tmp_path: Path, kafka: KafkaCluster, keyspace: str, mysql_a: DatabaseFixture
) -> None:
    """C6: `produce --json` gives each line a time, and repeats nothing within a minute."""
    config = write_settings(tmp_path, kafka.bootstrap_servers, keyspace, {"-": mysql_a})
    arguments = ["produce", keyspace, "-", "--json", "--config", str(config)]
    with background(tmp_path, "producer", *arguments) as producer:
        producer.wait_for("streaming", streaming)
        mysql_a.new_database()
        producer.wait_for("the statement", lambda p: p.lines[-1]["rows_total"] > 0)
        lines = producer.lines

    said = [(line["state"], line["note"], line["rows_total"]) for line in lines]
    times = [datetime.fromisoformat(line["time"]) for line in lines]
    assert {line["keyspace"] for line in lines} == {keyspace}
    for i in range(1, len(lines)):
        seconds = (times[i] - times[i - 1]).total_seconds()
        assert said[i] != said[i - 1] or seconds > IDLE_INTERVAL_S - 1


@pytest.mark.full
def test_librdkafka_lines_have_the_same_form(tmp_path: Path, mysql_a: DatabaseFixture) -> None:
    """C6: --debug shows librdkafka's messages as lines like all others; else they are left out."""
    config = write_settings(tmp_path, "127.0.0.1:1", "commerce", {"-": mysql_a})
    arguments = ["tail", "commerce", "--until-idle", "1", "--config", str(config)]

    # Each gives up on the brokers after ten seconds.
    with (
        background(tmp_path, "shown", *arguments, "--debug") as shown,
        background(tmp_path, "quiet", *arguments) as quiet,
    ):
        assert (shown.wait_end(), quiet.wait_end()) == (1, 1)

    found = [line for line in shown.errors.splitlines() if "rdkafka#" in line]
    assert found
    assert all(LINE.match(line) for line in found)
    assert "rdkafka" not in quiet.errors


def test_the_error_that_a_command_ends_with_is_a_line(tmp_path: Path) -> None:
    """With --json an error is an object with its class, and no secret of the settings in it."""
    config = tmp_path / "shardstream.toml"
    config.write_text('[kafka]\nbootstrap_servers = "127.0.0.1:1"\npassword = "hidden"\n')
    with background(tmp_path, "end", "status", "--json", "--config", str(config)) as done:
        assert done.wait_end() == 2

    said = json.loads(done.errors)
    assert (said["level"], said["error"]) == ("error", "UsageError")
    assert said["event"].startswith("error: ")
    assert "hidden" not in done.errors
