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


class AuthenticationFailed(UsageError):  # noqa: N818 - named by what happened
    """Raised when brokers refuse a login, and none of this process has worked."""


class LoginEnded(Retry):
    """Raised when brokers refuse a login after one that worked, or no token is to be had for it.

    A token or password has ended: clients log in again with the next one.
    """


# Brokers, as settings name them, that have answered this process: its settings are not wrong.
_answered: Final[set[str]] = set()


def note_answer(brokers: str) -> None:
    """Remember that a login with these brokers has worked."""
    _answered.add(brokers)


def has_answered(brokers: str) -> bool:
    """Whether a login with these brokers has worked."""
    return brokers in _answered


# The names for a refused login.
AUTHENTICATION_NAMES: Final = frozenset(
    {"_AUTHENTICATION", "ILLEGAL_SASL_STATE", "SASL_AUTHENTICATION_FAILED"}
)

# Wrong settings, grants or topics, which a person must fix.
_USAGE_NAMES: Final = frozenset(
    {
        "_INVALID_ARG",
        "_SSL",
        "_UNSUPPORTED_FEATURE",
        "CLUSTER_AUTHORIZATION_FAILED",
        "GROUP_AUTHORIZATION_FAILED",
        "INVALID_CONFIG",
        "INVALID_PARTITIONS",
        "INVALID_REPLICATION_FACTOR",
        "INVALID_TRANSACTION_TIMEOUT",
        "POLICY_VIOLATION",
        "TOPIC_AUTHORIZATION_FAILED",
        "TOPIC_EXCEPTION",
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
        "UNSUPPORTED_SASL_MECHANISM",
        "UNSUPPORTED_VERSION",
    },
)

# What the client raises: a fatal error raised during callbacks becomes a SystemError in the
# callbacks that follow.
CLIENT_ERRORS: Final = (KafkaException, SystemError)

# The names that brokers and clients use for a topic that does not exist.
TOPIC_GONE: Final = frozenset({"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"})

# The names for an offset that a topic does not have: removed by retention, or not written yet.
OUT_OF_RANGE: Final = frozenset({"OFFSET_OUT_OF_RANGE", "_AUTO_OFFSET_RESET"})

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
    if name in AUTHENTICATION_NAMES:
        return (LoginEnded if has_answered(brokers) else AuthenticationFailed)(message)
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
    except CLIENT_ERRORS as error:
        raise kafka_error(client_error(error), doing, brokers) from error


def client_error(error: BaseException) -> KafkaException:
    """Return the client's exception behind one of CLIENT_ERRORS; anything else is raised again."""
    if isinstance(error, KafkaException):
        return error
    if isinstance(error.__cause__, KafkaException):
        return error.__cause__
    raise error
