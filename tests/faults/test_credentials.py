"""Credentials that stop being valid, and TLS that must not be fallen back from."""

import secrets
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from databases.errors import LoginRefused, ServerRefused
from event_token import Flavor
from producers.session import restarts
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
    left_reason,
    producing,
    read_log,
    settings_of,
    wait_caught_up,
    wait_for,
)
from topics.errors import NoBrokerAnswers
from topics.kafka import client
from topics.kafka.client import ClientConfig, check_reachable

# One for the connections that were killed, and one for a login that is tried again. Others are not.
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
    database: DatabaseFixture,
    kafka: KafkaCluster,
    keyspace: str,
    change: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F35: the producer ends without a storm of logins, and its words hold no password.

    The reason is where `status` looks. A changed password is waited for as a server is.
    """
    monkeypatch.setattr(restarts, "AWAY_S_MAX", 1.0)
    monkeypatch.setattr(restarts, "LOGIN_PAUSE_S", 1.0)
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
    stopped = left_reason(settings)
    assert stopped is not None
    assert (stopped.error, stopped.restarts) == (type(error).__name__, 0)
    assert user in stopped.text


def test_password_that_is_changed_in_mid_run_is_read_again(
    database: DatabaseFixture, kafka: KafkaCluster, keyspace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F35: a rotated password is an outage that says how to end it; at the start it is an error."""
    monkeypatch.setattr(restarts, "LOGIN_PAUSE_S", 0.2)
    name = database.new_database()
    user = f"u_{secrets.token_hex(4)}"
    account = f"'{user}'@'{database.host}'"
    grants = MARIADB_GRANTS if database.flavor is Flavor.MARIADB else GRANTS
    statements(
        database,
        f"CREATE TABLE {name}.t (id INT PRIMARY KEY)",
        f"CREATE USER {account} IDENTIFIED BY '{PASSWORD}'",
        f"GRANT {grants} ON *.* TO {account}",
    )
    file = [PASSWORD]
    server = ServerSettings(
        database.host, database.port, user, PASSWORD, read_password=lambda: file[0]
    )
    settings = replace(settings_of(database, kafka, keyspace), servers=(server,))

    def shown() -> bool:
        stopped = left_reason(settings)
        return stopped is not None and stopped.restarts > 0

    with producing(settings) as producer:
        statements(database, f"ALTER USER {account} IDENTIFIED BY 'Another-Passw0rd'")
        end_sessions(database, user)
        wait_for("its restarts are where `status` looks", shown)
        file[0] = "Another-Passw0rd"
        statements(database, f"INSERT INTO {name}.t VALUES (1)")
        wait_caught_up(settings)
        assert left_reason(settings) is None
        notes = [s.note for s in producer.statuses if s.state is ProducerState.RECONNECTING]
    file[0] = "wrong"
    refused = RunningProducer(settings).wait_error()

    log = read_log(settings)
    assert any("a password_file is read at each connection" in note for note in notes)
    assert [event.after for event in log.events if event.after] == [{"id": 1}]
    assert isinstance(refused, LoginRefused)


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
