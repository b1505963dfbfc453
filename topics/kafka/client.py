"""Kafka clients: users configure the connection, this module the delivery guarantees."""

import logging
import re
from collections.abc import Iterator, Mapping
from typing import Final

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from event_token.errors import UsageError
from topics.errors import NoBrokerAnswers
from topics.kafka.deadline import Deadline
from topics.kafka.errors import kafka_error, kafka_errors

# The largest record of a shard log. Brokers accept requests of up to 100 MiB by default
# (socket.request.max.bytes), which leaves room for the request around the record.
RECORD_BYTES_MAX: Final = 96 * 1024 * 1024

# A fetch may exceed the requested bytes by one record of the largest size.
_RECEIVE_BYTES_MAX: Final = 2 * RECORD_BYTES_MAX

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

_SECRET = re.compile(r"password|secret|\.key\.pem$|jaas|token|credential", re.IGNORECASE)

_HIDDEN: Final = "***"

# For librdkafka's messages; without a logger it writes them to standard error.
_LOG: Final = logging.getLogger("shardstream.kafka")


class ClientConfig(Mapping[str, str]):
    """Connection settings under librdkafka's names; `bootstrap.servers` is required.

    Immutable and picklable; its repr hides secrets. UsageError when `bootstrap.servers` is missing
    or a setting is given on which the delivery guarantees depend (acks, isolation level, ...).
    """

    def __init__(self, settings: Mapping[str, object]) -> None:
        """Check the names; no connection is made."""
        # How long a question that may be repeated waits for an answer (`retry_request`).
        self.answer_s = REQUEST_TIMEOUT_S
        texts = {name: _setting_text(value) for name, value in settings.items()}
        problems = []
        if not texts.get("bootstrap.servers", "").strip():
            problems.append("bootstrap.servers is missing: name at least one broker (host:port)")
        problems.extend(
            f"{name} is set by shardstream itself: remove it"
            for name in sorted(_RESERVED.intersection(texts))
        )
        if problems:
            raise UsageError("Kafka settings: " + "; ".join(problems))
        self._settings = texts

    def __getitem__(self, name: str) -> str:
        return self._settings[name]

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
            name: _HIDDEN if _SECRET.search(name) else text for name, text in self._settings.items()
        }
        return f"ClientConfig({shown})"

    def answering_within(self, answer_s: float) -> "ClientConfig":
        """Return the same settings for somebody who waits for an answer this long."""
        config = ClientConfig(self._settings)
        config.answer_s = answer_s
        return config

    @property
    def brokers(self) -> str:
        """The brokers, for error messages."""
        return self._settings["bootstrap.servers"]


def _setting_text(value: object) -> str:
    # librdkafka spells booleans in lower case.
    return str(value).lower() if isinstance(value, bool) else str(value)


def producer_config(
    config: ClientConfig,
    *,
    transactional_id: str | None = None,
    transaction_timeout_ms: int | None = None,
) -> dict[str, str]:
    """Return the settings of an idempotent producer, transactional if an id is given."""
    settings = {
        "message.max.bytes": str(RECORD_BYTES_MAX),
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
    return settings


def consumer_config(
    config: ClientConfig,
    *,
    read_committed: bool = True,
    fetch_wait_ms: int | None = None,
) -> dict[str, str]:
    """Return the settings of a consumer with manually assigned partitions.

    An offset out of range is an error, never a reset, and the end of a partition is reported.
    `fetch_wait_ms`: how long the broker may delay an empty fetch response, and with it the report
    of a partition's end (librdkafka: 500).
    """
    wait = {} if fetch_wait_ms is None else {"fetch.wait.max.ms": str(fetch_wait_ms)}
    return {
        "group.id": DEFAULT_GROUP_ID,
        "receive.message.max.bytes": str(_RECEIVE_BYTES_MAX),
        **config,
        **wait,
        "isolation.level": "read_committed" if read_committed else "read_uncommitted",
        "enable.auto.commit": "false",
        "enable.auto.offset.store": "false",
        "enable.partition.eof": "true",
        "auto.offset.reset": "error",
        "check.crcs": "true",
        "allow.auto.create.topics": "false",
    }


def admin_config(config: ClientConfig) -> dict[str, str]:
    """Return the settings of an admin client, whose metadata requests never create topics."""
    settings = {**config, "allow.auto.create.topics": "false"}
    settings.pop("group.id", None)
    return settings


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
        return Producer(settings, logger=_LOG)


def open_consumer(
    config: ClientConfig,
    *,
    read_committed: bool = True,
    fetch_wait_ms: int | None = None,
) -> Consumer:
    """Return a consumer that has read nothing yet. UsageError when a setting is refused."""
    settings = consumer_config(
        config,
        read_committed=read_committed,
        fetch_wait_ms=fetch_wait_ms,
    )
    with kafka_errors("opening a consumer", config.brokers):
        return Consumer(settings, logger=_LOG)


def open_admin(config: ClientConfig) -> AdminClient:
    """Return an admin client. UsageError when a setting is refused."""
    with kafka_errors("opening an admin client", config.brokers):
        return AdminClient(dict(admin_config(config)), logger=_LOG)


def check_reachable(config: ClientConfig) -> None:
    """Raise NoBrokerAnswers when no configured broker answers within REACH_S_MAX."""
    open_reachable_admin(config)


def open_reachable_admin(config: ClientConfig) -> AdminClient:
    """Return an admin client that is connected. NoBrokerAnswers as `check_reachable`."""
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
            return admin
