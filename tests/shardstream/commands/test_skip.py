"""`shardstream skip`: the command that the producer's message names, as an operator runs it."""

import re
from pathlib import Path

from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
from tests.producers.servers.replication import statements
from tests.shardstream.command_line import (
    Background,
    background,
    run,
    streaming,
    tail_to_end,
    write_settings,
)


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
        shown = tail_to_end(*tail, "--until-idle", "5")
        told = producer.lines[-1]["skipped"]
    status = run("status", keyspace, *settings)

    assert (neither.returncode, wrong.returncode) == (2, 2)
    assert "either --gtid GTID or --lost GTIDS" in neither.stderr
    assert "is not one MySQL GTID" in wrong.stderr
    assert skipped.returncode == 0, skipped.stderr
    assert f"{keyspace}/-80: skipped {skip[-1]}, recorded as seq" in skipped.stdout
    assert told["count"] == 1
    assert "-80: 1 skip by operators, the last at 20" in status.stdout
    lines = shown.stdout.splitlines()
    assert lines[-2].endswith(f"SKIP   transaction {skip[-1]}: ticket 17")
    assert lines[-1].endswith(f'{name}.t {{"id": 2}}')
