"""SASL/OAUTHBEARER: tokens that end while producers and readers work."""

import sys
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from credentials.errors import SecretUnavailable
from event_token.errors import UsageError
from tests.database_servers import DatabaseFixture
from tests.faults.listeners import ListeningCluster
from tests.faults.reading import reading
from tests.faults.tokens import runs, with_tokens
from tests.producers.servers.replication import statements
from tests.producers.session.producing import (
    RunningProducer,
    producing,
    read_log,
    settings_of,
    wait_caught_up,
)
from tests.topics.kafka.taking import take_into, taken
from tests.topics.schemas.writing import commit, make_topic, transactional, write
from tests.topics.shard_writer import provision
from tests.waiting import wait_for
from topics.errors import BrokersUnreachable
from topics.kafka import consumer as consumer_module
from topics.kafka.client import ClientConfig, check_reachable
from topics.kafka.consumer import StreamConsumer
from topics.kafka.oauth import current_token


@pytest.mark.full
def test_tokens_that_end_stop_nobody(
    mysql_a: DatabaseFixture, listening: ListeningCluster, keyspace: str, tmp_path: Path
) -> None:
    """A producer and a reader outlive their tokens, and times in which none is had or taken.

    The first failed in CI: a commit met a token that had ended, and the producer ended with it.
    """
    name = mysql_a.new_database()
    settings = replace(
        settings_of(mysql_a, listening, keyspace), kafka=with_tokens(listening, tmp_path)
    )
    statements(mysql_a, f"CREATE TABLE {name}.t (id INT PRIMARY KEY)")

    provision(settings.kafka, keyspace, ["-"])
    with producing(settings) as producer, reading(keyspace, settings.kafka) as reader:
        for number in range(1, 4):
            seen = runs(tmp_path)
            wait_for("another token is asked for", lambda seen=seen: runs(tmp_path) > seen)  # type: ignore[misc]
            statements(mysql_a, f"INSERT INTO {name}.t VALUES ({number})")
            wait_caught_up(settings)
        for number, fault in ((4, "away"), (5, "stale")):
            (tmp_path / fault).touch()
            seen = runs(tmp_path)
            wait_for("two clients go without", lambda seen=seen: runs(tmp_path) >= seen + 2)  # type: ignore[misc]
            statements(mysql_a, f"INSERT INTO {name}.t VALUES ({number})")
            (tmp_path / fault).unlink()
            wait_caught_up(settings)
        assert producer.error is None
        wait_for("the reader has every row", lambda: reader.has(5))

    log = read_log(settings)
    assert [event.after for event in log.events if event.after] == [{"id": n} for n in range(1, 6)]
    assert reader.seqs == [event.seq for event in log.events][-5:]


@pytest.mark.full
def test_refused_logins_of_a_reader_are_an_outage(
    listening: ListeningCluster, keyspace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While brokers refuse them the reader says so and ends with no error that a person must fix.

    Once one is accepted it reads on.
    """
    monkeypatch.setattr(consumer_module, "SILENCE_S_MAX", 0.5)
    config = ClientConfig({"bootstrap.servers": listening.bootstrap_servers})
    topic = f"{keyspace}.t"
    make_topic(config, topic)
    writer = transactional(config, keyspace)
    made = StreamConsumer(with_tokens(listening, tmp_path), "a topic", brokers_down_s_max=1.0)
    with closing(made) as reader:
        reader.assign({topic: 0})
        write(writer, topic, [b"a"])
        commit(config, writer, topic)
        assert taken(reader, 1) == {(topic, 0)}
        (tmp_path / "stale").touch()
        with pytest.raises(BrokersUnreachable, match=r"; a login was refused: "):
            take_into([], reader)
        (tmp_path / "stale").unlink()
        write(writer, topic, [b"b"])
        commit(config, writer, topic)
        wait_for("the reader is let in again", partial(_takes_one, reader))


def _takes_one(reader: StreamConsumer) -> bool:
    """Whether one more record has come."""
    with suppress(BrokersUnreachable):
        return bool(reader.take(0.1, 1))
    return False


def test_a_command_without_a_token_is_one_clear_sentence(
    mysql_a: DatabaseFixture, listening: ListeningCluster, keyspace: str, tmp_path: Path
) -> None:
    """At a start nothing is waited for: the error says what the command wrote, and no secret."""
    (tmp_path / "away").touch()
    config = with_tokens(listening, tmp_path)
    settings = replace(settings_of(mysql_a, listening, keyspace), kafka=config)

    error = RunningProducer(settings).wait_error()

    assert isinstance(error, SecretUnavailable)
    assert str(error).startswith(f"kafka.oauth: the command {sys.executable} failed with status 1")
    assert "the identity provider is away" in str(error)
    with pytest.raises(SecretUnavailable, match="is away"):
        check_reachable(config)


@pytest.mark.parametrize(
    ("printed", "problem"),
    [
        ("Marker", "is not an object with a token"),
        ('{"expires_at": 1}', "is not an object with a token"),
        ('{"token": "Marker"}', "has no expires_at"),
        ('{"token": "Marker", "expires_at": "soon"}', "has no expires_at"),
        ('{"token": "Marker", "expires_at": 1700000000}', "has passed"),
        ('{"token": "Marker", "expires_at": 1e12, "principal": 1}', "is not a text"),
    ],
)
def test_a_malformed_token_is_refused(printed: str, problem: str) -> None:
    """What a command must print stands in the error, and nothing of what it did print."""
    with pytest.raises(SecretUnavailable, match=problem) as raised:
        current_token(("echo", printed))

    assert '{"token": "...", "expires_at": SECONDS_SINCE_1970' in str(raised.value)
    assert "Marker" not in str(raised.value)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"oauth.command": "aws-token"}, "not a JSON list"),
        ({"oauth.command": "[]"}, "not a JSON list"),
        ({"oauth.command": '["x"]', "sasl.mechanism": "PLAIN"}, "OAUTHBEARER alone"),
        (
            {"oauth.command": '["x"]', "security.protocol": "ssl"},
            "needs security.protocol",
        ),
    ],
)
def test_settings_that_do_not_go_with_a_command_are_refused(
    settings: dict[str, str], problem: str
) -> None:
    """A command that no client would use, or that cannot be run, is found before a start."""
    with pytest.raises(UsageError, match=problem):
        ClientConfig({"bootstrap.servers": "k:1", "security.protocol": "sasl_ssl", **settings})
