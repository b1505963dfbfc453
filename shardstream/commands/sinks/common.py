"""What all sinks' commands share: options, the checks before Spark starts, the status lines."""

import logging
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol, TypedDict, Unpack

from pyspark.sql import SparkSession

from event_token.errors import UsageError
from shardstream.commands.machine_limits import check_writable
from shardstream.commands.status_lines import Status, StatusLines
from shardstream.commands.stop_signals import stop_on_signals
from shardstream.settings.model import Settings
from spark_consumers.session import build_session, end_session
from spark_consumers.sink_query.run import SinkProgress, Trigger
from spark_consumers.sink_query.spark_errors import ended_with_spark
from spark_consumers.source.options import SourceOptions
from topics.start.known_keyspace import known_topology
from topics.start.start_forms import parse_start

# On one machine; on a cluster the same job runs under spark-submit.
LOCAL_MASTER = "local[*]"
_TABLE = re.compile(r"([^.]+)\.([^.]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryOptions:
    """What to read of a keyspace, and whether to end once everything that is there is applied."""

    keyspace: str
    checkpoint: str | None = None
    key_range: str = "-"
    start: str = "earliest"
    max_rows_per_batch: int | None = None
    max_hold_ms: int | None = None
    name: str | None = None
    available_now: bool = False
    as_json: bool = False
    every_s: float | None = None


class Watching(TypedDict):
    """How a sink's query is run and watched: what all of `run_changelog` and its like take."""

    trigger: Trigger
    on_progress: Callable[[SinkProgress], None]
    stop: threading.Event


class RunQuery(Protocol):
    """Runs a sink's query to its end."""

    def __call__(
        self, spark: SparkSession, source: Mapping[str, str], **watching: Unpack[Watching]
    ) -> SinkProgress:
        """Run; `source` holds the options of format `shardstream`, without keyspace."""


def source_options(settings: Settings, options: QueryOptions) -> dict[str, str]:
    """Return the options of the Spark format `shardstream`, without keyspace."""
    source = {f"kafka.{name}": value for name, value in settings.kafka_client().items()}
    source |= {"keyRange": options.key_range, "start": options.start}
    clock = settings.clock_uncertainty()
    source["clockUncertaintyUs"] = str(clock.uncertainty_us)
    source["mariadbLongestStatementUs"] = str(clock.mariadb_longest_statement_us)
    if settings.kafka.schema_registry_url is not None:
        source["registryUrl"] = settings.kafka.schema_registry_url
    if options.max_rows_per_batch is not None:
        source["maxRowsPerBatch"] = str(options.max_rows_per_batch)
    if options.max_hold_ms is not None:
        source |= {"mode": "max_hold", "maxHoldMs": str(options.max_hold_ms)}
    if options.name is not None:
        source["name"] = options.name
    return source


def table_name(text: str) -> tuple[str, str]:
    """Return database and table of a `--table`. UsageError unless it names both."""
    found = _TABLE.fullmatch(text)
    if found is None:
        raise UsageError(f"--table {text!r}: name a table as database.table")
    return found[1], found[2]


def lake_places(target: str, checkpoint: str | None) -> tuple[str, str]:
    """Return where a lake's tables and the checkpoint are: URLs as they are, absolute paths.

    The checkpoint's default is beside the target. UsageError for a target on an object store
    without a checkpoint: Spark writes the checkpoint through Hadoop, whose schemes and credentials
    are others.
    """
    target = target.rstrip("/")
    if checkpoint is None and _is_url(target) and not target.startswith("file:"):
        raise UsageError(
            f"--target {target}: name --checkpoint too, a folder or a URL that Spark can write to "
            f"(s3a:// needs Hadoop's S3 client on Spark's class path)"
        )
    return place(target), place(checkpoint or f"{target}.checkpoint")


def place(text: str) -> str:
    """Return a URL as it is, a folder as an absolute path: Spark has another working folder."""
    return text if _is_url(text) else str(Path(text).resolve())


def _is_url(text: str) -> bool:
    return "://" in text


def run_sink(
    name: str, settings: Settings, options: QueryOptions, places: Sequence[str], run: RunQuery
) -> None:
    """Run a sink until SIGINT or SIGTERM; with `available_now` until everything there is applied.

    `name` is that of the command, `places` are the folders or URLs that it writes to. What is wrong
    with the options is said at once, before Spark starts.
    """
    source = source_options(settings, options)
    for each in places:
        if not _is_url(each):
            check_writable(Path(each))
    parse_start(options.start, "--from")
    SourceOptions.parse({**source, "keyspace": options.keyspace})
    known_topology(settings.kafka_client(), options.keyspace)
    stop = stop_on_signals()
    lines = StatusLines(as_json=options.as_json, every_s=options.every_s)
    printer = _ProgressPrinter(options.keyspace, lines)
    with ended_with_spark(stop):
        try:
            spark = build_session(f"{name} {options.keyspace}", LOCAL_MASTER)
            # Spark has replaced the handler of SIGINT by one that raises inside its own calls.
            stop_on_signals(stop)
        except KeyboardInterrupt:  # between the two
            return
        try:
            trigger: Trigger = "availableNow" if options.available_now else "processingTime"
            end = run(spark, source, trigger=trigger, on_progress=printer, stop=stop)
            printer.report(end, at_once=True)
        finally:
            end_session(spark)


def progress_text(progress: SinkProgress) -> str:
    """Return progress in words; before the stream has begun its frontier is None or 0."""
    frontier = "-"
    if progress.frontier_us:
        moment = datetime.fromtimestamp(progress.frontier_us / 1e6, tz=UTC)
        frontier = moment.isoformat(timespec="milliseconds")
    rejected = f"{progress.rejected:,} rejected, " if progress.rejected else ""
    text = f"{progress.rows:,} rows, {rejected}complete up to {frontier}"
    return f"{text}; waiting: {progress.waiting}" if progress.waiting else text


class _ProgressPrinter:
    """Prints what it waits for at once, progress when a line is due, and the end."""

    def __init__(self, keyspace: str, lines: StatusLines) -> None:
        self._keyspace = keyspace
        self._lines = lines
        self._waiting = ""

    def __call__(self, progress: SinkProgress) -> None:
        self.report(progress, at_once=progress.waiting != self._waiting)

    def report(self, progress: SinkProgress, *, at_once: bool) -> None:
        """Print it, now if `at_once`, else when a line is due."""
        self._waiting = progress.waiting
        line = Status(
            self._keyspace,
            progress_text(progress),
            {"keyspace": self._keyspace, **asdict(progress)},
            progress=progress.rows,
            level=logging.WARNING if progress.waiting else logging.INFO,
        )
        self._lines.report(line, at_once=at_once)
