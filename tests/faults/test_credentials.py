"""Credentials that stop being valid, and TLS that must not be fallen back from."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from credentials.secret import Secret
from databases.errors import LoginRefused, ServerRefused
from producers.session import supervisor
from producers.settings import ProducerState, ServerSettings
from shardstream.local.kafka_cluster import KafkaCluster
from tests.certificates import Certificates
from tests.database_servers import DatabaseFixture
from tests.faults.listeners import ListeningCluster
from tests.faults.reading import reading
from tests.faults.sessions import PASSWORD, end_sessions, new_account
from tests.producers.copy.copying import check_copied_log, wait_state
from tests.producers.copy.copying import start as copy_tables
from tests.producers.servers.replication import statements
from tests.producers.session.producing import (
    RunningProducer,
    left_reason,
    producing,
    read_log,
    settings_of,
    wait_caught_up,
)
from tests.topics.shard_writer import provision
from tests.waiting import wait_for
from topics.errors import NoBrokerAnswers
from topics.kafka import client
from topics.kafka.client import ClientConfig, check_reachable
from topics.progress.copy_topic import CopyState
from topics.records.vevent import Op

# One for the connections that were killed, and one for a login that is tried again. Others are not.
RECONNECTS_MAX = 2
# A person waits less for an answer; the broker is on loopback.
REACH_S = 3.0


EXPIRED, LOCKED = "ALTER USER {account} PASSWORD EXPIRE", "ALTER USER {account} ACCOUNT LOCK"


@pytest.mark.parametrize(
    ("family", "change"),
    [
        # Families refuse these in their own ways.
        *((family, change) for family in ("mysql_a", "mariadb_a") for change in (EXPIRED, LOCKED)),
        ("mysql_a", "ALTER USER {account} IDENTIFIED BY 'Another-Passw0rd'"),
        ("mysql_a", "REVOKE REPLICATION SLAVE ON *.* FROM {account}"),
        ("mariadb_a", "DROP USER {account}"),
    ],
)
def test_credentials_that_become_invalid_stop_the_producer(
    *,
    family: str,
    change: str,
    kafka: KafkaCluster,
    keyspace: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F35: the producer ends without a storm of logins, and its words hold no password.

    The reason is where `status` looks. A changed password is waited for as a server is.
    """
    monkeypatch.setattr(supervisor, "LOGIN_PAUSE_S", 1.0)
    database: DatabaseFixture = request.getfixturevalue(family)
    user, account, made = new_account(database)
    statements(
        database,
        *made,
    )
    server = ServerSettings(database.host, database.port, user, PASSWORD)
    settings = replace(settings_of(database, kafka, keyspace, outage_s=1.0), servers=(server,))
    producer = RunningProducer(settings)
    producer.wait_streaming()
    wait_caught_up(settings)  # a producer that has committed nothing has no log to leave it in
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
    mariadb_a: DatabaseFixture,
    kafka: KafkaCluster,
    keyspace: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F35: a rotated password is an outage that says how to end it; at the start it is an error."""
    monkeypatch.setattr(supervisor, "LOGIN_PAUSE_S", 0.2)
    name = mariadb_a.new_database()
    user, account, made = new_account(mariadb_a)
    statements(
        mariadb_a,
        f"CREATE TABLE {name}.t (id INT PRIMARY KEY)",
        *made,
    )
    file = tmp_path / "password"
    file.write_text(PASSWORD)
    server = ServerSettings(mariadb_a.host, mariadb_a.port, user, Secret(user, file))
    settings = replace(settings_of(mariadb_a, kafka, keyspace), servers=(server,))

    def shown() -> bool:
        stopped = left_reason(settings)
        return stopped is not None and stopped.restarts > 0

    with producing(settings) as producer:
        statements(mariadb_a, f"ALTER USER {account} IDENTIFIED BY 'Another-Passw0rd'")
        end_sessions(mariadb_a, user)
        wait_for("its restarts are where `status` looks", shown)
        file.write_text("Another-Passw0rd")
        statements(mariadb_a, f"INSERT INTO {name}.t VALUES (1)")
        wait_caught_up(settings)
        assert left_reason(settings) is None
        notes = [s.note for s in producer.statuses if s.state is ProducerState.RECONNECTING]
    file.write_text("wrong")
    refused = RunningProducer(settings).wait_error()

    log = read_log(settings)
    assert any("a password_file is read" in note for note in notes)
    assert [event.after for event in log.events if event.after] == [{"id": 1}]
    assert isinstance(refused, LoginRefused)


def has_failed(producer: RunningProducer, seen: int) -> bool:
    """Whether a status line behind those `seen` says that the command failed."""
    return any("failed with status 1" in status.note for status in producer.statuses[seen:])


@pytest.mark.full
def test_passwords_that_a_command_hands_out_may_rotate(
    mysql_a: DatabaseFixture,
    kafka: KafkaCluster,
    keyspace: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F35: short-lived passwords end no producer and lose no row, nor does a command that is away.

    What the command printed is kept for an hour, and asked for again once it is refused.
    """
    monkeypatch.setattr(supervisor, "LOGIN_PAUSE_S", 0.2)
    name = mysql_a.new_database()
    user, account, made = new_account(mysql_a)
    file = tmp_path / "password"
    statements(
        mysql_a,
        f"CREATE TABLE {name}.t (id INT PRIMARY KEY)",
        *made,
    )
    file.write_text(PASSWORD)
    secret = Secret(user, command=("cat", str(file)), valid_s=3600)
    server = ServerSettings(mysql_a.host, mysql_a.port, user, secret)
    settings = replace(settings_of(mysql_a, kafka, keyspace), servers=(server,))

    with producing(settings) as producer:
        for number in (1, 2):
            statements(mysql_a, f"ALTER USER {account} IDENTIFIED BY '{PASSWORD}-{number}'")
            file.unlink()
            end_sessions(mysql_a, user)
            statements(mysql_a, f"INSERT INTO {name}.t VALUES ({number})")
            seen = len(producer.statuses)
            wait_for("its failure is where people look", partial(has_failed, producer, seen))
            file.write_text(f"{PASSWORD}-{number}\n")
            wait_caught_up(settings)

    said = [status.note for status in producer.statuses]
    log = read_log(settings)
    assert [event.after for event in log.events if event.after] == [{"id": n} for n in (1, 2)]
    assert PASSWORD not in "".join(said)


@pytest.mark.full
def test_a_password_of_kafka_that_is_changed_in_mid_run_is_read_again(
    mysql_a: DatabaseFixture,
    listening: ListeningCluster,
    keyspace: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """F35: brokers refuse the old one; all clients of a producer and a reader take the next."""
    name = mysql_a.new_database()
    statements(mysql_a, f"CREATE TABLE {name}.t (id INT PRIMARY KEY)")
    file = tmp_path / "password"
    file.write_text(PASSWORD)
    listening.set_password(keyspace, PASSWORD)
    direct = settings_of(mysql_a, listening, keyspace)
    config = ClientConfig(
        {
            "bootstrap.servers": listening.for_passwords,
            "security.protocol": "sasl_plaintext",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": keyspace,
            "sasl.password": Secret("kafka.secrets.sasl.password", file),
        }
    )

    settings = replace(direct, kafka=config)
    provision(config, keyspace, ["-"])
    with producing(settings) as producer, reading(keyspace, config) as reader:
        statements(mysql_a, f"INSERT INTO {name}.t VALUES (1)")
        wait_for("the reader has it", lambda: reader.has(1))
        listening.set_password(keyspace, f"{PASSWORD}-2")
        statements(mysql_a, f"INSERT INTO {name}.t VALUES (2)")
        wait_for("a login is refused", lambda: "Authentication failed" in caplog.text)
        file.write_text(f"{PASSWORD}-2")
        statements(mysql_a, f"INSERT INTO {name}.t VALUES (3)")
        wait_for("the reader has all", lambda: reader.has(3))
        copy_tables(settings, f"{name}.t")
        wait_state(settings, CopyState.COMPLETED)
        said = "".join(status.note for status in producer.statuses)

    log = read_log(direct)
    check_copied_log(log)
    rows = [event.after for event in log.events if event.after and event.op is Op.INSERT]
    assert rows == [{"id": n} for n in (1, 2, 3)]
    assert PASSWORD not in said + caplog.text


def check_refused(config: ClientConfig) -> None:
    """No broker can be spoken to with these settings, and the error says what to look at."""
    with pytest.raises(NoBrokerAnswers, match="TLS"):
        check_reachable(config)


@pytest.mark.full
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
