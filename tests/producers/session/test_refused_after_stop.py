"""A transaction stops a shard, and the session that is to commit those before it is refused."""

import pytest

from event_token import UsageError
from producers.decoder import UnloggedCascade
from producers.errors import StopsBehindOthers
from producers.session.shard_session import ShardSession
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import StartServer
from tests.producers.servers.replication import statements
from tests.producers.session.producing import RunningProducer, settings_of

CASCADE = "CREATE TABLE {0}.c (p INT, FOREIGN KEY (p) REFERENCES {0}.p (id) ON DELETE CASCADE)"


def test_stop_and_refusal_are_both_told_with_the_way_past(
    start_mariadb: StartServer,
    kafka: KafkaCluster,
    keyspace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B3: the operator learns what to fix first, and the command that then passes the stop."""
    mariadb = start_mariadb()
    name = mariadb.new_database()
    settings = settings_of(
        mariadb, kafka, keyspace, start="earliest", accept_unlogged_cascades=False
    )
    statements(
        mariadb,
        f"CREATE TABLE {name}.p (id INT PRIMARY KEY)",
        *(f"INSERT INTO {name}.p VALUES ({i})" for i in range(5)),
        CASCADE.format(name),
        f"DROP TABLE {name}.c",
    )
    run = ShardSession.run

    def run_until_the_key_is_back(session: ShardSession) -> None:
        try:
            run(session)
        except StopsBehindOthers:
            statements(mariadb, CASCADE.format(name))
            raise

    monkeypatch.setattr(ShardSession, "run", run_until_the_key_is_back)
    error = RunningProducer(settings).wait_error()

    assert isinstance(error, UnloggedCascade)
    assert isinstance(error.__cause__, UsageError)
    assert f"was refused: {error.__cause__}" in str(error)
    assert f"shardstream skip {keyspace} - --gtid 0-" in str(error)
