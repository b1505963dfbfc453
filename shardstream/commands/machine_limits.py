"""Limits of the machine, as errors that say which one was reached."""

import errno
import os
from pathlib import Path
from typing import Final

from event_token.errors import Halt, UsageError

_REACHED: Final = {
    errno.EMFILE: "the limit of open files of this process (ulimit -n): raise it",
    errno.ENFILE: "the limit of open files of this machine (fs.file-max): raise it",
    errno.ENOSPC: "the disk is full: free space on it",
    errno.EDQUOT: "the disk quota is used up: raise it, or free space",
    errno.EROFS: "the file system is read-only: mount it for writing, or name another folder",
    errno.ENOMEM: "this machine or process has no more memory: raise its limit",
}


def limit_reached(error: OSError | MemoryError) -> Halt | None:
    """Return the error that names the limit; None if the error is of another kind."""
    if isinstance(error, MemoryError):
        return Halt(
            "this process may not take more memory (ulimit -v, or the limit of its container): "
            "raise the limit; a row or event needs several times its size"
        )
    fix = _REACHED.get(error.errno or 0)
    return None if fix is None else Halt(f"{error}: {fix}")


def check_writable(folder: Path) -> None:
    """Raise UsageError unless the folder, or its nearest existing parent, can be written."""
    nearest = folder.absolute()
    while not nearest.exists():
        nearest = nearest.parent
    if not (nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)):
        raise UsageError(
            f"{folder} cannot be written: {nearest} is read-only, is no folder, or belongs to "
            "another user; name another folder, or change its permissions"
        )
