"""How the process of a command ends: as soon as the command has ended."""

import atexit
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

# Python's own status for an exception that nobody has caught.
_UNCAUGHT: Final = 1
# As for every error that may pass: output was lost.
_NOT_WRITTEN: Final = 1


@contextmanager
def ends_process() -> Iterator[None]:
    """Let the process end with the status of the block, and before Python is torn down.

    Threads of native libraries (Arrow, delta-rs, librdkafka) may still be about to call Python when
    the block has ended, and the libraries cannot end them. The call would abort the process, or
    wait for ever, once Python is being torn down. What was asked for at the end still happens:
    Python's threads are waited for, functions of atexit run, and output is written.
    """
    end = _ProcessEnd()
    # The first that is registered runs last.
    atexit.register(end.leave)
    try:
        yield
    except SystemExit as error:
        end.status = _status_of(error)
        raise
    end.status = 0


class _ProcessEnd:
    """The status of the process, known only when its command has ended."""

    def __init__(self) -> None:
        self.status = _UNCAUGHT

    def leave(self) -> None:
        """End the process, with a status that says so if output is lost."""
        for stream in (sys.stdout, sys.stderr):
            try:
                if stream is not None:  # it was closed when the process began
                    stream.flush()
            except BrokenPipeError:  # nobody reads it any more
                self.status = self.status or _NOT_WRITTEN
            except OSError as error:
                os.write(2, f"error: output could not be written: {error.strerror}\n".encode())
                self.status = self.status or _NOT_WRITTEN
        os._exit(self.status)


def _status_of(error: SystemExit) -> int:
    if error.code is None:
        return 0
    return error.code if isinstance(error.code, int) else _UNCAUGHT
