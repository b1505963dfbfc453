"""Lines of commands that run until they are stopped: time first, for people or as JSON."""

import json
import logging
import sys
import time
from collections.abc import Mapping
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


class StatusLines:
    """Prints the status of a command: changes at once, progress every 10 s, else once a minute."""

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

    def is_due(self, progress: int) -> bool:
        """Whether a line is due: `progress` is a number that changes with work, such as rows."""
        since_s = time.monotonic() - self._printed_s
        if progress == self._progress:
            return since_s >= self._idle_s
        return since_s >= (self._busy_s if self._was_busy else min(FIRST_INTERVAL_S, self._busy_s))

    def print(
        self,
        where: str,
        text: str,
        fields: Mapping[str, object],
        *,
        progress: int,
        level: int = logging.INFO,
    ) -> None:
        """Print a line now."""
        self._was_busy = self._progress not in {None, progress}
        self._progress = progress
        self._printed_s = time.monotonic()
        print_line(where, text, fields, as_json=self._as_json, level=level, out=self._out)
