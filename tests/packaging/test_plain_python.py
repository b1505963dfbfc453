"""Whoever runs plain Python instead of the compiled modules is told so, once."""

from pathlib import Path

import pytest

from event_token.compiled import PLAIN_WARNING
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
from tests.plain_copy import copy_plain, run_python
from tests.repository import ROOT
from tests.shardstream.command_line import write_settings
from tests.spark_consumers.shop import Shop

pytestmark = pytest.mark.full

ROWS = 20

# Two shards, so two tasks; one worker process runs both.
_READ = """
import sys
from spark_consumers.session import build_session
spark = build_session("plain", "local[1]")
rows = spark.read.format("shardstream").option("keyspace", sys.argv[1]).option(
    "kafka.bootstrap.servers", sys.argv[2]).option("start", "earliest").load()
print(rows.count())
print(rows.count())
spark.stop()
"""


@pytest.fixture(scope="module")
def plain_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this checkout without compiled modules."""
    return copy_plain(tmp_path_factory.mktemp("plain"))


def warnings_in(stderr: str) -> int:
    """Count the lines that warn of plain Python."""
    return sum(PLAIN_WARNING in line for line in stderr.splitlines())


def test_a_spark_worker_warns_once(plain_root: Path, kafka: KafkaCluster, keyspace: str) -> None:
    """A worker process logs one warning, however many tasks it runs; a compiled one logs none."""
    shop = Shop(kafka.bootstrap_servers, keyspace)
    shop.write(ROWS)
    shop.close()
    # What a worker process calls.
    warn = "from spark_consumers.source import data_source; data_source._warn_if_plain()"

    plain = run_python(plain_root, "-c", _READ, keyspace, kafka.bootstrap_servers)
    warned, compiled = (run_python(root, "-c", warn) for root in (plain_root, ROOT))

    assert plain.stdout.split() == [str(2 * ROWS)] * 2, plain.stderr
    assert warnings_in(plain.stderr) == warnings_in(warned.stderr) == 1
    assert (compiled.returncode, warnings_in(compiled.stderr)) == (0, 0)


def test_preflight_warns_and_passes(
    plain_root: Path, tmp_path: Path, kafka: KafkaCluster, keyspace: str, mysql_a: DatabaseFixture
) -> None:
    """Plain Python is one warning line, not a problem: the exit status stays 0."""
    config = write_settings(tmp_path, kafka.bootstrap_servers, keyspace, {"-": mysql_a})

    done = run_python(plain_root, "-m", "shardstream", "preflight", "--config", str(config))

    assert done.returncode == 0, done.stderr
    assert warnings_in(done.stderr) == 1
