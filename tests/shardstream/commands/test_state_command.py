"""`shardstream state`: what it refuses before Spark starts."""

from pathlib import Path

import pytest

from tests.shardstream.command_line import run, write_settings
from tests.spark_consumers.shop import NO_DATABASE, SHARDS


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
