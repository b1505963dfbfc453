"""Credentials that stop being valid, and TLS that must not be fallen back from."""

import secrets
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from databases.errors import ServerRefused
from event_token import Flavor
from producers.settings import ProducerState, ServerSettings
from shardstream.local.database_server import GRANTS, MARIADB_GRANTS
from shardstream.local.kafka_cluster import KafkaCluster
from tests.certificates import Certificates
from tests.database_servers import DatabaseFixture
from tests.faults.listeners import ListeningCluster
from tests.faults.sessions import end_sessions
from tests.producers.servers.replication import statements
from tests.producers.session.producing import (
    RunningProducer,
    producing,
    read_log,
    settings_of,
    wait_caught_up,
    wait_for,
)
from topics.errors import NoBrokerAnswers
from topics.kafka import client
from topics.kafka.client import ClientConfig, check_reachable

# One for the connections that were killed; refused credentials are not tried again.
RECONNECTS_MAX = 2
# A person waits less for an answer; the broker is on loopback.
REACH_S = 3.0
PASSWORD = "Marker-Passw0rd"


@pytest.mark.parametrize(
    "change",
    [
        "ALTER USER {account} PASSWORD EXPIRE",
        "ALTER USER {account} IDENTIFIED BY 'Another-Passw0rd'",
        "ALTER USER {account} ACCOUNT LOCK",
        "REVOKE REPLICATION SLAVE ON *.* FROM {account}",
        "DROP USER {account}",
    ],
    ids=["expired", "rotated", "locked", "revoked", "dropped"],
)
def test_credentials_that_become_invalid_stop_the_producer(
    database: DatabaseFixture, kafka: KafkaCluster, keyspace: str, change: str
) -> None:
    """F35: the producer ends without a storm of logins, and its words hold no password."""
    user = f"u_{secrets.token_hex(4)}"
    account = f"'{user}'@'{database.host}'"
    grants = MARIADB_GRANTS if database.flavor is Flavor.MARIADB else GRANTS
    statements(
        database,
        f"CREATE USER {account} IDENTIFIED BY '{PASSWORD}'",
        f"GRANT {grants} ON *.* TO {account}",
    )
    server = ServerSettings(database.host, database.port, user, PASSWORD)
    settings = replace(settings_of(database, kafka, keyspace), servers=(server,))
    producer = RunningProducer(settings)
    producer.wait_streaming()
    statements(database, change.format(account=account))
    end_sessions(database, user)
    error = producer.wait_error()

    said = [status.note for status in producer.statuses]
    tried = [s for s in producer.statuses if s.state is ProducerState.RECONNECTING]
    assert isinstance(error, ServerRefused)
    assert user in str(error)
    assert PASSWORD not in "".join([str(error), repr(error), repr(settings), *said])
    assert len(tried) <= RECONNECTS_MAX


def check_refused(config: ClientConfig) -> None:
    """No broker can be spoken to with these settings, and the error says what to look at."""
    with pytest.raises(NoBrokerAnswers, match="TLS"):
        check_reachable(config)


def test_kafka_over_tls_is_verified(
    mysql_a: DatabaseFixture,
    listening: ListeningCluster,
    keyspace: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F36: rows go over verified TLS; a wrong CA, host or clear text is refused on either side."""
    name = mysql_a.new_database()
    other = Certificates(tmp_path, "127.0.0.1")
    tls = {"security.protocol": "ssl", "ssl.ca.location": listening.certificates.ca}
    sound = ClientConfig({"bootstrap.servers": listening.secured, **tls})
    settings = replace(settings_of(mysql_a, listening, keyspace), kafka=sound)
    with producing(settings):
        statements(
            mysql_a,
            f"CREATE TABLE {name}.t (id INT PRIMARY KEY)",
            f"INSERT INTO {name}.t VALUES (1)",
        )
        wait_caught_up(settings)
    port = listening.secured.rpartition(":")[2]
    wrong = {
        "authority": ClientConfig({**sound, "ssl.ca.location": other.ca}),
        "host": ClientConfig({**sound, "bootstrap.servers": f"localhost:{port}"}),
        "clear text": ClientConfig({"bootstrap.servers": listening.secured}),
        "no TLS there": ClientConfig({**sound, "bootstrap.servers": listening.bootstrap_servers}),
    }
    assert [e.after for e in read_log(settings).events if e.after] == [{"id": 1}]
    monkeypatch.setattr(client, "REACH_S_MAX", REACH_S)
    producers = {w: RunningProducer(replace(settings, kafka=k)) for w, k in wrong.items()}
    with ThreadPoolExecutor() as pool:
        list(pool.map(check_refused, wrong.values()))
    for what, producer in producers.items():
        wait_for(f"{what} is said", lambda p=producer: p.has_been(ProducerState.RECONNECTING))  # type: ignore[misc]
        producer.stop.set()
    for producer in producers.values():
        producer.end()
