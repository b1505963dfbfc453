"""What all sinks' commands share: options, the checks before Spark starts, the run itself."""

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Unpack

from event_token.errors import UsageError
from shardstream.commands.options import (
    AvailableNow,
    CommandGroup,
    Every,
    HttpOptions,
    Json,
    KeyRangeOption,
    KeyScopeOption,
    Keyspace,
    MaxHoldOption,
    MaxRowsPerBatch,
    Metrics,
    ReaderName,
    StartOption,
    observed,
)
from shardstream.commands.status_lines import SPARK_LOGGER, StatusLines
from shardstream.settings.model import Settings
from shardstream.status.probe import Probe, StatusRelay
from shardstream.stop_signals import stop_on_signals
from topics.arrow.key_scope import KeyScope
from topics.start.positions import known_topology
from topics.start.start_forms import parse_start

if TYPE_CHECKING:  # Spark, which other commands do not need
    from pyspark.sql import SparkSession

    from shardstream.commands.sinks.progress import ProgressPrinter
    from spark_consumers.sink_query import Running, SinkProgress, Trigger

# On one machine; on a cluster the same job runs under spark-submit.
LOCAL_MASTER = "local[*]"


class RunByDefault(CommandGroup):
    """A group whose command `run` is meant where none is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put `run` in front of a keyspace, and of options, which may come before it."""
        if args and args[0] not in {*self.commands, *ctx.help_option_names}:
            args = ["run", *args]
        return super().parse_args(ctx, args)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryOptions:
    """What to read of a keyspace, and whether to end once everything that is there is applied."""

    keyspace: Keyspace
    key_range: KeyRangeOption = "-"
    start: StartOption = "earliest"
    max_rows_per_batch: MaxRowsPerBatch = None
    max_hold_ms: MaxHoldOption = None
    name: ReaderName = None
    available_now: AvailableNow = False
    as_json: Json = False
    every_s: Every = None
    http: HttpOptions = field(default_factory=HttpOptions)
    key_scope: KeyScope = KeyScope.KEYSPACE


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedQueryOptions(QueryOptions):
    """The same of a sink that keeps rows by their keys."""

    key_scope: KeyScopeOption = KeyScope.KEYSPACE


class RunLocally(Protocol):
    """Runs a sink in this process to its end."""

    def __call__(
        self, *, options: Mapping[str, str], **running: "Unpack[Running]"
    ) -> "SinkProgress":
        """Run; `options` are those of format `shardstream`, without keyspace."""


class RunQuery(Protocol):
    """Runs a sink's query to its end."""

    def __call__(
        self, spark: "SparkSession", *, options: Mapping[str, str], **running: "Unpack[Running]"
    ) -> "SinkProgress":
        """Run; `options` are those of format `shardstream`, without keyspace."""


def source_options(settings: Settings, options: QueryOptions) -> dict[str, str]:
    """Return the options of the Spark format `shardstream`, without keyspace."""
    source = {f"kafka.{name}": value for name, value in settings.kafka_client().items()}
    source |= {"keyRange": options.key_range, "start": options.start}
    source["keyScope"] = options.key_scope.value
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


def _check_writable(folder: Path) -> None:
    """Raise UsageError unless the folder, or its nearest existing parent, can be written."""
    nearest = folder.absolute()
    while not nearest.exists():
        nearest = nearest.parent
    if not (nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)):
        raise UsageError(
            f"{folder} cannot be written: {nearest} is read-only, is not a folder, or belongs to "
            "another user; name another folder, or change its permissions"
        )


def _is_url(text: str) -> bool:
    return "://" in text


def run_sink(
    name: str,
    settings: Settings,
    options: QueryOptions,
    places: Sequence[str],
    run: RunQuery | None = None,
    *,
    run_locally: RunLocally | None = None,
    tables: Sequence[str] = (),
) -> None:
    """Run a sink until SIGINT or SIGTERM; with `available_now` until everything there is applied.

    `name` is that of the command, `places` are the folders or URLs that it writes to, `tables` the
    tables that it follows, none for all. Either `run` or `run_locally` runs it, and only with `run`
    Spark starts. Wrong options are reported before that.
    """
    from shardstream.commands.sinks.progress import CopyBars, CopyWatch, ProgressPrinter
    from spark_consumers.source.options import SourceOptions

    source = source_options(settings, options)
    for each in places:
        if not _is_url(each):
            _check_writable(Path(each))
    parse_start(options.start, "--from")
    SourceOptions.parse({**source, "keyspace": options.keyspace})
    known_topology(settings.kafka_client(), options.keyspace)
    stop = stop_on_signals()
    as_json = options.as_json
    watch = CopyWatch(settings.kafka_client(), options.keyspace, tables, as_json=as_json)
    bars = CopyBars() if sys.stdout.isatty() and not as_json else None
    lines = StatusLines(as_json=as_json, every_s=options.every_s)
    printer = ProgressPrinter(options.keyspace, lines, watch, bars)
    probe = Probe(is_ready=True)
    watched = StatusRelay(printer, probe, lambda _: "")  # a query that waits for a shard works

    def families() -> Metrics:
        from shardstream.status.metrics.processes import sink_families

        return sink_families(options.keyspace, name, watched.last)

    with closing(printer), observed(options.http, probe, families):
        trigger: Trigger = "availableNow" if options.available_now else "processingTime"
        running: Running = {"trigger": trigger, "on_progress": watched, "stop": stop}
        if run_locally is not None:
            printer.end(run_locally(options=source, **running))
        elif run is not None:
            _run_with_spark(f"{name} {options.keyspace}", run, source, running, printer)


def _run_with_spark(
    app: str,
    run: RunQuery,
    source: Mapping[str, str],
    running: "Running",
    printer: "ProgressPrinter",
) -> None:
    from spark_consumers.session import build_session, end_session
    from spark_consumers.spark_errors import ended_with_spark

    stop = running["stop"]
    with ended_with_spark(stop):
        try:
            spark = build_session(app, LOCAL_MASTER)
            # Spark has replaced the handler of SIGINT by one that raises inside its own calls.
            stop_on_signals(stop)
            if not logging.getLogger(SPARK_LOGGER).isEnabledFor(logging.DEBUG):
                # What ends a query arrives as an exception; Spark writes its stack trace as well,
                # once for each try of a task, before the one sentence that says what to do.
                spark.sparkContext.setLogLevel("FATAL")
        except KeyboardInterrupt:  # between the two
            return
        try:
            printer.end(run(spark, options=source, **running))
        finally:
            end_session(spark)
