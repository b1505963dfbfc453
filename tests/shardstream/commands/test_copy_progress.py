"""Progress and estimated time left of a copy, as `shardstream copy status` shows them."""

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from producers.copy.chunk import ChunkConnection
from producers.copy.table_copier import next_rate
from producers.settings import CopySettings
from shardstream.local.kafka_cluster import KafkaCluster
from shardstream.status.keyspace_report import copy_json, seconds_left
from tests.database_servers import DatabaseFixture
from tests.producers.copy.copying import start, topics_of, wait_state
from tests.producers.session.producing import producing, settings_of
from tests.shardstream.command_line import run, write_settings
from tests.waiting import WAIT_S, wait_for
from topics.progress.copy_topic import CopyState, TableCopy, read_copies

ROWS = 1_000
CHUNK_ROWS = 100
CHUNKS = 3
RUNNING = TableCopy(
    "shop",
    "orders",
    "1",
    CopyState.COPYING,
    0,
    0,
    rows_estimated=10_000,
    rows_read=4_000,
    rows_per_s=500.0,
)


def test_time_left_is_what_is_not_read_by_the_rate() -> None:
    """10,000 rows, 4,000 of them read, 500 rows/s: 12 s are left."""
    assert seconds_left(RUNNING) == 12
    assert copy_json("-80", replace(RUNNING, rows_per_s=700.0))["seconds_left"] == 8.6


@pytest.mark.parametrize(
    "copy",
    [
        replace(RUNNING, state=CopyState.PAUSED),
        replace(RUNNING, state=CopyState.COMPLETED),
        replace(RUNNING, rows_per_s=0.0),
        replace(RUNNING, rows_estimated=0),
        replace(RUNNING, rows_read=10_000),
        replace(RUNNING, where="id > 7"),
    ],
    ids=["paused", "completed", "held_back", "not_estimated", "past_the_estimate", "condition"],
)
def test_time_left_is_not_told_where_it_is_unknown(copy: TableCopy) -> None:
    """A copy that has read more than the server estimated does not say that it is done."""
    assert seconds_left(copy) is None
    assert copy_json("-", copy)["seconds_left"] is None


def test_rate_is_averaged_over_about_a_second() -> None:
    """A steady rate stays what it is, a change shows after a second, a long pause counts whole."""
    assert next_rate(0, 5_000, 1_000_000) == 5_000
    assert next_rate(5_000, 500, 100_000) == 5_000
    assert next_rate(5_000, 0, 100_000) == 4_500
    assert next_rate(5_000, 1_000, 10_000_000) == 100
    assert next_rate(0, 0, 0) == 0


class Held:
    """Lets a number of chunks through, then holds the next one until told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, chunks: int) -> None:
        """From now on, for everybody in this process who reads chunks."""
        self.release = threading.Event()
        read, self._left = ChunkConnection.read, chunks

        def held(*arguments: object) -> object:
            self._left -= 1
            if self._left < 0:
                assert self.release.wait(WAIT_S)
            return read(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(ChunkConnection, "read", held)


@pytest.mark.full
def test_running_copy_shows_progress_and_time_left(
    database: DatabaseFixture,
    kafka: KafkaCluster,
    keyspace: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the midst of a copy its status tells rows, rate, and the time that the rest will take."""
    name = database.new_database()
    with database.connect(database=name) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY)")
        cursor.execute(f"INSERT INTO t VALUES {', '.join(f'({i})' for i in range(ROWS))}")
        cursor.execute("ANALYZE TABLE t")
    settings = settings_of(database, kafka, keyspace, copy=CopySettings(chunk_rows_max=CHUNK_ROWS))
    config = write_settings(tmp_path, kafka.bootstrap_servers, keyspace, {"-": database})
    status = ("copy", "status", keyspace, "--config", str(config))
    held = Held(monkeypatch, CHUNKS)

    def rows_read() -> int:
        return sum(c.rows_read for c in read_copies(settings.kafka, topics_of(settings)).values())

    with producing(settings):
        start(settings, f"{name}.t")
        wait_for("some chunks are in the log", lambda: rows_read() == CHUNKS * CHUNK_ROWS)
        shown, table = run(*status, "--json"), run(*status)
        held.release.set()
        wait_state(settings, CopyState.COMPLETED)
        [done] = [json.loads(line) for line in run(*status, "--json").stdout.splitlines()]

    [copy] = [json.loads(line) for line in shown.stdout.splitlines()]
    assert (copy["state"], copy["rows"], copy["rows_read"]) == ("copying", 300, 300)
    assert copy["last_key"] == {"id": "299"}
    # InnoDB samples pages, all of them where a table is this small.
    assert copy["rows_estimated"] == pytest.approx(ROWS, rel=0.2)
    left = (copy["rows_estimated"] - copy["rows_read"]) / copy["rows_per_s"]
    assert copy["seconds_left"] == pytest.approx(left, abs=0.1)
    assert "copying" in table.stdout
    assert (done["rows"], done["seconds_left"]) == (ROWS, None)
