"""`shardstream preflight` lists all that is wrong, whatever is down."""

import json
from pathlib import Path
from typing import Any

import pytest

from databases.errors import ServerLost
from producers.errors import Problem
from shardstream.commands.app import EXIT_FAILED, exit_status
from shardstream.local.kafka_cluster import KafkaCluster
from shardstream.preflight import PreflightReport
from tests.database_servers import DatabaseFixture, StartServer
from tests.producers.servers.replication import purge_to
from tests.producers.session.producing import producing, settings_of, wait_caught_up
from tests.shardstream.command_line import run, write_settings
from topics.errors import NoBrokerAnswers

# Nobody listens on these ports.
DOWN = """
[kafka]
bootstrap_servers = "127.0.0.1:1"
[keyspaces.shop.shards."-80"]
flavor = "mysql"
servers = [{host = "127.0.0.1", port = 2, user = "u"}, {host = "127.0.0.1", port = 3, user = "u"}]
[keyspaces.shop.shards."80-"]
flavor = "mariadb"
servers = [{host = "127.0.0.1", port = 4, user = "u", password_env = "NO_SUCH_VARIABLE"}]
[keyspaces.shop.targets."80-c0"]
flavor = "mariadb"
servers = [{host = "127.0.0.1", port = 5, user = "u"}]
[keyspaces.shop.reshard]
user = "r"
password_env = "NO_RESHARD_VARIABLE"
application_accounts = ["a@%"]
"""


AWAY = Problem("it does not answer", "db-a:3306", "start it", passing=True)
WRONG = Problem("binlog_format is STATEMENT", "db-a:3306", "SET PERSIST binlog_format = ROW")


@pytest.mark.full
def test_everything_that_is_down_is_listed_at_once(tmp_path: Path) -> None:
    """C3: with Kafka and all servers down each is named, with shards, targets and passwords."""
    config = tmp_path / "shardstream.toml"
    config.write_text(DOWN)

    done = run("preflight", "--json", "--config", str(config))

    *lines, result = map(json.loads, done.stdout.splitlines())
    found = {(line["shard"], line.get("where")): line["what"] for line in lines}
    assert done.returncode == 2
    assert list(found) == [
        ("shop", "[keyspaces.shop.reshard]"),
        ("shop/80-c0", "127.0.0.1:5"),
        ("shop/-80", "127.0.0.1:2"),
        ("shop/-80", "127.0.0.1:3"),
        ("shop/80-", "127.0.0.1:4"),
        (None, None),
    ]
    assert "NO_RESHARD_VARIABLE" in found["shop", "[keyspaces.shop.reshard]"]
    assert "NO_SUCH_VARIABLE" in found["shop/80-", "127.0.0.1:4"]
    assert "no Kafka broker answered at 127.0.0.1:1" in found[None, None]
    assert result["problems"] == len(found)
    assert "6 problem(s) found" in done.stderr


@pytest.mark.parametrize(
    ("servers", "kafka", "kafka_answers", "may_pass"),
    [
        ([AWAY], ["no broker answered"], False, True),
        ([AWAY], [], True, True),
        ([AWAY, WRONG], ["no broker answered"], False, False),
        ([AWAY], ["a topic has the wrong settings"], True, False),
    ],
)
def test_what_does_not_answer_may_pass(
    servers: list[Problem], kafka: list[str], *, kafka_answers: bool, may_pass: bool
) -> None:
    """Only where nothing else is wrong: the command then ends with 1 rather than 2."""
    found = PreflightReport(servers=[("shop/-", each) for each in servers], kafka=kafka)
    found.kafka_answers = kafka_answers

    assert found.may_pass is may_pass
    assert exit_status(NoBrokerAnswers("")) == exit_status(ServerLost("")) == EXIT_FAILED


@pytest.mark.full
def test_result_is_printed_when_all_is_well(
    tmp_path: Path, kafka: KafkaCluster, keyspace: str, mysql_a: DatabaseFixture
) -> None:
    """C3: with --json the result says what was checked, also when nothing is wrong."""
    config = write_settings(tmp_path, kafka.bootstrap_servers, keyspace, {"-": mysql_a})

    done = run("preflight", keyspace, "--json", "--config", str(config))

    [result] = map(json.loads, done.stdout.splitlines())
    assert done.returncode == 0
    assert (result["checked"], result["problems"]) == ([f"{keyspace}/-"], 0)
    assert any("it has one replica" in warning for warning in result["warnings"])


def preflight_of(config: Path, keyspace: str) -> tuple[int, list[dict[str, Any]]]:
    """The exit status, and the lines of problems."""
    done = run("preflight", keyspace, "--json", "--config", str(config))
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()][:-1]


@pytest.mark.parametrize("flavor", ["mysql", "mariadb"])
def test_a_log_that_cannot_be_continued_is_named(
    tmp_path: Path,
    kafka: KafkaCluster,
    keyspace: str,
    request: pytest.FixtureRequest,
    flavor: str,
) -> None:
    """F14: binlogs that were purged behind a stopped producer, then a server that was reset."""
    start: StartServer = request.getfixturevalue(f"start_{flavor}")
    server = start()
    settings = settings_of(server, kafka, keyspace, shard="-")
    config = write_settings(tmp_path, kafka.bootstrap_servers, keyspace, {"-": server})
    with server.one_table() as (_name, cursor):
        with producing(settings):
            cursor.execute("INSERT INTO t VALUES (1)")
            wait_caught_up(settings)
            running = preflight_of(config, keyspace)
        sound = preflight_of(config, keyspace)
        cursor.execute("INSERT INTO t VALUES (2)")
        cursor.execute("FLUSH BINARY LOGS")
        cursor.execute("SHOW BINARY LOGS")
        purge_to(server, cursor.fetchall()[-1][0])
    purged = preflight_of(config, keyspace)
    reset = "RESET MASTER" if flavor == "mariadb" else "RESET BINARY LOGS AND GTIDS"
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(reset)
    behind = preflight_of(config, keyspace)

    assert running == sound == (0, [])
    for (status, problems), error in ((purged, "BinlogPurged"), (behind, "ServerBehindLog")):
        [problem] = problems
        assert status == 2
        assert (problem["shard"], problem["where"]) == (f"{keyspace}/-", f"{keyspace}.-")
        assert problem["fix"].endswith(f"#errors-that-stop-a-process, {error}")
    assert "has purged" in purged[1][0]["what"]
    assert "has never executed" in behind[1][0]["what"]
