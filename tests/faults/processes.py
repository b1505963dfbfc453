"""What the kernel tells of a process."""

from pathlib import Path


def sizes_kb(pid: int) -> dict[str, int]:
    """The sizes of a process, in kB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    sizes = (line.split(":") for line in lines if line.endswith(" kB"))
    return {name: int(size.split()[0]) for name, size in sizes}
