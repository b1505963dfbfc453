"""Writes a batch and dies at a named point, as a process of its own."""

import os
import signal
import sys

from sinks.table_topics.transaction import TaskTransaction
from tests.sinks.table_topics.topic_tasks import TopicTask, position
from topics.kafka.client import ClientConfig

# The calls of a task's transaction; the process dies after the call, or before it.
POINTS = (
    "after fence",
    "before write_marker",
    "after write_marker",
    "after flush",
    "after commit",
)


def die() -> None:
    """End at once, as kill -9 and the kernel do."""
    os.kill(os.getpid(), signal.SIGKILL)


def main(brokers: str, keyspace: str, point: str) -> None:
    """Write the batch a=2..5."""
    when, name = point.split()
    whole = getattr(TaskTransaction, name)

    def broken(self: TaskTransaction, *arguments: object) -> None:
        if when == "before":
            # The rows are stored, not only queued.
            self.flush()
            die()
        whole(self, *arguments)
        die()

    setattr(TaskTransaction, name, broken)
    config = ClientConfig({"bootstrap.servers": brokers})
    TopicTask(config, keyspace).write(position(a=2), position(a=5))


if __name__ == "__main__":
    main(*sys.argv[1:])
