"""`shardstream database`: what it refuses before Spark starts, and what it keeps secret."""

from pathlib import Path

import pytest

from shardstream.local.kafka_cluster import KafkaCluster
from tests.postgres_servers import PostgresFixture
from tests.shardstream.command_line import run, write_settings
from tests.spark_consumers.shop import NO_DATABASE, SHARDS

pytestmark = pytest.mark.full


@pytest.fixture
def config(tmp_path: Path, kafka: KafkaCluster, keyspace: str) -> str:
    """Settings of a keyspace of two shards."""
    shards = dict.fromkeys(SHARDS, NO_DATABASE)
    return str(write_settings(tmp_path, kafka.bootstrap_servers, keyspace, shards))


def test_what_cannot_work_is_refused_in_one_sentence(
    tmp_path: Path,
    config: str,
    keyspace: str,
    postgres: PostgresFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Accounts, rights, options and keyspaces are checked without Java; no password is shown."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "no-java"))
    name = postgres.new_database()
    user, password = postgres.new_login(name)
    with postgres.connect() as connection:
        connection.execute(f"REVOKE CREATE ON DATABASE {name} FROM {user}".encode())
    wrong = postgres.url(name, user, "wrong-secret")
    arguments = ("database", keyspace, "--checkpoint", str(tmp_path / "c"), "--config", config)

    for more, said in (
        (("--to", wrong), "password authentication failed"),
        (("--to", postgres.url(name, user, password)), "permission denied for database"),
        (("--to", "oracle://user:wrong-secret@host/name"), "oracle:// cannot be a target"),
        (("--to", "user:wrong-secret@host"), "not the URL of a database"),
        (("--to", wrong, "--table", "orders"), "name a table as database.table"),
        (("--to", wrong, "--refresh", "1"), "--refresh '1': use a number with ms, s"),
        (("--to", postgres.url(name)), "no producer has run there yet"),
        (("--to", postgres.url(name), "--deletes", "soft"), f"'{keyspace}') was begun with"),
        (("--to", postgres.url(name), "--deletes", "soft", "--follower", "b"), "no producer has"),
        (("--to", postgres.url(name), "--follower", "b"), "(follower 'b') was begun with"),
    ):
        done = run(*arguments, *more)

        assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
        assert said in done.stderr
        assert "wrong-secret" not in done.stderr + done.stdout
