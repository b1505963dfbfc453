"""What a process has held in memory at most; nothing is imported that would add to it."""

from pathlib import Path

KB_PER_MB = 1024


def peak_mb(process: str = "self") -> float:
    """Return the peak of a process's resident memory until now; 0 if it is gone.

    `ru_maxrss` is no alternative: a new process begins with that of the one which started it.
    """
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    # A zombie has no memory, and no such line.
    found = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return int(next(found, "0")) / KB_PER_MB
