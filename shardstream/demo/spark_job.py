"""The demo's consumers: one Spark application, in which a thread runs each query.

    python -m shardstream.demo.spark_job KEYSPACE BOOTSTRAP_SERVERS FOLDER

SECOND_DATABASE_URL in the environment names the database that follows, if there is one. SIGTERM
ends the job; it prints what each consumer holds, as a line of JSON, whenever that changes.
"""

import json
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from functools import partial
from typing import Final

import shardstream
from event_token.errors import ShardstreamError
from shardstream.stop_signals import stop_on_signals

CHANGE_LOG: Final = "change log"
CURRENT_STATE: Final = "current state"
SECOND_DATABASE: Final = "second database"
CHANGE_LOG_FOLDER: Final = "changelog"
STATE_FOLDER: Final = "state"
URL_VARIABLE: Final = "SECOND_DATABASE_URL"
# A batch costs about as much with one change as with a thousand.
INTERVAL_S: Final = 3.0


def main() -> None:
    """Run all queries until a signal comes or one ends; raise its error."""
    keyspace, servers, folder = sys.argv[1:]
    stop = stop_on_signals()
    queries: dict[str, Callable[..., shardstream.SinkProgress]] = {
        CHANGE_LOG: partial(shardstream.run_changelog, target=f"{folder}/{CHANGE_LOG_FOLDER}"),
        CURRENT_STATE: partial(shardstream.run_state, target=f"{folder}/{STATE_FOLDER}"),
    }
    if url := os.environ.get(URL_VARIABLE):
        queries[SECOND_DATABASE] = partial(shardstream.run_database, url=url)
    spark = shardstream.build_session("demo", f"local[{2 * len(queries)}]")
    show = _Printer()
    with ThreadPoolExecutor(len(queries)) as threads:
        running = [
            threads.submit(
                run,
                *(spark, keyspace),
                checkpoint=f"{folder}/{name.replace(' ', '_')}.checkpoint",
                options={"kafka.bootstrap.servers": servers},
                interval_s=INTERVAL_S,
                on_progress=partial(show, name),
                stop=stop,
            )
            for name, run in queries.items()
        ]
        ended, _ = wait(running, return_when=FIRST_COMPLETED)
        stop.set()
    spark.stop()
    for query in (*ended, *running):  # the first error is the cause of others
        query.result()


class _Printer:
    """Prints the progress of all queries, each of which reports from its own thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest: dict[str, dict[str, int]] = {}

    def __call__(self, name: str, progress: shardstream.SinkProgress) -> None:
        with self._lock:
            held = {"rows": progress.rows, "frontier_us": progress.frontier_us or 0}
            self._newest[name] = held
            sys.stdout.write(json.dumps(self._newest) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    try:
        main()
    except ShardstreamError as error:
        sys.exit(f"{type(error).__name__}: {error}")
