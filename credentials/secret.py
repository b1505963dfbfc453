"""Secrets are read from a file, a variable or a command whenever they are used."""

import errno
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from credentials.command import command_output
from credentials.errors import SecretUnavailable
from credentials.per_process import PerProcess
from event_token.errors import Retry, UsageError


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a command printed, or why it printed nothing. Times are monotonic."""

    text: str
    problem: str
    at_s: float
    until_s: float


_answers: dict["Secret", _Answer] = {}
# Connections that are opened at once run a command once, and those with another one do not wait.
_locks: PerProcess[dict["Secret", threading.Lock]] = PerProcess(dict)


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret by its one source; empty if there is none. Picklable: it holds no secret itself.

    `what` names it in messages. `valid_s`: how long what `command` printed is used again.
    """

    what: str
    file: Path | None = None
    env: str | None = None
    command: tuple[str, ...] = ()
    valid_s: float = 0.0

    def read(self) -> str:
        """Return the secret as it is now. UsageError if the settings are wrong.

        SecretUnavailable if the file or the command fails, which a process that has been connected
        waits for.
        """
        if sum((self.file is not None, self.env is not None, bool(self.command))) > 1:
            raise UsageError(
                f"{self.what}: the secret is given twice; keep one of file, variable and command"
            )
        if self.file is not None:
            return self._read_file(self.file)
        if self.env is not None:
            if self.env not in os.environ:
                raise UsageError(
                    f"{self.what}: the variable {self.env} that should hold the secret is not set"
                )
            return os.environ[self.env]
        return self._ask() if self.command else ""

    def renewed(self, refused: str) -> str:
        """Return another secret than the one refused, `refused` itself if there is none.

        What was kept is forgotten; a command whose output is never kept does not run again.
        """
        if self.command and not self.valid_s:
            return refused
        self.forget(refused)
        return self.read()

    def forget(self, refused: str) -> None:
        """Let the command run again at the next `read`, if what was kept of it is refused."""
        with _locks.here().setdefault(self, threading.Lock()):
            if self in _answers and _answers[self].text == refused:
                del _answers[self]

    def _read_file(self, path: Path) -> str:
        try:
            return path.read_text().strip()
        except UnicodeDecodeError:  # which holds what was read
            raise SecretUnavailable(
                f"{self.what}: the secret's file {path} is not a text in UTF-8"
            ) from None
        except OSError as error:
            message = f"{self.what}: cannot read the secret's file {path}: {error.strerror}"
            # It is read at each connection, and a process may have too many files open for a while.
            kind = Retry if error.errno in {errno.EMFILE, errno.ENFILE} else SecretUnavailable
            raise kind(message) from error

    def _ask(self) -> str:
        asked_s = time.monotonic()
        with _locks.here().setdefault(self, threading.Lock()):
            answer = _answers.get(self)
            # One that another connection has got meanwhile is as good as one of our own.
            if answer is None or (answer.at_s < asked_s and answer.until_s <= time.monotonic()):
                answer = _answers[self] = self._run()
        if answer.problem:
            raise SecretUnavailable(answer.problem)
        return answer.text

    def _run(self) -> _Answer:
        try:
            text = command_output(self.what, self.command)
        except SecretUnavailable as error:
            return _Answer("", str(error), time.monotonic(), 0.0)
        now_s = time.monotonic()
        return _Answer(text, "", now_s, now_s + self.valid_s)
