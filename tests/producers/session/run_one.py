"""One producer in a process: settings as one JSON line on stdin, a line for each state out."""

import itertools
import json
import os
import signal
import sys
import threading
from typing import Any

from event_token import Flavor
from event_token.errors import ShardstreamError, UsageError
from producers.copy import copier
from producers.copy.chunk import ChunkConnection
from producers.copy.copier import Copier
from producers.copy.table_copier import TableCopier
from producers.publisher import Publisher
from producers.session.supervisor import run_shard
from producers.settings import CopySettings, ProducerStatus, ServerSettings, ShardProducerSettings
from tests.producers.session.producing import TYPES
from topics.kafka.client import ClientConfig


def main() -> int:
    """Run until SIGTERM; 2 for UsageError, 1 for any other of the project's errors."""
    told = json.loads(sys.stdin.readline())
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    kill_at(told["kill_at"])
    settings = ShardProducerSettings(
        keyspace=told["keyspace"],
        shard="-",
        flavor=Flavor(told["flavor"]),
        servers=(ServerSettings(*told["server"]),),
        kafka=ClientConfig(told["kafka"]),
        start=told["start"],
        commit_rows=told["commit_rows"],
        metadata=told["metadata"],
        copy=CopySettings(**told["copy"]),
        accept_unlogged_cascades=True,
        accept_loss_at_server_crash=True,
        typed_columns=TYPES,
    )
    try:
        run_shard(settings, stop, say)
    except ShardstreamError as error:
        print(f"{type(error).__name__} {error}", flush=True)
        return 2 if isinstance(error, UsageError) else 1
    return 0


def kill_at(point: str) -> None:
    """Let the process kill itself when it comes to a point, of a copy mostly the third time."""
    if not point:
        return
    owner, name, is_before = {
        "request_seen": (copier, "inspect", True),
        "chunk_asked": (ChunkConnection, "read", True),
        "chunk_read": (ChunkConnection, "read", False),
        "piece_written": (TableCopier, "write", False),
        "before_commit": (Copier, "write_records", False),
        "after_commit": (TableCopier, "write", True),
        "first_stored": (Publisher, "on_delivery", True),
    }[point]
    call = getattr(owner, name)
    times = itertools.count(1)
    last = 1 if point in {"request_seen", "first_stored"} else 3

    def call_and_die(*arguments: Any, **named: Any) -> Any:
        is_last = next(times) >= last
        if is_last and is_before:
            os.kill(os.getpid(), signal.SIGKILL)
        result = call(*arguments, **named)
        if is_last:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, call_and_die)


def say(status: ProducerStatus) -> None:
    """One line a state."""
    print(f"{status.state.value} {status.rows_total} {status.note}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
