import base64
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException

from credentials.errors import SecretUnavailable
from credentials.secret import Secret
from event_token.errors import Halt, Rebuild, Retry, UsageError
from topics.kafka import client, oauth
from topics.kafka import errors as seam
from topics.kafka.client import (
    OAUTH_COMMAND,
    RECORD_BYTES_OPTION,
    ClientConfig,
    admin_config,
    check_reachable,
    consumer_config,
    one_admin,
    open_admin,
    open_consumer,
    open_producer,
    producer_config,
    retry_request,
)
from topics.kafka.errors import (
    AuthenticationFailed,
    Fenced,
    LoginEnded,
    TopicMissing,
    kafka_error,
    kafka_errors,
    note_answer,
)

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


def test_a_secret_is_read_for_each_client(tmp_path: Path) -> None:
    """The next client takes a changed one; after an answer a file that is away is an outage."""
    file = tmp_path / "secret"
    secret = Secret("kafka.secrets.sasl.password", file)
    config = ClientConfig({"bootstrap.servers": "asked:9092", "sasl.password": secret})

    for text in ("first", "second"):
        file.write_text(text)
        made = (producer_config(config), consumer_config(config), admin_config(config))
        assert [settings["sasl.password"] for settings in made] == [text] * 3
    assert "second" not in repr(config)
    assert pickle.loads(pickle.dumps(config)) == config  # noqa: S301 - our own bytes
    file.unlink()
    with pytest.raises(SecretUnavailable, match=r"kafka\.secrets\.sasl\.password: cannot read"):
        admin_config(config)
    note_answer(config.brokers)
    with pytest.raises(LoginEnded, match=r"kafka\.secrets\.sasl\.password: cannot read"):
        admin_config(config)


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


def test_the_limit_of_records_is_ours_alone() -> None:
    """It travels with the client's settings, which Kafka's client does not get to see."""
    config = ClientConfig({"bootstrap.servers": NOBODY, RECORD_BYTES_OPTION: 300_000_000})

    assert config.record_bytes_max == 300_000_000
    for settings in (consumer_config(config), producer_config(config), admin_config(config)):
        assert RECORD_BYTES_OPTION not in settings
    with pytest.raises(UsageError, match="'many' is not a number of bytes"):
        ClientConfig({"bootstrap.servers": NOBODY, RECORD_BYTES_OPTION: "many"})


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
        (KafkaError._AUTHENTICATION, AuthenticationFailed),
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


def test_a_login_that_is_refused_after_one_that_worked_is_an_outage() -> None:
    """A token has ended, or what hands them out is away; other brokers are others."""
    config = ClientConfig({"bootstrap.servers": "let-in:9092"})
    refused = KafkaError(KafkaError._AUTHENTICATION)

    assert retry_request("asking", config, lambda _seconds: 1) == 1

    assert type(kafka_error(refused, "reading", config.brokers)) is LoginEnded
    assert type(kafka_error(refused, "reading", "other:9092")) is AuthenticationFailed


def test_a_request_is_repeated_while_its_login_is_refused() -> None:
    """The client logs in again with the next token, and the answer comes."""
    config = ClientConfig({"bootstrap.servers": "let-in-again:9092"})
    answers = [None, KafkaError(KafkaError._AUTHENTICATION), 7]

    def request(_seconds: float) -> int | None:
        answer = answers.pop(0)
        if isinstance(answer, KafkaError):
            raise KafkaException(answer)
        return answer

    assert retry_request("asking", config, request) == 7
    assert answers == []


@pytest.fixture
def fresh_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """No token is shared with other tests, and the machine's own credentials are not found."""
    monkeypatch.setattr(oauth, "_tokens", {})
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("fresh_tokens")
def test_tokens_of_aws_are_signed_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """AWS's signer makes them for a region, out of the credentials that AWS's tools find."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "example")

    token = oauth.current_token((oauth.AWS_MSK_IAM, "eu-west-1"))

    text = base64.urlsafe_b64decode(token.text + "=" * (-len(token.text) % 4)).decode()
    assert text.startswith("https://kafka.eu-west-1.amazonaws.com/?Action=kafka-cluster%3AConnect")
    assert "&X-Amz-Expires=900&" in text
    assert token.expires_s > token.asked_s


@pytest.mark.usefixtures("fresh_tokens")
def test_aws_without_credentials_is_one_clear_sentence() -> None:
    """What the signer lacks stands in the error."""
    with pytest.raises(SecretUnavailable, match="this process has no credentials of AWS"):
        oauth.current_token((oauth.AWS_MSK_IAM, "eu-west-1"))


@pytest.mark.usefixtures("fresh_tokens")
def test_a_signer_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that installs it."""
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", None)

    with pytest.raises(UsageError, match=r"pip install 'shardstream\[aws\]'"):
        oauth.current_token((oauth.AWS_MSK_IAM, "eu-west-1"))


def test_a_provider_takes_a_region_alone() -> None:
    """Anything else is found before a start."""
    with pytest.raises(UsageError, match="takes a region of AWS"):
        ClientConfig(
            {
                "bootstrap.servers": "k:1",
                "security.protocol": "sasl_ssl",
                OAUTH_COMMAND: '["aws-msk-iam"]',
            }
        )


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


def test_one_admin_client_answers_all_questions_of_a_start() -> None:
    """Of one thread and one cluster, within the block alone; blocks in each other share it."""
    config, other = (ClientConfig({"bootstrap.servers": f"{NOBODY}{n}"}) for n in (1, 2))
    with one_admin(), ThreadPoolExecutor(1) as elsewhere:
        first = open_admin(config)
        with one_admin():
            assert open_admin(ClientConfig(dict(config))) is first
        assert open_admin(config) is first
        assert open_admin(other) is not first
        assert elsewhere.submit(open_admin, config).result() is not first
    assert open_admin(config) is not first
    with one_admin():
        with one_admin():
            first = open_admin(config)
        assert open_admin(config) is first


def test_a_fatal_error_behind_a_callback_keeps_its_name() -> None:
    """Who is fenced while reports of deliveries are called gets a SystemError from the client."""
    fenced = KafkaException(KafkaError(KafkaError._FENCED, "fenced", fatal=True))

    with pytest.raises(Fenced), kafka_errors("writing", "kafka-1:9092"):
        raise SystemError from fenced
    with pytest.raises(SystemError), kafka_errors("writing", "kafka-1:9092"):
        raise SystemError
