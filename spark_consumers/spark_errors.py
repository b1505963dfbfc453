"""Translates Spark's exceptions into the errors that readers and sinks raised inside of it."""

import importlib
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException

from event_token.errors import Halt, Retry, ShardstreamError

Answer = TypeVar("Answer")

# What a call of Spark raises, also when its JVM has ended.
SPARK_ERRORS: Final = (PySparkException, Py4JError, ConnectionError)

_OURS = ("event_token.", "databases.", "topics.", "sinks.", "spark_consumers.")
# Spark gives a Python worker 10 s to start, without a setting; a loaded machine may take longer.
STARTS_MAX: Final = 5
_LATE = (
    "Timed out while waiting for the Python worker to connect back",
    "Python worker failed to connect back",
)
# A worker that the kernel kills for its memory ends a query with a local master, where Spark does
# not try a task again.
_TRANSIENT = (
    *_LATE,
    "Python worker exited unexpectedly",
    # The process that starts workers was killed instead.
    "EOFException occurred while reading the port number",
)
# Lines of the JVM's stack traces; --debug shows them with the exception that this one comes from.
_FRAME = re.compile(r"^\s+(?:at [\w.$<>/@-]+\(.*\)|\.\.\. \d+ more)$\n?", re.MULTILINE)
_RAISED = re.compile(r"^([A-Za-z_][\w.]*\.[A-Z]\w*): (.*)$", re.MULTILINE)


class UnknownSparkError(Halt):
    """Raised when Spark fails for a reason that is not ours."""


def translated(ask: Callable[[], Answer]) -> Answer:
    """Call Spark; raise the ShardstreamError behind a Spark exception.

    Where a Python worker has started too late Spark is asked again, up to STARTS_MAX times.
    """
    starts = 0
    while True:
        try:
            return ask()
        except (PySparkException, Py4JJavaError) as error:
            said = str(error)
            starts += 1
            if starts == STARTS_MAX or not any(late in said for late in _LATE):
                raise original_error(said) from error


@contextmanager
def ended_with_spark(stop: threading.Event) -> Iterator[None]:
    """Take the errors of a JVM that has ended for a part of the stop, if one is set.

    A signal to a whole unit or process group (systemd) ends Spark's JVM, too. Without a stop, a JVM
    that has ended is an UnknownSparkError.
    """
    try:
        yield
    except (*SPARK_ERRORS, UnknownSparkError) as error:
        if stop.is_set():
            return
        if isinstance(error, (Py4JNetworkError, ConnectionError)):
            raise UnknownSparkError(
                f"Spark's JVM has ended ({error}); its own messages are above. Started again, the "
                f"query goes on where it was"
            ) from error
        raise


@contextmanager
def starting_spark() -> Iterator[None]:
    """Raise UnknownSparkError, with the first line of what Spark says, if it does not start.

    A JVM that ends meanwhile is met as many kinds of errors.
    """
    try:
        yield
    except SPARK_ERRORS as error:
        said = str(error).strip().partition("\n")[0]
        raise UnknownSparkError(
            f"Spark did not start ({said}); its own messages are above. If its JVM was ended, for "
            f"its memory for instance, start again: nothing is lost"
        ) from error


def original_error(text: str) -> ShardstreamError:
    """Return the ShardstreamError named in the text of a Spark exception, else a Halt or Retry."""
    for name, message in reversed(_RAISED.findall(text)):
        if name.startswith(_OURS):
            module, _, class_name = name.rpartition(".")
            found = getattr(importlib.import_module(module), class_name, None)
            if isinstance(found, type) and issubclass(found, ShardstreamError):
                return found(message)
    said = _FRAME.sub("", text).strip()
    if any(message in text for message in _TRANSIENT):
        return Retry(f"Spark: {said}")
    return UnknownSparkError(f"Spark: {said}")
