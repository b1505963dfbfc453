"""One producer in a process: settings as one JSON line on stdin, a line for each state out."""

import ctypes
import json
import os
import signal
import sys
import threading

from event_token import Flavor
from event_token.errors import ShardstreamError, UsageError
from producers.settings import ProducerStatus, ServerSettings, ShardProducerSettings
from producers.shard_producer import run_shard
from topics.kafka_client import ClientConfig

PR_SET_PDEATHSIG = 1


def main() -> int:
    """Run until SIGTERM; 2 for UsageError, 1 for any other of the project's errors."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(sys.argv[1]):
        return 1
    told = json.loads(sys.stdin.readline())
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    settings = ShardProducerSettings(
        keyspace=told["keyspace"],
        shard="-",
        flavor=Flavor(told["flavor"]),
        servers=(ServerSettings(*told["server"]),),
        kafka=ClientConfig(told["kafka"]),
        start=told["start"],
        commit_rows=told["commit_rows"],
        accept_unlogged_cascades=True,
    )
    try:
        run_shard(settings, stop, say)
    except ShardstreamError as error:
        print(f"{type(error).__name__} {error}", flush=True)
        return 2 if isinstance(error, UsageError) else 1
    return 0


def say(status: ProducerStatus) -> None:
    """One line a state."""
    print(f"{status.state.value} {status.rows_total} {status.note}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
