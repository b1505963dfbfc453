"""The machine and the versions that the figures belong to."""

import importlib.metadata
import os
import platform
from pathlib import Path

from event_token.compiled import IS_COMPILED

LIBRARIES = ("confluent-kafka", "pyspark", "pyarrow", "deltalake", "PyMySQL", "redis", "hiredis")


def machine_facts() -> dict[str, str]:
    """Return what a reader needs to judge the figures, by name."""
    facts = {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "memory": _memory(),
        "system": f"{platform.system()} {platform.release()}",
        "load before": f"{os.getloadavg()[0]:.2f}",
        "python": platform.python_version(),
        "hot path": "compiled" if IS_COMPILED else "plain Python",
    }
    for library in LIBRARIES:
        try:
            facts[library] = importlib.metadata.version(library)
        except importlib.metadata.PackageNotFoundError:
            facts[library] = "not installed"
    return facts


def _proc_field(path: str, key: str) -> str | None:
    proc = Path(path)
    if not proc.exists():
        return None
    for line in proc.read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return None


def _processor() -> str:
    return _proc_field("/proc/cpuinfo", "model name") or platform.processor() or platform.machine()


def _memory() -> str:
    total = _proc_field("/proc/meminfo", "MemTotal")
    if total is None:
        return "unknown"
    return f"{int(total.split()[0]) / 1024 / 1024:.1f} GB"
