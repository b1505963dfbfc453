"""The change log as a Spark application, for `spark-submit` and `python -m`.

    spark-submit --master ... --driver-java-options -Xss8m .../change_log_job.py
        commerce /lake/commerce --checkpoint /lake/commerce.checkpoint
        --option kafka.bootstrap.servers=broker:9092

(on one line). Executors need the packages event_token, topics and spark_consumers with their
dependencies, as in any PySpark job (an image or an archive). SIGTERM and Ctrl-C stop the job; a
batch that is cut off runs again from the checkpoint.
"""

import argparse
import os
import signal
import sys
import threading
from collections.abc import Sequence

from event_token.errors import ShardstreamError, UsageError
from spark_consumers.change_log import ChangeLogProgress, run_changelog
from spark_consumers.session import build_session, end_session
from spark_consumers.spark_errors import ended_with_spark

EXIT_USAGE = 2
# spark-submit starts the JVM first and passes the port on which it listens.
_SUBMITTED = "PYSPARK_GATEWAY_PORT"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job; return its exit status: 0, 1 for a halt, 2 for bad input."""
    asked = _parse(arguments)
    stop = threading.Event()
    master = asked.master or (None if _SUBMITTED in os.environ else "local[*]")
    spark = None
    try:
        with ended_with_spark(stop):
            stop_on_signals(stop)
            spark = build_session(f"changelog {asked.keyspace}", master)
            # Again, for Spark replaces the handler of SIGINT by one that raises inside its calls.
            stop_on_signals(stop)
            run_changelog(
                spark,
                asked.keyspace,
                asked.target,
                asked.checkpoint or asked.target.rstrip("/") + ".checkpoint",
                dict(_pair(text) for text in asked.option),
                trigger="availableNow" if asked.available_now else "processingTime",
                on_progress=_print,
                stop=stop,
            )
    except UsageError as error:
        sys.stderr.write(f"error: {error}\n")
        return EXIT_USAGE
    except ShardstreamError as error:
        sys.stderr.write(f"stopped: {error}\n")
        return 1
    finally:
        if spark is not None:
            end_session(spark)
    return 0


def stop_on_signals(stop: threading.Event) -> None:
    """Let SIGTERM and SIGINT set an event from now on."""

    def ask_to_stop(*_: object) -> None:
        # Not here: this thread may be inside `stop.wait`, holding the lock that `set` takes.
        threading.Thread(target=stop.set).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, ask_to_stop)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="change_log_job")
    parser.add_argument("keyspace")
    parser.add_argument("target", help="folder or URI of the Delta table")
    parser.add_argument(
        "--checkpoint", help="checkpoint folder or URI (default: TARGET.checkpoint)"
    )
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument(
        "--master", help="Spark master (default: local[*], or the one given to spark-submit)"
    )
    parser.add_argument("--available-now", action="store_true")
    return parser.parse_args(arguments)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--option {text!r} is not NAME=VALUE")
    return name, value


def _print(progress: ChangeLogProgress) -> None:
    sys.stdout.write(
        f"batch {progress.batch_id}: {progress.rows} rows, frontier {progress.frontier_us} us"
        f"{', ' + progress.waiting if progress.waiting else ''}\n"
    )
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
