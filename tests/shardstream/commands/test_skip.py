"""`shardstream skip`: the command that the producer's message names, as an operator runs it."""

import re
from pathlib import Path

import pytest

from event_token import MysqlGtidSet
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
from tests.producers.servers.replication import executed, statements
from tests.shardstream.command_line import (
    Background,
    background,
    run,
    streaming,
    tail_to_end,
    write_settings,
)

pytestmark = pytest.mark.full


def stopped_by(producer: Background) -> list[str]:
    """Wait until a producer stops; return the arguments of the command that it names."""
    assert producer.wait_end() == 1
    found = re.search(r"shardstream (skip .*) --reason TEXT", producer.errors)
    assert found is not None, producer.errors
    return found[1].split()


def test_the_named_command_gets_the_shard_going(
    tmp_path: Path,
    kafka: KafkaCluster,
    keyspace: str,
    mysql_a: DatabaseFixture,
    mysql_b: DatabaseFixture,
) -> None:
    """B3: produce stops, its message's command runs as it stands, produce goes on, tail tells."""
    shards = {"-80": mysql_a, "80-": mysql_b}
    config = write_settings(tmp_path, kafka.bootstrap_servers, keyspace, shards)
    settings = ["--config", str(config)]
    name = mysql_a.new_database()
    first = ["produce", keyspace, "-80", "--json", *settings]
    tail = [keyspace, "--key-range=-80", "--from", "earliest", *settings]
    with background(tmp_path, "a", *first) as producer:
        producer.wait_for("streaming", streaming)
        statements(
            mysql_a,
            f"CREATE TABLE {name}.t (id INT PRIMARY KEY)",
            "SET SESSION binlog_format = STATEMENT",
            f"INSERT INTO {name}.t VALUES (1)",
            "SET SESSION binlog_format = ROW",
            f"INSERT INTO {name}.t VALUES (2)",
        )
        skip = stopped_by(producer)
    neither = run("skip", keyspace, "-80", "--reason", "x", *settings)
    wrong = run(*skip[:-1], "no-gtid", "--reason", "x", *settings)
    skipped = run(*skip, "--reason", "ticket 17", *settings)
    with background(tmp_path, "b", *first) as producer:
        producer.wait_for("the row", lambda p: streaming(p) and p.lines[-1]["rows_total"] > 0)
        shown = tail_to_end(*tail, "--until-idle", "3")
        told = producer.lines[-1]["skipped"]
    status = run("status", keyspace, *settings)

    assert (neither.returncode, wrong.returncode) == (2, 2)
    assert "either --gtid GTIDS, or --until GTID and --table TABLE" in neither.stderr
    assert "is not a MariaDB GTID" in wrong.stderr
    assert skipped.returncode == 0, skipped.stderr
    assert f"{keyspace}/-80: skipped {skip[-1]}, recorded as seq" in skipped.stdout
    assert told["count"] == 1
    assert "-80: 1 skip by operators, the last at 20" in status.stdout
    lines = shown.stdout.splitlines()
    assert lines[-2].endswith(f"SKIP   transaction {skip[-1]}: ticket 17")
    assert lines[-1].endswith(f'{name}.t {{"id": 2}}')


def test_an_order_that_was_killed_goes_on_where_it_was(
    tmp_path: Path, kafka: KafkaCluster, keyspace: str, mysql_a: DatabaseFixture
) -> None:
    """Killed between two of its skips, it has lost and repeated nothing, and ends by itself."""
    config = write_settings(tmp_path, kafka.bootstrap_servers, keyspace, {"-": mysql_a})
    settings = ["--config", str(config)]
    name = mysql_a.new_database()
    first = ["produce", keyspace, "-", "--json", *settings]
    unlogged = "ALTER TABLE t EXCHANGE PARTITION p WITH TABLE a"
    with background(tmp_path, "a", *first) as producer:
        producer.wait_for("streaming", streaming)
        statements(
            mysql_a,
            f"USE {name}",
            "CREATE TABLE t (id INT PRIMARY KEY) PARTITION BY RANGE (id) "
            "(PARTITION q VALUES LESS THAN (100), PARTITION p VALUES LESS THAN MAXVALUE)",
            "CREATE TABLE a (id INT PRIMARY KEY)",
            *[each for i in range(10) for each in (f"INSERT INTO t VALUES ({i})", unlogged)],
        )
        stop = stopped_by(producer)[-1]
    source, _, number = stop.rpartition(":")
    every = f"{source}:{number}-{int(number) + 19}"
    order = ["skip", keyspace, "-", "--table", f"{name}.t", "--table", f"{name}.a"]
    order += ["--reason", "ticket 18", *settings]
    with background(tmp_path, "b", *order) as killed:
        killed.wait_for("a skip", lambda k: "skipped" in k.output_path.read_text())
    done_before = killed.output_path.read_text().count(": skipped ")
    again = run(*order)
    late = run("skip", keyspace, "-", "--gtid", every, "--reason", "x", *settings)
    gtid = harmless(mysql_a, name)
    refused = run("skip", keyspace, "-", "--gtid", gtid, "--reason", "x", *settings)
    forced = harmless(mysql_a, name)
    options = ["--gtid", forced, "--force", "--reason", "x", *settings]
    passed = run("skip", keyspace, "-", *options)
    with background(tmp_path, "c", *first) as producer:
        producer.wait_for("streaming", streaming)
        shown = tail_to_end(keyspace, "--from", "earliest", *settings, "--until-idle", "3")

    assert again.returncode == 0, again.stderr
    assert 1 <= done_before <= 10
    assert again.stdout.count(": skipped ") in {10 - done_before, 9 - done_before}
    assert (late.returncode, refused.returncode, passed.returncode) == (2, 2, 0), passed.stderr
    assert "is already past" in late.stderr
    assert f"{gtid} did not stop the shard, and was not skipped" in refused.stderr
    assert f"skipped {forced}, recorded as seq" in passed.stdout
    seen = re.findall(r"SKIP   transaction \S+: (\S+ \S+)|\.t \{\"id\": (\d+)\}", shown.stdout)
    assert seen == [e for i in range(10) for e in (("", str(i)), ("ticket 18", ""))]


def harmless(database: DatabaseFixture, name: str) -> str:
    """Commit a transaction that stops nothing; return its GTID."""
    before = executed(database)
    statements(database, f"CREATE TABLE IF NOT EXISTS {name}.harmless (id INT PRIMARY KEY)")
    return str(MysqlGtidSet.parse(executed(database)).subtract(MysqlGtidSet.parse(before)))
