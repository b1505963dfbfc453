"""Retries broker requests on transient errors."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

from event_token.errors import Retry
from topics.kafka.client import REQUEST_TIMEOUT_S, ClientConfig
from topics.kafka.deadline import Deadline
from topics.kafka.errors import kafka_errors

# A new leader is elected, or a broker is back, within seconds.
_PAUSE_S: Final = 0.1

Answer = TypeVar("Answer")


def retry_request(
    doing: str, config: ClientConfig, request: Callable[[float], Answer | None]
) -> Answer:
    """Return the answer to `request`, which gets the seconds that it may take.

    It is repeated for REQUEST_TIMEOUT_S while a leader moves or a broker restarts, and while it
    returns None; then Retry. Other Kafka errors are raised as the project's.
    """
    deadline = Deadline(REQUEST_TIMEOUT_S)
    while True:
        try:
            with kafka_errors(doing, config.brokers):
                answer = request(deadline.left_s)
        except Retry:
            if deadline.left_s <= _PAUSE_S:
                raise
        else:
            if answer is not None:
                return answer
            if deadline.left_s <= _PAUSE_S:
                raise Retry(
                    f"{doing} (brokers {config.brokers}): no answer in {REQUEST_TIMEOUT_S:g} s"
                )
        time.sleep(_PAUSE_S)
