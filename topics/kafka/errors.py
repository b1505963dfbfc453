"""Maps Kafka's errors to the tree of `event_token.errors`, in one place."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from event_token.errors import Halt, Rebuild, Retry, ShardstreamError, TakenOver, UsageError


class Fenced(TakenOver):
    """Raised when another process took over the transactional id; this one must exit."""


class TopicMissing(UsageError):  # noqa: N818 - named by what is wrong
    """Raised when brokers do not know a topic; one that has just started may not know it yet."""


# Wrong settings, grants or topics, which a person must fix.
_USAGE_NAMES: Final = frozenset(
    {
        "_AUTHENTICATION",
        "_INVALID_ARG",
        "_SSL",
        "_UNSUPPORTED_FEATURE",
        "CLUSTER_AUTHORIZATION_FAILED",
        "GROUP_AUTHORIZATION_FAILED",
        "ILLEGAL_SASL_STATE",
        "INVALID_CONFIG",
        "INVALID_PARTITIONS",
        "INVALID_REPLICATION_FACTOR",
        "INVALID_TRANSACTION_TIMEOUT",
        "POLICY_VIOLATION",
        "SASL_AUTHENTICATION_FAILED",
        "TOPIC_AUTHORIZATION_FAILED",
        "TOPIC_EXCEPTION",
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
        "UNSUPPORTED_SASL_MECHANISM",
        "UNSUPPORTED_VERSION",
    },
)

# The names that brokers and clients use for a topic that does not exist.
TOPIC_GONE: Final = frozenset({"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"})

_FENCED_NAMES: Final = frozenset(
    {
        "_FENCED",
        "INVALID_PRODUCER_EPOCH",
        "PRODUCER_FENCED",
    },
)

# What a client says when it has no connection to any broker.
_UNREACHABLE_NAMES: Final = frozenset({"_ALL_BROKERS_DOWN", "_TRANSPORT"})

# Bytes that are gone, damaged or refused: a retry changes nothing, and skipping them loses data.
_HALT_NAMES: Final = frozenset(
    {
        "_AUTO_OFFSET_RESET",
        "_BAD_COMPRESSION",
        "_BAD_MSG",
        "_LOG_TRUNCATION",
        "INVALID_MSG",
        "INVALID_TIMESTAMP",
        "MSG_SIZE_TOO_LARGE",
        "OFFSET_OUT_OF_RANGE",
        "RECORD_LIST_TOO_LARGE",
    },
)

_RETRY_NAMES: Final = frozenset(
    {
        "_DESTROY_BROKER",  # it asks the bootstrap servers for the brokers again
        "_MAX_POLL_EXCEEDED",
        "_QUEUE_FULL",
        "_RESOLVE",
        "_RETRY",
        "_TIMED_OUT",
        "_TIMED_OUT_QUEUE",
        "_WAIT_COORD",
        "BROKER_NOT_AVAILABLE",
        "CONCURRENT_TRANSACTIONS",
        "COORDINATOR_LOAD_IN_PROGRESS",
        "COORDINATOR_NOT_AVAILABLE",
        "LEADER_NOT_AVAILABLE",
        "NETWORK_EXCEPTION",
        "NOT_COORDINATOR",
        "NOT_ENOUGH_REPLICAS",
        "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
        "NOT_LEADER_FOR_PARTITION",
        "REPLICA_NOT_AVAILABLE",
        "REQUEST_TIMED_OUT",
    },
)


def kafka_error(
    error: KafkaException | KafkaError,
    doing: str,
    brokers: str,
) -> ShardstreamError:
    """Return the project's error for one of Kafka's; `doing` says what was attempted, and where.

    Unclassified errors become Rebuild, because librdkafka documents them as fatal.
    """
    cause = error.args[0] if isinstance(error, KafkaException) else error
    if not isinstance(cause, KafkaError):
        return UsageError(f"{doing} (brokers {brokers}): {cause}")
    name = cause.name()
    if name in TOPIC_GONE:
        return TopicMissing(
            f"{doing} (brokers {brokers}): the topic does not exist. Either no producer has run "
            "there yet, or the keyspace or shard is misspelled, or the topic was deleted"
        )
    message = f"{doing} (brokers {brokers}): {name}: {cause.str()}"
    if name in _FENCED_NAMES:
        return Fenced(f"{message}. Another process took over; this one must exit")
    if name in _USAGE_NAMES:
        return UsageError(message)
    if name in _HALT_NAMES:
        return Halt(message)
    if cause.fatal():
        return Rebuild(message)
    if name in _UNREACHABLE_NAMES:
        return Retry(
            f"{doing} (brokers {brokers}): no broker answers: check that they run, and that this "
            f"host reaches them [{name.strip('_')}]"
        )
    if name in _RETRY_NAMES or cause.retriable() or cause.txn_requires_abort():
        return Retry(message)
    return Rebuild(message)


@contextmanager
def kafka_errors(doing: str, brokers: str) -> Iterator[None]:
    """Turn a KafkaException raised inside the block into the project's error."""
    try:
        yield
    except KafkaException as error:
        raise kafka_error(error, doing, brokers) from error
