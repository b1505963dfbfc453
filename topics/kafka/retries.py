"""Questions to the brokers, put again where the answer is an error that passes by itself."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

from event_token.errors import Retry
from topics.kafka.client import REQUEST_TIMEOUT_S, ClientConfig
from topics.kafka.deadline import Deadline
from topics.kafka.errors import kafka_errors

# A new leader is known, and a broker answers again, within seconds; both cost one small request.
_AGAIN_S: Final = 0.1

Answer = TypeVar("Answer")


def answer_of(
    doing: str, config: ClientConfig, question: Callable[[float], Answer | None]
) -> Answer:
    """Return what the brokers answer to `question`, which gets the seconds it may take.

    It is put again while a leader moves or a broker restarts, for REQUEST_TIMEOUT_S; then Retry.
    None is no answer; other errors come through as the project's.
    """
    deadline = Deadline(REQUEST_TIMEOUT_S)
    while True:
        try:
            with kafka_errors(doing, config.brokers):
                answer = question(deadline.left_s)
        except Retry:
            if deadline.left_s <= _AGAIN_S:
                raise
        else:
            if answer is not None:
                return answer
            if deadline.left_s <= _AGAIN_S:
                raise Retry(
                    f"{doing} (brokers {config.brokers}): no answer in {REQUEST_TIMEOUT_S:g} s"
                )
        time.sleep(_AGAIN_S)
