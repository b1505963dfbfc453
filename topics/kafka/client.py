"""Kafka clients and their requests, which are repeated on transient errors.

Users configure the connection, this module the delivery guarantees.
"""

import json
import logging
import re
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from threading import Lock, Thread
from typing import Any, Final, TypeVar

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
)
from confluent_kafka.admin import AdminClient

from credentials.errors import SecretUnavailable
from credentials.secret import Secret
from event_token.errors import Retry, UsageError
from topics.errors import NoBrokerAnswers
from topics.kafka.errors import (
    AUTHENTICATION_NAMES,
    TOPIC_GONE,
    LoginEnded,
    has_answered,
    kafka_error,
    kafka_errors,
    note_answer,
)
from topics.kafka.forked import note_client
from topics.kafka.oauth import AWS_MSK_IAM, current_token


class Deadline:
    """Expires `seconds` from now; each wait uses what is left."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end_s = time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self._end_s - time.monotonic())

    @property
    def passed(self) -> bool:
        """Whether the deadline has expired."""
        return self.left_s == 0.0


# The largest message of a shard log. Brokers accept requests of up to 100 MiB by default
# (socket.request.max.bytes), which leaves room for the request around the message.
MESSAGE_BYTES_MAX: Final = 96 * 1024 * 1024

_FETCH_BYTES: Final = "fetch.message.max.bytes"
# A fetch may exceed the requested bytes by one message of the largest size.
_RECEIVE_BYTES_MAX: Final = 2 * MESSAGE_BYTES_MAX

# librdkafka requires a group even with manually assigned partitions; nothing is committed to it.
# It can be configured, because with ACLs a reader needs READ on it.
DEFAULT_GROUP_ID: Final = "shardstream"

# A request takes milliseconds, a broker failover some seconds.
REQUEST_TIMEOUT_S: Final = 30.0

# A person waits for this; a healthy broker answers a new client in under a second.
REACH_S_MAX: Final = 10.0
# A signal such as Ctrl-C is handled between attempts, because librdkafka does not return for it.
_REACH_ATTEMPT_S: Final = 1.0

# The delivery guarantees depend on these, so users may not set them.
_RESERVED: Final = frozenset(
    {
        "acks",
        "request.required.acks",
        "allow.auto.create.topics",
        "auto.offset.reset",
        "check.crcs",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.idempotence",
        "enable.partition.eof",
        "isolation.level",
        "partitioner",
        "transactional.id",
    },
)

_OAUTH: Final = "OAUTHBEARER"

_PASSWORD: Final = "sasl.password"  # noqa: S105 - the name of a setting
# While brokers refuse a password the client tries it again several times a second; what gives the
# secrets, which has half a minute to answer, is asked less often.
_RENEWED_AGAIN_S: Final = 5.0

_SECRET = re.compile(r"password|secret|\.key\.pem$|jaas|token|credential", re.IGNORECASE)

_HIDDEN: Final = "***"

# A setting here that is not librdkafka's: a command that prints tokens, as a JSON list, or
# ["aws-msk-iam", REGION]. It is a setting so that it goes wherever a client's settings go, Spark's
# tasks included.
OAUTH_COMMAND: Final = "oauth.command"
# Another one of ours, for the same reason: the largest record that is written, or read, in parts.
RECORD_BYTES_OPTION: Final = "record.bytes.max"
# A reader holds a record three times while it joins it, once compressed.
RECORD_BYTES_DEFAULT: Final = 256 * 1024 * 1024

# For librdkafka's messages; without a logger it writes them to standard error.
_LOG: Final = logging.getLogger("shardstream.kafka")


class ClientConfig(Mapping[str, str]):
    """Connection settings under librdkafka's names; `bootstrap.servers` is required.

    A `Secret` is read whenever its setting is, so that a client opened later has the one of then.
    Immutable and picklable; its repr hides secrets. UsageError when `bootstrap.servers` is missing
    or a setting is given on which the delivery guarantees depend (acks, isolation level, ...).
    """

    def __init__(self, settings: Mapping[str, object]) -> None:
        """Check the names; no connection is made."""
        # How long a question that may be repeated waits for an answer (`retry_request`).
        self.answer_s = REQUEST_TIMEOUT_S
        self._settings = {
            name: value if isinstance(value, Secret) else _setting_text(value)
            for name, value in settings.items()
        }
        texts = {name: value for name, value in self._settings.items() if isinstance(value, str)}
        problems = []
        if not texts.get("bootstrap.servers", "").strip():
            problems.append("bootstrap.servers is missing: name at least one broker (host:port)")
        problems.extend(
            f"{name} is set by shardstream itself: remove it"
            for name in sorted(_RESERVED.intersection(self._settings))
        )
        problems.extend(_oauth_problems(texts))
        if not re.fullmatch(r"[1-9][0-9]*", texts.get(RECORD_BYTES_OPTION, "1")):
            problems.append(
                f"{RECORD_BYTES_OPTION} {texts[RECORD_BYTES_OPTION]!r} is not a number of bytes"
            )
        if problems:
            raise UsageError("Kafka settings: " + "; ".join(problems))
        self._brokers = texts["bootstrap.servers"]

    def __getitem__(self, name: str) -> str:
        value = self._settings[name]
        if isinstance(value, str):
            return value
        try:
            return value.read()
        except SecretUnavailable as error:
            if has_answered(self._brokers):  # what hands out secrets may be away for a while
                raise LoginEnded(str(error)) from error
            raise

    def __iter__(self) -> Iterator[str]:
        return iter(self._settings)

    def __len__(self) -> int:
        return len(self._settings)

    def __hash__(self) -> int:
        return hash(frozenset(self._settings.items()))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ClientConfig):
            return NotImplemented
        return self._settings == other._settings

    def __repr__(self) -> str:
        shown = {
            name: _HIDDEN if _SECRET.search(name) or isinstance(value, Secret) else value
            for name, value in self._settings.items()
        }
        return f"ClientConfig({shown})"

    @property
    def may_change(self) -> bool:
        """Whether the password is a secret, which may be another one later."""
        return isinstance(self._settings.get(_PASSWORD), Secret)

    def password_after(self, refused: str) -> str:
        """Return the password as it is now, in the place of one that brokers refuse."""
        secret = self._settings[_PASSWORD]
        if isinstance(secret, Secret):
            secret.forget(refused)
        return self[_PASSWORD]

    def answering_within(self, answer_s: float) -> "ClientConfig":
        """Return the same settings for somebody who waits for an answer this long."""
        config = ClientConfig(self._settings)
        config.answer_s = answer_s
        return config

    @property
    def record_bytes_max(self) -> int:
        """The largest record that is written, or read, in parts: bytes of its value."""
        return int(self.get(RECORD_BYTES_OPTION, RECORD_BYTES_DEFAULT))

    @property
    def brokers(self) -> str:
        """The brokers, for error messages."""
        return self._brokers


def _oauth_problems(settings: Mapping[str, str]) -> Iterator[str]:
    if OAUTH_COMMAND not in settings:
        return
    try:
        command = json.loads(settings[OAUTH_COMMAND])
    except ValueError:
        command = None
    if not (isinstance(command, list) and command and all(isinstance(c, str) for c in command)):
        yield f'{OAUTH_COMMAND} is not a JSON list of a program and its arguments: ["program", ...]'
    elif command[0] == AWS_MSK_IAM and len(command) != 2:
        yield f'{OAUTH_COMMAND} ["{AWS_MSK_IAM}", ...] takes a region of AWS, and nothing else'
    if settings.get("sasl.mechanism", settings.get("sasl.mechanisms", _OAUTH)) != _OAUTH:
        yield f"{OAUTH_COMMAND} goes with sasl.mechanism {_OAUTH} alone: remove the other one"
    if not settings.get("security.protocol", "").lower().startswith("sasl_"):
        yield f"{OAUTH_COMMAND} needs security.protocol SASL_SSL"


def _for_client(settings: dict[str, Any]) -> dict[str, Any]:
    # As confluent_kafka takes them: the command becomes the function that it asks for tokens.
    settings.pop(RECORD_BYTES_OPTION, None)
    command = settings.pop(OAUTH_COMMAND, None)
    if command is not None:
        settings.setdefault("sasl.mechanism", _OAUTH)
        settings["oauth_cb"] = partial(_answer_with_token, tuple(json.loads(command)))
    return settings


def _answer_with_token(command: tuple[str, ...], _settings: str) -> tuple[str, float, str]:
    # Called by a thread of the client, which logs an error and asks again after ten seconds.
    token = current_token(command)
    return token.text, token.expires_s, token.principal


def check_token(config: ClientConfig) -> None:
    """Raise SecretUnavailable, LoginEnded after a first one, if there is no token to be had.

    Nothing where none is needed.
    """
    if OAUTH_COMMAND in config:
        current_token(tuple(json.loads(config[OAUTH_COMMAND])))


def _setting_text(value: object) -> str:
    # librdkafka spells booleans in lower case.
    return str(value).lower() if isinstance(value, bool) else str(value)


def producer_config(
    config: ClientConfig,
    *,
    transactional_id: str | None = None,
    transaction_timeout_ms: int | None = None,
) -> dict[str, Any]:
    """Return the settings of an idempotent producer, transactional if an id is given."""
    settings = {
        "message.max.bytes": str(MESSAGE_BYTES_MAX),
        **config,
        "enable.idempotence": "true",
        "acks": "all",
        "allow.auto.create.topics": "false",
    }
    settings.pop("group.id", None)
    if transactional_id is not None:
        settings["transactional.id"] = transactional_id
    if transaction_timeout_ms is not None:
        settings["transaction.timeout.ms"] = str(transaction_timeout_ms)
    return _for_client(settings)


def consumer_config(
    config: ClientConfig,
    *,
    read_committed: bool = True,
    fetch_wait_ms: int | None = None,
    fetch_bytes: int | None = None,
) -> dict[str, Any]:
    """Return the settings of a consumer with manually assigned partitions.

    An offset out of range is an error, never a reset, and the end of a partition is reported.
    `fetch_wait_ms`: how long the broker may delay an empty fetch response, and with it the report
    of a partition's end (librdkafka: 500). `fetch_bytes`: of a partition in one fetch, unless a
    batch is larger (librdkafka: 1 MiB), or `config` says less.
    """
    wait = {} if fetch_wait_ms is None else {"fetch.wait.max.ms": str(fetch_wait_ms)}
    size = {}
    if fetch_bytes is not None:
        size = {_FETCH_BYTES: str(min(fetch_bytes, int(config.get(_FETCH_BYTES, fetch_bytes))))}
    settings = {
        "group.id": DEFAULT_GROUP_ID,
        "receive.message.max.bytes": str(_RECEIVE_BYTES_MAX),
        **config,
        **wait,
        **size,
        "isolation.level": "read_committed" if read_committed else "read_uncommitted",
        "enable.auto.commit": "false",
        "enable.auto.offset.store": "false",
        "enable.partition.eof": "true",
        "auto.offset.reset": "error",
        "check.crcs": "true",
        "allow.auto.create.topics": "false",
    }
    return _for_client(settings)


def admin_config(config: ClientConfig) -> dict[str, Any]:
    """Return the settings of an admin client, whose metadata requests never create topics."""
    settings = {**config, "allow.auto.create.topics": "false"}
    settings.pop("group.id", None)
    return _for_client(settings)


class _OwnProducer(Producer):
    """One that can be referred to weakly, and does not outlive a fork."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        note_client(self)


class _OwnConsumer(Consumer):
    """The same, which is not closed while its password is set."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._open = Lock()
        note_client(self)

    def close(self) -> None:
        with self._open:
            super().close()

    def set_sasl_credentials(self, username: str, password: str) -> None:
        with self._open:
            super().set_sasl_credentials(username, password)


class _OwnAdmin(AdminClient):
    """The same as the producer."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        note_client(self)


class _Login:
    """Gives a client the password as it is now, once brokers refuse the one that it has.

    It keeps no client alive: one that writes ends with the last reference of its owner.
    """

    def __init__(self, config: ClientConfig, settings: Mapping[str, Any]) -> None:
        self.client: Callable[[], Producer | Consumer | None] = lambda: None
        self._config = config
        self._password = str(settings[_PASSWORD])
        self._next = settings.get("error_cb", _log_error)
        self._due_s = 0.0

    def __call__(self, error: KafkaError) -> None:
        """Called by the client's poll with what its threads meet."""
        self._next(error)
        if error.name() in AUTHENTICATION_NAMES and time.monotonic() >= self._due_s:
            self._due_s = time.monotonic() + _RENEWED_AGAIN_S
            # A consumer takes no call in its callback, and a command may take half a minute.
            Thread(target=self._renew, name="Kafka's password", daemon=True).start()

    def _renew(self) -> None:
        try:
            password = self._config.password_after(self._password)
            user = self._config.get("sasl.username", "")
        except (Retry, UsageError) as error:
            # The refused login is waited for, and then said, as before.
            _LOG.warning("%s", error)
            return
        client = self.client()
        if client is not None and password != self._password:
            self._password = password
            with suppress(RuntimeError):  # its owner has closed it meanwhile
                client.set_sasl_credentials(user, password)


def _log_error(error: KafkaError) -> None:
    # As the client does where nobody takes its errors.
    _LOG.error("%s", error.str())


def new_producer(config: ClientConfig, settings: dict[str, Any]) -> Producer:
    """Return a producer with these settings, which takes another password where that may change."""
    if not config.may_change:
        return _OwnProducer(settings, logger=_LOG)
    login = _Login(config, settings)
    producer = _OwnProducer({**settings, "error_cb": login}, logger=_LOG)
    login.client = weakref.ref(producer)
    return producer


def new_consumer(config: ClientConfig, settings: dict[str, Any]) -> Consumer:
    """Return a consumer likewise."""
    if not config.may_change:
        return _OwnConsumer(settings, logger=_LOG)
    login = _Login(config, settings)
    consumer = _OwnConsumer({**settings, "error_cb": login}, logger=_LOG)
    login.client = weakref.ref(consumer)
    return consumer


def open_producer(
    config: ClientConfig,
    *,
    transactional_id: str | None = None,
    transaction_timeout_ms: int | None = None,
) -> Producer:
    """Return a producer that has sent nothing yet. UsageError when a setting is refused."""
    settings = producer_config(
        config,
        transactional_id=transactional_id,
        transaction_timeout_ms=transaction_timeout_ms,
    )
    with kafka_errors("opening a producer", config.brokers):
        return new_producer(config, settings)


def open_consumer(
    config: ClientConfig,
    *,
    read_committed: bool = True,
    fetch_wait_ms: int | None = None,
    fetch_bytes: int | None = None,
) -> Consumer:
    """Return a consumer that has read nothing yet. UsageError when a setting is refused."""
    settings = consumer_config(
        config,
        read_committed=read_committed,
        fetch_wait_ms=fetch_wait_ms,
        fetch_bytes=fetch_bytes,
    )
    with kafka_errors("opening a consumer", config.brokers):
        return new_consumer(config, settings)


_ONE_ADMIN: Final[ContextVar[dict[ClientConfig, AdminClient] | None]] = ContextVar(
    "_ONE_ADMIN", default=None
)


@contextmanager
def one_admin() -> Iterator[None]:
    """Within the block, this thread opens one admin client for all its questions to a cluster.

    Opening one takes round trips, and with tokens a whole second.
    """
    outer = _ONE_ADMIN.get()
    token = _ONE_ADMIN.set({} if outer is None else outer)
    try:
        yield
    finally:
        _ONE_ADMIN.reset(token)


def open_admin(config: ClientConfig) -> AdminClient:
    """Return an admin client, the same again within `one_admin`. UsageError on a bad setting."""
    opened = _ONE_ADMIN.get()
    if opened is not None and config in opened:
        return opened[config]
    with kafka_errors("opening an admin client", config.brokers):
        admin = _OwnAdmin(admin_config(config), logger=_LOG)
    if opened is not None:
        opened[config] = admin
    return admin


def check_reachable(config: ClientConfig) -> None:
    """Raise NoBrokerAnswers when no configured broker answers within REACH_S_MAX."""
    open_reachable_admin(config)


def open_reachable_admin(config: ClientConfig) -> AdminClient:
    """Return an admin client that is connected. NoBrokerAnswers as `check_reachable`."""
    check_token(config)
    admin = open_admin(config)
    deadline = Deadline(REACH_S_MAX)
    while True:
        try:
            admin.list_topics(timeout=min(_REACH_ATTEMPT_S, deadline.left_s))
        except KafkaException as error:
            admin.poll(0)  # hands librdkafka's messages to the log, which may say why
            known = kafka_error(error, "asking for the cluster's metadata", config.brokers)
            if isinstance(known, UsageError):
                raise known from error
            if deadline.passed:
                raise NoBrokerAnswers(
                    f"no Kafka broker answered at {config.brokers} within {REACH_S_MAX:g} s: check "
                    f"bootstrap.servers, TLS and SASL settings, and that the broker is running",
                ) from error
        else:
            note_answer(config.brokers)
            return admin


# A new leader is elected, or a broker is back, within seconds.
_PAUSE_S: Final = 0.1

# A signal such as Ctrl-C is handled between attempts, because librdkafka does not return for it.
_ATTEMPT_S: Final = 1.0

Answer = TypeVar("Answer")


def retry_request(
    doing: str, config: ClientConfig, request: Callable[[float], Answer | None]
) -> Answer:
    """Return the answer to `request`, which gets the seconds that one attempt may take.

    It is repeated for the client's `answer_s` while a leader moves, a broker restarts or a token
    has ended, and while it returns None; then Retry. Other errors of Kafka become the project's.
    """
    deadline = Deadline(config.answer_s)
    attempt_s = _ATTEMPT_S
    while True:
        try:
            with kafka_errors(doing, config.brokers):
                answer = request(min(attempt_s, deadline.left_s))
        except Retry as error:
            if deadline.left_s <= _PAUSE_S:
                raise
            # A broker that is connected and slow gets more time; without one, more does not help.
            attempt_s *= 2 if _has_timed_out(error) else 1
        else:
            note_answer(config.brokers)
            if answer is not None:
                return answer
            if deadline.left_s <= _PAUSE_S:
                raise Retry(
                    f"{doing} (brokers {config.brokers}): no answer in {config.answer_s:g} s"
                )
        time.sleep(_PAUSE_S)


def raise_unless_passing(error: KafkaError, doing: str, config: ClientConfig) -> None:
    """Raise the project's error for one of a consumer's, unless the client recovers by itself."""
    known = kafka_error(error, doing, config.brokers)
    if not isinstance(known, Retry):
        raise known


def _has_timed_out(error: Retry) -> bool:
    cause = error.__cause__
    kafka = cause.args[0] if isinstance(cause, KafkaException) else None
    return isinstance(kafka, KafkaError) and kafka.name() == "_TIMED_OUT"


def write_record(
    config: ClientConfig,
    topic: str,
    key: bytes,
    value: bytes | None,
    producer: Producer | None = None,
) -> int:
    """Write a record to partition 0 and return its offset; Retry when no broker answers.

    `producer`: one that was opened before, which saves half a second.
    """
    doing = f"writing to {topic}"
    failures: list[KafkaError] = []
    offsets: list[int] = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        if error is None:
            offsets.append(message.offset() or 0)
        else:
            failures.append(error)

    if producer is None:
        producer = open_producer(config)
    with kafka_errors(doing, config.brokers):
        producer.produce(
            topic,
            value,
            key,
            partition=0,
            on_delivery=on_delivery,
        )
        left = producer.flush(REQUEST_TIMEOUT_S)
    if failures:
        raise kafka_error(failures[0], doing, config.brokers)
    if left:
        raise Retry(f"{doing} (brokers {config.brokers}): no answer in {REQUEST_TIMEOUT_S:g} s")
    return offsets[0]


def topic_ids(config: ClientConfig, topics: Sequence[str]) -> dict[str, str]:
    """Return the id of each topic that exists, by name. Retry when no broker answers in time."""
    admin = open_admin(config)

    def ask(timeout_s: float) -> dict[str, str]:
        found = {}
        futures = admin.describe_topics(TopicCollection(list(topics)), request_timeout=timeout_s)
        for topic, future in futures.items():
            try:
                found[topic] = str(future.result().topic_id)
            except KafkaException as error:
                if error.args[0].name() not in TOPIC_GONE:
                    raise
        return found

    return retry_request(f"asking for the ids of {', '.join(topics)}", config, ask)
