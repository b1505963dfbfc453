"""Small file systems in memory, to be filled up."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

# Allocated at once: others who write meanwhile must not find that much less.
PIECE_BYTES = 16 * 1024 * 1024


@contextmanager
def small_disk(folder: Path, size: int, *, read_only: bool = False) -> Iterator[Path]:
    """Mount a tmpfs of `size` bytes at `folder` for the duration of a block; root may do that."""
    folder.mkdir(parents=True, exist_ok=True)
    options = f"size={size},mode=0755{',ro' if read_only else ''}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def free_bytes(disk: Path) -> int:
    """What can still be written."""
    found = os.statvfs(disk)
    return found.f_bavail * found.f_bsize


@contextmanager
def filled(disk: Path, left: int) -> Iterator[None]:
    """Leave `left` bytes of a disk free for the duration of a block."""
    filler = disk / "filler"
    try:
        with filler.open("wb") as file:
            _fill(file, disk, left)
        yield
    finally:
        filler.unlink()


def _fill(file: BinaryIO, disk: Path, left: int) -> None:
    size = 0
    while (more := min(free_bytes(disk) - left, PIECE_BYTES)) > 0:
        with suppress(OSError):  # a server has taken the room since it was looked at
            os.posix_fallocate(file.fileno(), size, more)
            size += more
