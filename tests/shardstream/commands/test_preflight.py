"""`shardstream preflight` lists all that is wrong, whatever is down."""

import json
from pathlib import Path

import pytest

from databases.errors import ServerLost
from producers.errors import Problem
from shardstream.commands.app import EXIT_FAILED, exit_status
from shardstream.commands.findings import Findings
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
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


@pytest.mark.slow
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
    found = Findings(servers=[("shop/-", each) for each in servers], kafka=kafka)
    found.kafka_answers = kafka_answers

    assert found.may_pass is may_pass
    assert exit_status(NoBrokerAnswers("")) == exit_status(ServerLost("")) == EXIT_FAILED


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
