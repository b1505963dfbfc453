"""Small file systems in memory, to be filled up."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
            os.posix_fallocate(file.fileno(), 0, free_bytes(disk) - left)
        yield
    finally:
        filler.unlink()
