"""What all sinks' commands share: options, the checks before Spark starts, the run itself."""

import logging
import re
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypedDict, Unpack

from pyspark.sql import SparkSession

from event_token.errors import UsageError
from shardstream.commands.http.options import Metrics, observed
from shardstream.commands.http.probe import Probe, Watched
from shardstream.commands.machine_limits import check_writable
from shardstream.commands.sinks.dump_watch import DumpBars, DumpWatch
from shardstream.commands.sinks.progress_lines import ProgressPrinter
from shardstream.commands.status_lines import SPARK_LOGGER, LineOptions, StatusLines
from shardstream.commands.stop_signals import stop_on_signals
from shardstream.settings.model import Settings
from spark_consumers.session import build_session, end_session
from spark_consumers.sink_query.run import SinkProgress, Trigger
from spark_consumers.sink_query.same_keys import KeyRules
from spark_consumers.sink_query.spark_errors import ended_with_spark
from spark_consumers.source.options import SourceOptions
from topics.start.known_keyspace import known_topology
from topics.start.start_forms import parse_start

# On one machine; on a cluster the same job runs under spark-submit.
LOCAL_MASTER = "local[*]"
_TABLE = re.compile(r"([^.]+)\.([^.]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryOptions:
    """What to read of a keyspace, and whether to end once everything that is there is applied.

    `tables` (`database.table`): empty for all.
    """

    keyspace: str
    tables: tuple[str, ...] = ()
    checkpoint: str | None = None
    key_range: str = "-"
    start: str = "earliest"
    max_rows_per_batch: int | None = None
    max_hold_ms: int | None = None
    keys: KeyRules = field(default_factory=KeyRules)
    name: str | None = None
    available_now: bool = False
    lines: LineOptions = field(default_factory=LineOptions)


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
    source["keyScope"] = options.keys.scope.value
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


def table_name(text: str, option: str = "--table") -> tuple[str, str]:
    """Return database and table that an option names. UsageError unless it names both."""
    found = _TABLE.fullmatch(text)
    if found is None:
        raise UsageError(f"{option} {text!r}: name a table as database.table")
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
    lines = StatusLines(as_json=options.lines.as_json, every_s=options.lines.every_s)
    watch = DumpWatch(
        settings.kafka_client(), options.keyspace, options.tables, as_json=options.lines.as_json
    )
    has_bars = sys.stdout.isatty() and not options.lines.as_json
    bars = DumpBars() if has_bars else None
    printer = ProgressPrinter(options.keyspace, lines, watch, bars)
    probe = Probe(is_ready=True)
    watched = Watched(printer, probe, lambda _: "")  # a query that waits for a shard works

    def families() -> Metrics:
        from shardstream.status.metrics.sink import sink_families

        return sink_families(options.keyspace, name, watched.last)

    with closing(printer), observed(probe, families), ended_with_spark(stop):
        try:
            spark = build_session(f"{name} {options.keyspace}", LOCAL_MASTER)
            # Spark has replaced the handler of SIGINT by one that raises inside its own calls.
            stop_on_signals(stop)
            if not logging.getLogger(SPARK_LOGGER).isEnabledFor(logging.DEBUG):
                # What ends a query arrives as an exception; Spark writes its stack trace as well,
                # once for each try of a task, before the one sentence that tells what to do.
                spark.sparkContext.setLogLevel("FATAL")
        except KeyboardInterrupt:  # between the two
            return
        try:
            trigger: Trigger = "availableNow" if options.available_now else "processingTime"
            end = run(spark, source, trigger=trigger, on_progress=watched, stop=stop)
            printer.end(end)
        finally:
            end_session(spark)
