"""Waits until everything that a fenced producer has left behind is committed or aborted."""

import time
from typing import Final

from event_token.errors import Retry
from topics.kafka.client import ClientConfig, open_consumer
from topics.kafka.partition_reader import partition_bounds

# A new leader may take some seconds to learn the last stable offset.
STABLE_S_MAX: Final = 30.0
STABLE_POLL_S: Final = 0.1


def open_range(config: ClientConfig, topic: str, seconds: float) -> tuple[int, int] | None:
    """Wait until all records of a topic are committed or aborted, then return None.

    If that takes longer than `seconds`, return the offset of the first open transaction and the
    end offset.
    """
    committed = open_consumer(config)
    everything = open_consumer(config, read_committed=False)
    deadline_s = time.monotonic() + seconds
    try:
        while True:
            # In this order, so that no record that comes in between makes them equal by mistake.
            _, end = partition_bounds(everything, config, topic)
            _, stable = partition_bounds(committed, config, topic)
            if stable >= end:
                return None
            if time.monotonic() > deadline_s:
                return stable, end
            time.sleep(STABLE_POLL_S)
    finally:
        committed.close()
        everything.close()


def await_stable(config: ClientConfig, topic: str, seconds: float = STABLE_S_MAX) -> None:
    """Wait until all records of a topic are committed or aborted; Retry when that takes longer.

    An open transaction hides what was committed after it began, and a producer that resumed from
    there would write those records again.
    """
    found = open_range(config, topic, seconds)
    if found is not None:
        stable, end = found
        raise Retry(
            f"{topic}: offsets {stable} to {end} belong to an open transaction, but the "
            f"shard's producers are fenced: find its producer (kafka-transactions.sh "
            f"find-hanging --topic {topic}) and abort it"
        )


def await_readable(
    config: ClientConfig, topic: str, partition: int, seconds: float = STABLE_S_MAX
) -> None:
    """Wait until all that a partition holds now is committed or aborted; Retry after `seconds`.

    Others may go on writing. A transaction of another producer hides what was committed after it
    began.
    """
    everything = open_consumer(config, read_committed=False)
    try:
        _, end = partition_bounds(everything, config, topic, partition)
    finally:
        everything.close()
    committed = open_consumer(config)
    deadline_s = time.monotonic() + seconds
    try:
        while (stable := partition_bounds(committed, config, topic, partition)[1]) < end:
            if time.monotonic() > deadline_s:
                raise Retry(
                    f"{topic}[{partition}]: offset {stable} belongs to a transaction that has been "
                    f"open for {seconds:g} s: its producer is slow, or died. Brokers abort it "
                    f"after its timeout (kafka-transactions.sh find-hanging --topic {topic})"
                )
            time.sleep(STABLE_POLL_S)
    finally:
        committed.close()
