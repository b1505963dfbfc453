"""A Subscriber for some seconds: `python -m benchmarks.costs.reading_job KEYSPACE BROKERS SECONDS`.

A process of its own, so that its processor time, threads and file handles are those of the reader
alone.
"""

import json
import sys
import time
from pathlib import Path

from benchmarks.own_memory import peak_mb
from shardstream import ClientConfig, Subscriber

IDLE_S = 60.0


def main(keyspace: str, brokers: str, seconds: str) -> None:
    """Read from now on, at first for `seconds` that do not count; print what it costs."""
    config = ClientConfig({"bootstrap.servers": brokers})
    said: dict[str, float] = {"events": 0}
    with Subscriber(keyspace, start="latest", config=config, idle_timeout_s=IDLE_S) as stream:
        begun_s = begun_cpu_s = 0.0
        counts_from_s = time.monotonic() + float(seconds)
        for _ in stream:
            now_s = time.monotonic()
            if now_s < counts_from_s:
                continue
            if not begun_s:
                begun_s, begun_cpu_s = now_s, time.process_time()
            said["events"] += 1
            if now_s - begun_s > float(seconds):
                break
        said["cpu_share"] = (time.process_time() - begun_cpu_s) / (time.monotonic() - begun_s)
        said["handles"] = len(list(Path("/proc/self/fd").iterdir()))
        said["threads"] = len(list(Path("/proc/self/task").iterdir()))
    said["peak_mb"] = peak_mb()
    json.dump(said, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
