"""A reader until its first event: `python -m benchmarks.costs.first_event KEYSPACE BROKERS`.

A process of its own, as an application that has just been started.
"""

import json
import sys
import time

from shardstream import ClientConfig, Subscriber

IDLE_S = 60.0


def main(keyspace: str, brokers: str) -> None:
    """Read one event; print when it was there (monotonic ns)."""
    said = {"imported_ns": time.monotonic_ns()}
    config = ClientConfig({"bootstrap.servers": brokers})
    with Subscriber(keyspace, start="earliest", config=config, idle_timeout_s=IDLE_S) as stream:
        event = next(iter(stream))
        said |= {"event_ns": time.monotonic_ns(), "cpu_ns": time.process_time_ns()}
    if event.table is None:
        raise ValueError(f"the first event is of no table: {event}")
    json.dump(said, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
