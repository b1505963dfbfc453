"""Bad input at the command line: one clear error, status 2, no traceback, nothing written."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # public

from databases.errors import ServerLost
from event_token import UsageError
from producers.errors import Problem
from producers.settings import ServerSettings
from shardstream.commands.preflight import print_problems
from shardstream.local.kafka_cluster import KafkaCluster
from shardstream.preflight import refuse_problems
from shardstream.settings.model import load_settings
from shardstream.settings.producer_settings import shard_producer_settings
from tests.database_servers import DatabaseFixture, StartServer
from tests.shardstream.command_line import run, write_settings


def _topics(kafka: KafkaCluster, keyspace: str) -> list[str]:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    return [name for name in admin.list_topics(timeout=30).topics if name.startswith(keyspace)]


def _assert_refused(done: object, *said: str) -> None:
    text = getattr(done, "stderr", "")
    assert getattr(done, "returncode", None) == 2, text
    assert "Traceback" not in text
    for words in said:
        assert words in text


@pytest.fixture
def config(tmp_path: Path, kafka: KafkaCluster, keyspace: str, mysql_a: DatabaseFixture) -> Path:
    """Settings of a keyspace with one shard."""
    return write_settings(tmp_path, kafka.bootstrap_servers, keyspace, {"-": mysql_a})


def test_settings_that_lose_data_are_listed_at_once(
    tmp_path: Path, kafka: KafkaCluster, keyspace: str, start_mysql: StartServer
) -> None:
    """Format, metadata and GTID settings that lose data are all named, each with its fix."""
    server = start_mysql(
        (
            "--binlog-format=STATEMENT",
            "--binlog-row-metadata=MINIMAL",
            "--gtid-mode=OFF",
            "--enforce-gtid-consistency=OFF",
        )
    )
    path = write_settings(tmp_path, kafka.bootstrap_servers, keyspace, {"-": server})

    produced = run("produce", keyspace, "-", "--config", str(path))
    listed = run("preflight", keyspace, "--json", "--config", str(path))

    wrong = ("binlog_format", "binlog_row_metadata", "gtid_mode", "enforce_gtid_consistency")
    _assert_refused(produced, *wrong, "SET PERSIST")
    _assert_refused(listed)
    *lines, result = map(json.loads, listed.stdout.splitlines())
    found = [line["what"] for line in lines]
    assert result["problems"] == len(found)
    assert all(any(name in what for what in found) for name in wrong)
    assert _topics(kafka, keyspace) == []


def test_a_server_without_binlog_and_an_account_without_grants_are_refused(
    tmp_path: Path, kafka: KafkaCluster, keyspace: str, start_mysql: StartServer
) -> None:
    """A disabled binlog and a missing grant are in one list."""
    server = start_mysql(("--skip-log-bin",))
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT host FROM mysql.user WHERE user = %s", (server.user,))
        for (host,) in cursor.fetchall():
            cursor.execute(f"REVOKE REPLICATION SLAVE ON *.* FROM '{server.user}'@'{host}'")
    path = write_settings(tmp_path, kafka.bootstrap_servers, keyspace, {"-": server})

    done = run("produce", keyspace, "-", "--config", str(path))

    _assert_refused(done, "log_bin", "REPLICATION SLAVE", "GRANT")
    assert _topics(kafka, keyspace) == []


def test_a_purged_start_is_refused(
    tmp_path: Path, kafka: KafkaCluster, keyspace: str, start_mysql: StartServer
) -> None:
    """A GTID set that the server no longer has is refused with the GTIDs that are missing."""
    server = start_mysql()
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE one")
        cursor.execute("SELECT @@GLOBAL.server_uuid")
        [(uuid,)] = cursor.fetchall()
        cursor.execute("FLUSH BINARY LOGS")
        cursor.execute("CREATE DATABASE two")
        cursor.execute("SHOW BINARY LOGS")
        newest = cursor.fetchall()[-1][0]
        cursor.execute(f"PURGE BINARY LOGS TO '{newest}'")
    path = write_settings(tmp_path, kafka.bootstrap_servers, keyspace, {"-": server})

    done = run("produce", keyspace, "-", "--from", f"gtid:{uuid}:99", "--config", str(path))
    purged = run("produce", keyspace, "-", "--from", "gtid:", "--config", str(path))

    _assert_refused(done, f"{uuid}:99")
    _assert_refused(purged, uuid, "has purged")


def test_wrong_topics_are_refused(config: Path, kafka: KafkaCluster, keyspace: str) -> None:
    """A shard log that is compacted and a progress topic that is not are both named."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    wrong = [
        NewTopic(f"{keyspace}.-", 1, 1, config={"cleanup.policy": "compact"}),
        NewTopic(f"{keyspace}.-.progress", num_partitions=1, replication_factor=1),
    ]
    for future in admin.create_topics(wrong).values():
        future.result()

    done = run("produce", keyspace, "-", "--config", str(config))

    _assert_refused(
        done, f"{keyspace}.-", "cleanup.policy=delete", f"{keyspace}.-.progress", "compact"
    )
    assert sorted(_topics(kafka, keyspace)) == [f"{keyspace}.-", f"{keyspace}.-.progress"]


@pytest.mark.full
def test_unknown_names_and_broken_positions_are_refused(config: Path, keyspace: str) -> None:
    """An unknown shard, keyspace, position, start, key range or table is one clear error."""
    settings = ["--config", str(config)]

    _assert_refused(run("produce", keyspace, "80-", *settings), "no shard", "-")
    _assert_refused(run("produce", "nowhere", "-", *settings), "unknown keyspace")
    _assert_refused(
        run("produce", keyspace, "-", "--from", "20260131", *settings), "--from", "digits alone"
    )
    _assert_refused(run("tail", keyspace, *settings), keyspace)
    _assert_refused(run("tail", keyspace, "--from", "Zm9v", *settings), "--from", "position")
    _assert_refused(run("tail", keyspace, "--key-range", "zz", *settings), "zz")
    _assert_refused(run("tail", keyspace, "--table", "t", *settings), "database.table")
    _assert_refused(run("tail", keyspace, "--config", "none.toml"), "none.toml")


def test_server_that_is_away_does_not_stop_a_shard_that_has_another(
    config: Path, keyspace: str, mysql_a: DatabaseFixture
) -> None:
    """One of several servers may be away; one that refuses the account must be fixed."""
    settings = load_settings(config)
    shard = shard_producer_settings(settings, keyspace, "-")
    away = ServerSettings("127.0.0.1", 1, "nobody", "")
    wrong = ServerSettings("localhost", mysql_a.port, "nobody", "")

    refuse_problems(settings, replace(shard, servers=(away, *shard.servers)))
    with pytest.raises(ServerLost, match=r"127\.0\.0\.1:1"):
        refuse_problems(settings, replace(shard, servers=(away,)))
    with pytest.raises(UsageError, match="Access denied"):
        refuse_problems(settings, replace(shard, servers=(wrong, *shard.servers)))


def test_brackets_in_problems_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """A column or host with brackets in its name is shown as it is, not taken for markup."""
    problem = Problem("column shop.t.[/bold] has no type", "[::1]:3306", "rename [red]x[/red]")

    print_problems([("shop/-", problem)], [], 1)

    first, second = capsys.readouterr().out.splitlines()
    assert first == "shop/- [::1]:3306: column shop.t.[/bold] has no type"
    assert second == "    rename [red]x[/red]"


@pytest.mark.full
def test_retention_that_ends_is_warned_of(config: Path, keyspace: str) -> None:
    """A log that is deleted by age is no problem, but preflight says what that means."""
    plain = run("preflight", keyspace, "--config", str(config))
    config.write_text(config.read_text().replace("[kafka]", "[kafka]\nretention_ms = 86400000"))
    short = run("preflight", keyspace, "--config", str(config))

    assert (plain.returncode, short.returncode) == (0, 0)
    assert "retention.ms" not in plain.stderr
    assert f"warning: {keyspace}.-: it has one replica" in plain.stderr
    assert f"warning: {keyspace}.-: retention.ms is 86400000 (1 days)" in short.stderr


def test_debug_shows_the_traceback(config: Path) -> None:
    """--debug shows the traceback, for developers of shardstream."""
    done = run("--debug", "produce", "nowhere", "-", "--config", str(config))

    assert done.returncode == 1
    assert "Traceback" in done.stderr
