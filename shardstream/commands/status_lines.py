"""Lines of commands that run until they are stopped: time first, for people or as JSON."""

import json
import logging
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TextIO

# A line each second would be 86,400 a day and shard. Progress after a pause shows at once.
FIRST_INTERVAL_S: Final = 1.0
BUSY_INTERVAL_S: Final = 10.0
IDLE_INTERVAL_S: Final = 60.0


def log_line(
    level: int, where: str, text: str, fields: Mapping[str, object] | None, *, as_json: bool
) -> str:
    """Return a line: UTC time, level, what it is about, text.

    As JSON: `time`, `level` and the `fields`; without fields `where` and `text`.
    """
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    name = logging.getLevelName(level)
    if as_json:
        told = {"where": where, "text": text} if fields is None else fields
        return json.dumps({"time": now, "level": name.lower(), **told})
    return f"{now} {name:<7} {where}: {text}"


def print_line(
    where: str,
    text: str,
    fields: Mapping[str, object],
    *,
    as_json: bool,
    level: int = logging.INFO,
    out: TextIO | None = None,
) -> None:
    """Print a line on standard output, or to `out`."""
    stream = out or sys.stdout
    stream.write(log_line(level, where, text, fields, as_json=as_json) + "\n")
    stream.flush()


def warn(where: str, text: str, *, as_json: bool = False) -> None:
    """Print a warning on standard error."""
    sys.stderr.write(log_line(logging.WARNING, where, text, None, as_json=as_json) + "\n")
    sys.stderr.flush()


class LineFormatter(logging.Formatter):
    """Gives the log records of libraries, such as librdkafka's, the same form."""

    def __init__(self, *, as_json: bool) -> None:
        """`as_json`: one JSON object per record."""
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a line."""
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return log_line(record.levelno, record.name, text, None, as_json=self._as_json)


@dataclass(frozen=True, slots=True)
class Status:
    """What a line says. `progress`: a number that changes with work, such as rows."""

    where: str
    text: str
    fields: Mapping[str, object]
    progress: int
    level: int = logging.INFO


class StatusLines:
    """Prints the status of a command: changes at once, progress every 10 s, else once a minute.

    Progress that comes too early is held back; the last of it is printed when a line is due, even
    if nothing more is reported.
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
        """Return how long a line is not due yet."""
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
