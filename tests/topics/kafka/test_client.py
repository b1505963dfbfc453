import pickle

import pytest
from confluent_kafka import KafkaError

from event_token.errors import Halt, Rebuild, Retry, UsageError
from topics.kafka import client
from topics.kafka import errors as seam
from topics.kafka.client import (
    ClientConfig,
    check_reachable,
    consumer_config,
    open_consumer,
    open_producer,
    producer_config,
)
from topics.kafka.errors import Fenced, TopicMissing, kafka_error

NOBODY = "127.0.0.1:1"  # a port that no server may have


def test_secrets_are_in_no_repr() -> None:
    """Passwords and keys never reach a log or a message."""
    config = ClientConfig(
        {
            "bootstrap.servers": NOBODY,
            "sasl.password": "hunter2",
            "ssl.key.password": "hunter2",
            "ssl.key.pem": "hunter2",
            "sasl.oauthbearer.client.secret": "hunter2",
            "sasl.username": "app",
        },
    )

    assert "hunter2" not in repr(config) + str(config)
    assert "app" in repr(config)
    assert config["sasl.password"] == "hunter2"


def test_all_wrong_settings_are_named_at_once() -> None:
    """A missing broker and all settings that the guarantees depend on are reported together."""
    with pytest.raises(UsageError) as caught:
        ClientConfig({"acks": "1", "isolation.level": "read_uncommitted"})

    for name in ("bootstrap.servers", "acks", "isolation.level"):
        assert name in str(caught.value)


def test_settings_travel_to_other_processes() -> None:
    """Spark sends them to its executors."""
    config = ClientConfig({"bootstrap.servers": NOBODY, "socket.keepalive.enable": True})

    assert pickle.loads(pickle.dumps(config)) == config  # noqa: S301 - our own bytes
    assert config["socket.keepalive.enable"] == "true"


def test_guarantees_stand_in_the_clients_settings() -> None:
    """A reader never jumps, commits or reads what is not committed; a writer is idempotent."""
    config = ClientConfig({"bootstrap.servers": NOBODY, "group.id": "mine"})

    reader, writer = consumer_config(config), producer_config(config, transactional_id="t")

    assert reader["isolation.level"] == "read_committed"
    assert reader["auto.offset.reset"] == "error"
    assert reader["enable.auto.commit"] == "false"
    assert reader["group.id"] == "mine"
    assert writer["enable.idempotence"] == "true"
    assert writer["acks"] == "all"
    assert writer["transactional.id"] == "t"


def test_unknown_broker_is_an_error_of_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address where nobody answers is named in the error, after the given time."""
    monkeypatch.setattr(client, "REACH_S_MAX", 0.5)
    with pytest.raises(UsageError, match=NOBODY):
        check_reachable(ClientConfig({"bootstrap.servers": NOBODY}))


@pytest.mark.parametrize("opener", [open_consumer, open_producer])
def test_unknown_setting_is_an_error_of_usage(opener: type) -> None:
    """A setting that the client does not know is named."""
    with pytest.raises(UsageError, match=r"no\.such\.setting"):
        opener(ClientConfig({"bootstrap.servers": NOBODY, "no.such.setting": "1"}))


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (KafkaError._FENCED, Fenced),
        (KafkaError.INVALID_PRODUCER_EPOCH, Fenced),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, UsageError),
        (KafkaError._AUTHENTICATION, UsageError),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, TopicMissing),
        (KafkaError.OFFSET_OUT_OF_RANGE, Halt),
        (KafkaError.MSG_SIZE_TOO_LARGE, Halt),
        (KafkaError._TRANSPORT, Retry),
        (KafkaError._ALL_BROKERS_DOWN, Retry),
        (KafkaError.NOT_LEADER_FOR_PARTITION, Retry),
        (KafkaError.UNKNOWN_PRODUCER_ID, Rebuild),
    ],
)
def test_errors_say_what_the_caller_must_do(code: int, expected: type) -> None:
    """Kafka's errors become our own, with the attempted action and the brokers."""
    known = kafka_error(KafkaError(code), "reading t[0]", NOBODY)

    assert type(known) is expected
    assert "reading t[0]" in str(known)
    assert NOBODY in str(known)


def test_brokers_that_are_away_are_named_in_words() -> None:
    """Who reads `status` at night need not know the client's codes."""
    known = kafka_error(KafkaError(KafkaError._ALL_BROKERS_DOWN), "reading t[0]", NOBODY)

    assert f"reading t[0] (brokers {NOBODY}): no broker answers: check that they run" in str(known)


def test_every_named_error_is_one_of_the_library() -> None:
    """A name that is spelled wrong would silently become a Rebuild."""
    sets = [v for k, v in vars(seam).items() if k.endswith("_NAMES")]
    names = [name for names in sets for name in names]

    assert len(names) == len(set(names))
    for name in names:
        assert KafkaError(getattr(KafkaError, name)).name() == name
