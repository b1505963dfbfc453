"""`shardstream table-topics`: what it refuses before Spark starts."""

from pathlib import Path

import pytest

from shardstream.local.kafka_cluster import KafkaCluster
from tests.shardstream.command_line import run, write_settings
from tests.spark_consumers.shop import NO_DATABASE, SHARDS

pytestmark = pytest.mark.full


@pytest.fixture
def config(
    tmp_path: Path, kafka: KafkaCluster, keyspace: str, monkeypatch: pytest.MonkeyPatch
) -> str:
    """Settings of a keyspace of two shards, on a machine where Spark cannot start."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "no-java"))
    shards = dict.fromkeys(SHARDS, NO_DATABASE)
    return str(write_settings(tmp_path, kafka.bootstrap_servers, keyspace, shards))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "no producer has run there yet"),
        (("--format", "flat-avro"), "needs a schema registry: name one with --schema-registry URL"),
        (("--tasks", "3"), "--tasks 3: must be a power of two, at most 64"),
        (("--keep", "1 week"), "--keep '1 week': use a number with ms, s, m, h or d"),
        (("--table", "orders"), "--table 'orders': name a table as database.table"),
        (("--table", "shop.größe"), "Kafka takes only A-Z a-z 0-9 _ -"),
        (("--accept-skip", "ticket 17"), "--accept-skip 'ticket 17': name GTIDs, or reason:TEXT"),
    ],
)
def test_bad_input_is_refused_before_spark_starts(
    config: str, tmp_path: Path, keyspace: str, arguments: tuple[str, ...], said: str
) -> None:
    """Each is one sentence and status 2, even without Java."""
    place = ("--checkpoint", str(tmp_path / "checkpoint"), "--config", config)

    done = run("table-topics", keyspace, *place, *arguments)

    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
    assert said in done.stderr
