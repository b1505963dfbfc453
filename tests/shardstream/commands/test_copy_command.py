"""`shardstream copy`: rows of an existing table appear in tail, and status shows progress."""

import json
from pathlib import Path

import pytest

from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
from tests.shardstream.command_line import (
    background,
    run,
    streaming,
    tail_to_end,
    write_settings,
)
from topics.keyspace.audit import operator

pytestmark = pytest.mark.full

ROWS = 3_000


@pytest.fixture
def config(tmp_path: Path, mysql_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str) -> str:
    """Settings of a keyspace with one shard."""
    return str(write_settings(tmp_path, kafka.bootstrap_servers, keyspace, {"-": mysql_a}))


def test_a_filled_table_is_copied_by_command(
    tmp_path: Path, mysql_a: DatabaseFixture, keyspace: str, config: str
) -> None:
    """`start --wait` ends with the copy, tail prints its rows, and a refusal names the table."""
    name = mysql_a.new_database()
    with mysql_a.connect(database=name) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
        cursor.execute("CREATE TABLE keyless (a INT)")
        rows = ", ".join(f"({i}, {i})" for i in range(ROWS))
        cursor.execute(f"INSERT INTO t VALUES {rows}")
    ask = (keyspace, "--config", config, "--table")
    with background(
        tmp_path, "produce", "produce", keyspace, "-", "--config", config, "--json"
    ) as p:
        p.wait_for("streaming", streaming)
        copied = run("copy", "start", *ask, f"{name}.t", "--wait", "--json", "--reason", "ticket 3")
        refused = run("copy", "start", *ask, f"{name}.keyless")
        status = run("copy", "status", keyspace, "--config", config, "--json")
        shown = run("copy", "status", keyspace, "--config", config)
        seen = tail_to_end(
            *(keyspace, "--config", config, "--from", "copy", "--json"),
            *("--table", f"{name}.t", "--until-idle", "3"),
        )

    assert copied.returncode == 0, copied.stderr
    assert refused.returncode == 2
    assert f"{name}.keyless has neither a primary key" in refused.stderr
    [copy] = [json.loads(line) for line in status.stdout.splitlines()]
    assert (copy["by"], copy["reason"]) == (operator(), "ticket 3")
    assert (copy["table"], copy["state"], copy["rows"]) == (f"{name}.t", "completed", ROWS)
    assert "completed" in shown.stdout
    events = [json.loads(line) for line in seen.stdout.splitlines()]
    reads = [event["after"]["id"] for event in events if event["op"] == "READ"]
    assert reads == list(range(ROWS))
    assert "COPY_COMPLETED" in {event["type"] for event in events}
