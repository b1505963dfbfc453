"""Lines of commands that run until they are stopped: time first, for people or as JSON."""

import logging
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TextIO

import structlog
from rich.console import Console
from structlog.typing import EventDict, Processor

# A line each second would be 86,400 a day and shard. Progress after a pause shows at once.
FIRST_INTERVAL_S: Final = 1.0
BUSY_INTERVAL_S: Final = 10.0
IDLE_INTERVAL_S: Final = 60.0
# Its level says whether Spark may write to the log (`--debug`).
SPARK_LOGGER: Final = "shardstream.spark"


def terminal(*, stderr: bool = False) -> Console:
    """Return a console that prints texts as they are: lines stay whole, so they can be copied."""
    return Console(stderr=stderr, soft_wrap=True, highlight=False)


def _stamped(_logger: object, level: str, event: EventDict) -> EventDict:
    """Put the time, in UTC, and the level first: lines sort by time, and people look there."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {"time": now, "level": event.pop("level", level), "event": event.pop("event"), **event}


def _as_text(_logger: object, _level: str, event: EventDict) -> str:
    """Return `time LEVEL where: event`, and the traceback that a library logged below it."""
    line = f"{event['time']} {event['level'].upper():<7} {event['where']}: {event['event']}"
    return f"{line}\n{event['exception']}" if "exception" in event else line


def _renderer(*, as_json: bool) -> Processor:
    return structlog.processors.JSONRenderer(default=str) if as_json else _as_text


def print_line(
    where: str,
    text: str,
    fields: Mapping[str, object],
    *,
    as_json: bool,
    level: int = logging.INFO,
    out: TextIO | None = None,
) -> None:
    """Print a line on standard output, or to `out`: UTC time, level, subject (`where`), text.

    As JSON: `time`, `level`, `event` (the text) and the `fields`; `where` if there are none.
    """
    logger = structlog.wrap_logger(
        structlog.WriteLogger(out or sys.stdout),
        processors=[_stamped, _renderer(as_json=as_json)],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
    )
    shown = fields if as_json and fields else {"where": where}
    logger.log(level, text, **shown)


def warn(where: str, text: str, *, as_json: bool = False) -> None:
    """Print a warning on standard error."""
    print_line(where, text, {}, as_json=as_json, level=logging.WARNING, out=sys.stderr)


def library_formatter(*, as_json: bool) -> logging.Formatter:
    """Return a formatter that gives log records of libraries, such as librdkafka, our form."""
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[_named, structlog.processors.format_exc_info, _stamped],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            _renderer(as_json=as_json),
        ],
    )


def _named(_logger: object, _level: str, event: EventDict) -> EventDict:
    record: logging.LogRecord = event["_record"]
    return {**event, "where": record.name, "level": record.levelname.lower()}


@dataclass(frozen=True, slots=True)
class Status:
    """The content of a line. `progress`: a number that changes with work, such as rows."""

    where: str
    text: str
    fields: Mapping[str, object]
    progress: int
    level: int = logging.INFO


class StatusLines:
    """Prints the status of a command: changes at once, progress every 10 s, else once a minute.

    Progress that is reported before a line is due is held, and the last status is printed then,
    even if nothing more is reported.
    """

    def __init__(
        self, *, as_json: bool, every_s: float | None = None, out: TextIO | None = None
    ) -> None:
        """`every_s` replaces both intervals."""
        self._as_json = as_json
        self._busy_s = BUSY_INTERVAL_S if every_s is None else every_s
        self._idle_s = IDLE_INTERVAL_S if every_s is None else every_s
        self._out = out
        self._printed_s = float("-inf")
        self._progress: int | None = None
        self._was_busy = False
        self._lock = threading.Lock()
        self._held: Status | None = None
        self._timer: threading.Timer | None = None

    def report(self, status: Status, *, at_once: bool = False) -> None:
        """Print a status, now if `at_once`, else when a line is due."""
        with self._lock:
            wait_s = 0.0 if at_once else self._wait_s(status.progress)
            if wait_s <= 0:
                self._print(status)
            elif status.progress != self._progress:
                self._held = status
                if self._timer is None:
                    self._timer = threading.Timer(wait_s, self._print_held)
                    self._timer.daemon = True
                    self._timer.start()

    def _wait_s(self, progress: int) -> float:
        """Return the time until a line is due."""
        if progress == self._progress:
            interval_s = self._idle_s
        else:
            interval_s = self._busy_s if self._was_busy else min(FIRST_INTERVAL_S, self._busy_s)
        return self._printed_s + interval_s - time.monotonic()

    def _print_held(self) -> None:
        with self._lock:
            if self._held is not None:
                self._print(self._held)

    def _print(self, status: Status) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._held = self._timer = None
        self._was_busy = self._progress not in {None, status.progress}
        self._progress = status.progress
        self._printed_s = time.monotonic()
        print_line(
            status.where,
            status.text,
            status.fields,
            as_json=self._as_json,
            level=status.level,
            out=self._out,
        )
