"""Retries broker requests on transient errors."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

from confluent_kafka import KafkaError, KafkaException

from event_token.errors import Retry
from topics.kafka.client import ClientConfig
from topics.kafka.deadline import Deadline
from topics.kafka.errors import kafka_errors

# A new leader is elected, or a broker is back, within seconds.
_PAUSE_S: Final = 0.1

# A signal such as Ctrl-C is handled between attempts, because librdkafka does not return for it.
_ATTEMPT_S: Final = 1.0

Answer = TypeVar("Answer")


def retry_request(
    doing: str, config: ClientConfig, request: Callable[[float], Answer | None]
) -> Answer:
    """Return the answer to `request`, which gets the seconds that one attempt may take.

    It is repeated for the client's `answer_s` while a leader moves or a broker restarts, and while
    it returns None; then Retry. Other Kafka errors are raised as the project's.
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
            if answer is not None:
                return answer
            if deadline.left_s <= _PAUSE_S:
                raise Retry(
                    f"{doing} (brokers {config.brokers}): no answer in {config.answer_s:g} s"
                )
        time.sleep(_PAUSE_S)


def _has_timed_out(error: Retry) -> bool:
    cause = error.__cause__
    kafka = cause.args[0] if isinstance(cause, KafkaException) else None
    return isinstance(kafka, KafkaError) and kafka.name() == "_TIMED_OUT"
