"""`shardstream state`: what it refuses before Spark starts, and what it says when it stops."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from shardstream.local.kafka_cluster import KafkaCluster
from tests.shardstream.command_line import run, write_settings
from tests.spark_consumers.shop import NO_DATABASE, ORDERS, SHARDS, T0_US, Change, Shop


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--table", "orders"), "--table 'orders': name a table as database.table"),
        (("--partitions", "3"), "partitions: 3 is not a power of two"),
        (("--name", "lake/orders"), "lake/orders"),
    ],
)
def test_bad_input_is_refused_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: str
) -> None:
    """Each is one sentence and status 2, even without Java and Kafka."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "no-java"))
    shards = dict.fromkeys(SHARDS, NO_DATABASE)
    config = str(write_settings(tmp_path, "127.0.0.1:1", "commerce", shards))

    done = run("state", "--target", str(tmp_path), "--config", config, *arguments, "commerce")

    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
    assert said in done.stderr


@pytest.mark.full
def test_what_ends_a_query_is_one_sentence(
    tmp_path: Path, kafka: KafkaCluster, keyspace: str
) -> None:
    """A row that a task refuses is named in one line, without the stack traces that Spark logs."""
    with closing(Shop(kafka.bootstrap_servers, keyspace)) as shop:
        row = Change(T0_US, after={"id": 1, "note": "a", "price": None})
        keyless = replace(row, shape=replace(ORDERS, primary_key=()))
        shop.writers["-80"].write([keyless])
        shop.write(1)
    shards = dict.fromkeys(SHARDS, NO_DATABASE)
    config = str(write_settings(tmp_path, kafka.bootstrap_servers, keyspace, shards))

    target = ("--target", str(tmp_path / "lake"), "--available-now")
    done = run("state", *target, "--config", config, keyspace)

    assert done.returncode == 1
    assert "primary key" in done.stderr.splitlines()[-1]
    assert not [line for line in done.stderr.splitlines() if line.startswith(("\tat ", "Traceb"))]
