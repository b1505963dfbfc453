"""`shardstream produce` and `tail`: rows go in on real servers and come out as lines."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from event_token import EventToken, StreamPosition
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture, StartServer
from tests.shardstream.command_line import (
    Background,
    background,
    run,
    streaming,
    tail_to_end,
    write_settings,
)


@pytest.fixture
def config(
    tmp_path: Path,
    kafka: KafkaCluster,
    keyspace: str,
    mysql_a: DatabaseFixture,
    mysql_b: DatabaseFixture,
) -> Path:
    """Settings of a keyspace with two shards on two MySQL servers."""
    shards = {"-80": mysql_a, "80-": mysql_b}
    return write_settings(tmp_path, kafka.bootstrap_servers, keyspace, shards)


# What _fill inserts first, as tail prints it.
FIRST_ROW = {
    "id": 2**64 - 1,
    "price": "1.50",
    "tags": ["a", "c"],
    "kind": "y",
    "raw": "AP8=",
    "doc": {"k": [1, None]},
    "flags": 5,
    "day": "2024-02-29",
    "at": "2024-02-29T10:00:00.125Z",
    "moment": "2024-02-29T12:00:00.500000",
    "zero": "0000-00-00",
}


def _fill(database: DatabaseFixture, name: str, first: int) -> None:
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
        cursor.execute(
            f"CREATE TABLE {name}.t (id BIGINT UNSIGNED PRIMARY KEY, price DECIMAL(8,2), "
            "tags SET('a','b','c'), kind ENUM('x','y'), raw VARBINARY(8), doc JSON, "
            "flags BIT(4), day DATE, at TIMESTAMP(3) NULL, moment DATETIME(6), zero DATE)"
        )
        cursor.execute("SET time_zone = '+02:00', sql_mode = ''")
        cursor.execute(
            f"INSERT INTO {name}.t VALUES ({first}, 1.50, 'a,c', 'y', X'00FF', "
            """'{"k": [1, null]}', b'101', '2024-02-29', '2024-02-29 12:00:00.125', """
            "'2024-02-29 12:00:00.5', '0000-00-00')"
        )
        cursor.execute("BEGIN")
        cursor.execute(f"UPDATE {name}.t SET price = NULL WHERE id = {first}")
        cursor.execute(f"DELETE FROM {name}.t WHERE id = {first}")
        cursor.execute("COMMIT")


def _is_filled(producer: Background) -> bool:
    """Whether a producer has written the 2 statements and 3 rows of _fill."""
    return bool(producer.lines[-1]["rows_total"] >= 5)


def _check_rows(rows: list[dict[str, Any]]) -> None:
    assert (rows[0]["before"], rows[0]["after"]) == (None, FIRST_ROW)
    assert rows[1]["after"]["price"] is None
    assert rows[2]["after"] is None
    assert {e["gtid"] for e in rows[1:3]} == {rows[1]["gtid"]}


@pytest.mark.full
def test_written_rows_come_out_as_json(
    tmp_path: Path,
    config: Path,
    keyspace: str,
    mysql_a: DatabaseFixture,
    mysql_b: DatabaseFixture,
) -> None:
    """Two shards, every value form, merged in order; a position resumes exactly after its event."""
    settings = ["--config", str(config)]
    each = ["--json", "--every", "1", *settings]
    with (
        background(tmp_path, "a", "produce", keyspace, "-80", *each) as first,
        background(tmp_path, "b", "produce", keyspace, "80-", *each) as second,
    ):
        first.wait_for("streaming", streaming)
        second.wait_for("streaming", streaming)
        name = f"shop_{keyspace}"
        _fill(mysql_a, name, 2**64 - 1)
        _fill(mysql_b, name, 7)
        first.wait_for("all rows", _is_filled)
        second.wait_for("all rows", _is_filled)
        tail = [keyspace, "--until-idle", "3", "--json", *settings]
        done = tail_to_end(*tail, "--from", "earliest")
        events = [json.loads(line) for line in done.stdout.splitlines()]
        rows = [e for e in events if e["type"] == "ROW" and e["database"] == name]
        part = ("--columns", "price", "--where", "price > 1", "--images", "after")
        looks = (
            ("--from", rows[0]["position"], "--table", f"{name}.t"),
            ("--from", "earliest", "--key-range", "-80"),
            ("--from", "earliest", "--table", f"{name}.t", *part),
        )
        with ThreadPoolExecutor() as pool:
            resumed, only_first, only_dear = pool.map(lambda look: tail_to_end(*tail, *look), looks)
        refused = run(
            "tail", *tail, "--from", "earliest", "--table", f"{name}.t", "--where", "no = 1"
        )

    assert [(e["op"], e["shard"]) for e in rows] == [
        ("INSERT", "-80"),
        ("UPDATE", "-80"),
        ("DELETE", "-80"),
        ("INSERT", "80-"),
        ("UPDATE", "80-"),
        ("DELETE", "80-"),
    ]
    _check_rows(rows)
    for event in rows:
        assert EventToken.from_string(event["token"]).timestamp_us == event["timestamp_us"]
        assert set(StreamPosition.from_string(event["position"]).shards) == {"-80", "80-"}
    assert [e["seq"] for e in events if e["shard"] == "-80"] == list(
        range(1, 1 + sum(e["shard"] == "-80" for e in events))
    )
    # DDL goes to everyone: no binlog says which tables a statement touches.
    rest = map(json.loads, resumed.stdout.splitlines())
    # A position also holds how far its reader knew each shard to be: a later reader knows more.
    again = [e | {"position": ""} for e in rest if e["type"] == "ROW"]
    assert again == [e | {"position": ""} for e in rows[1:]]
    assert {json.loads(line)["shard"] for line in only_first.stdout.splitlines()} == {"-80"}
    # The update that sets the price to NULL leaves what the condition describes.
    dear = [e for e in map(json.loads, only_dear.stdout.splitlines()) if e["type"] == "ROW"]
    assert [(e["op"], e["before"], e["after"]) for e in dear] == [
        change
        for key in (2**64 - 1, 7)
        for change in (
            ("INSERT", None, {"id": key, "price": "1.50"}),
            ("DELETE", {"id": key}, None),
        )
    ]
    assert refused.returncode == 2
    assert f"table {name}.t: there is no column no; there are id, price" in " ".join(
        refused.stderr.split()
    )


def test_a_second_producer_fences_the_first(
    tmp_path: Path, config: Path, keyspace: str, mysql_a: DatabaseFixture
) -> None:
    """B21: the newer process continues the log; the older one says why it ends, with status 3."""
    arguments = ["produce", keyspace, "-80", "--json", "--config", str(config)]
    with background(tmp_path, "old", *arguments) as old:
        old.wait_for("streaming", streaming)
        with background(tmp_path, "new", *arguments) as new:
            new.wait_for("streaming", streaming)
            mysql_a.new_database()
            status = old.wait_end()
            new.wait_for("the row", lambda p: p.lines[-1]["rows_total"] > 0)

    assert status == 3
    assert "stopped" in old.errors
    assert "took over" in old.errors
    assert "Traceback" not in old.errors
    assert "rdkafka" not in old.errors


def test_produce_waits_for_a_server_that_is_away(
    tmp_path: Path, kafka: KafkaCluster, keyspace: str, start_mysql: StartServer
) -> None:
    """B25: started before its server, the command reports that, and streams once it is there."""
    database = start_mysql()
    config = write_settings(tmp_path, kafka.bootstrap_servers, keyspace, {"-": database})
    database.server.kill()
    with background(
        tmp_path, "early", "produce", keyspace, "-", "--json", "--config", str(config)
    ) as early:
        early.wait_for("the fault", lambda p: any("2003" in str(line) for line in p.lines))
        database.server.start()
        early.wait_for("streaming", streaming)


def test_producers_that_start_at_once_on_an_empty_cluster_all_stream(
    tmp_path: Path, config: Path, keyspace: str
) -> None:
    """B22: each writes the topology, and none ends because another one was faster."""
    arguments = ["produce", keyspace, "--json", "--config", str(config)]
    first = background(tmp_path, "first", *arguments[:2], "-80", *arguments[2:])
    second = background(tmp_path, "second", *arguments[:2], "80-", *arguments[2:])
    with first as one, second as other:
        one.wait_for("streaming", streaming)
        other.wait_for("streaming", streaming)


@pytest.mark.full
def test_a_silent_shard_is_named(
    tmp_path: Path, config: Path, keyspace: str, mysql_a: DatabaseFixture, mysql_b: DatabaseFixture
) -> None:
    """C1: tail names a shard without a producer, and does not end as if it had shown all rows."""
    settings = ["--config", str(config)]
    with background(tmp_path, "a", "produce", keyspace, "-80", "--json", *settings) as first:
        with background(tmp_path, "b", "produce", keyspace, "80-", "--json", *settings) as second:
            first.wait_for("streaming", streaming)
            second.wait_for("streaming", streaming)
        with mysql_a.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE unseen_{keyspace}")
        first.wait_for("the statement", lambda p: p.lines[-1]["rows_total"] > 0)

        following = ["tail", keyspace, "--from", "earliest", *settings]
        with background(tmp_path, "tail", *following) as tail:
            tail.wait_for("the shard's name", lambda p: "waiting for 80-: " in p.errors)
        done = run(*following, "--until-idle", "3")

    assert done.returncode == 1
    assert "the stream is incomplete, waiting for 80-: " in done.stderr
    assert "-80:" not in done.stderr.replace("for 80-:", "")
