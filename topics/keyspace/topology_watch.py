"""Follows the topology of a keyspace, for applications that route by it."""

from collections.abc import Iterator
from threading import Event
from typing import Final

from event_token.errors import Retry
from topics.kafka.client import ClientConfig
from topics.keyspace.topology import Topology, read_topology

# A switch stops writes for about a second; to ask more often would gain nothing.
WATCH_INTERVAL_S: Final = 1.0


def watch_topology(
    config: ClientConfig,
    keyspace: str,
    *,
    interval_s: float = WATCH_INTERVAL_S,
    stop: Event | None = None,
) -> Iterator[Topology]:
    """Yield the topology of a keyspace as it is now, then each later one.

    Blocks between them, and ends when `stop` is set; without it the caller leaves the loop. Of
    several changes within `interval_s` only the last one is certain to be seen. Waits while the
    brokers are away, once the first topology was read. UsageError when no producer of the
    keyspace has run yet.
    """
    stopped = stop or Event()
    last: Topology | None = None
    while not stopped.is_set():
        try:
            found = read_topology(config, keyspace)
        except Retry:
            if last is None:
                raise
            found = last
        if found is not None and found != last:
            last = found
            yield found
        stopped.wait(interval_s)
