"""Asks Spark again where a loaded machine has kept it waiting for too long."""

from collections.abc import Callable
from typing import TypeVar

from spark_consumers.spark_errors import SPARK_ERRORS

# A Python worker may miss Spark's limit of 10 s, which no setting changes.
STARTS_MAX = 20
SLOW_WORKER = "Python worker failed to connect back"
Answer = TypeVar("Answer")


def patiently(ask: Callable[[], Answer]) -> Answer:
    """Ask Spark, again where a Python worker has started too late for it."""
    starts = 0
    while True:
        try:
            return ask()
        except SPARK_ERRORS as error:
            starts += 1
            if starts == STARTS_MAX or SLOW_WORKER not in str(error):
                raise
