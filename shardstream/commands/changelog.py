"""`shardstream changelog`: a Spark job that writes every change once to a Delta table."""

import logging
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from event_token.errors import UsageError
from shardstream.commands.machine_limits import check_writable
from shardstream.commands.status_lines import Status, StatusLines
from shardstream.commands.stop_signals import stop_on_signals
from shardstream.settings.model import Settings
from spark_consumers.change_log.run import ChangeLogProgress, ended_with_spark, run_changelog
from spark_consumers.session import build_session, end_session
from spark_consumers.source.options import SourceOptions
from topics.start.known_keyspace import known_topology
from topics.start.start_forms import parse_start

# On one machine; on a cluster the same job runs under spark-submit.
LOCAL_MASTER = "local[*]"


@dataclass(frozen=True, slots=True)
class ChangelogOptions:
    """What to record of a keyspace and where, and whether to end once the log is caught up."""

    keyspace: str
    target: str
    checkpoint: str | None = None
    key_range: str = "-"
    start: str = "earliest"
    max_rows_per_batch: int | None = None
    max_hold_ms: int | None = None
    available_now: bool = False
    as_json: bool = False
    every_s: float | None = None


def source_options(settings: Settings, options: ChangelogOptions) -> dict[str, str]:
    """Return the options of the Spark format `shardstream` for a change log."""
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
    return source


def locations(options: ChangelogOptions) -> tuple[str, str]:
    """Return where table and checkpoint are: URLs as they are, folders as absolute paths.

    UsageError for a table on an object store without a checkpoint: Spark writes the checkpoint
    through Hadoop, whose schemes and credentials are others.
    """
    target, checkpoint = options.target.rstrip("/"), options.checkpoint
    if checkpoint is None and _is_url(target) and not target.startswith("file:"):
        raise UsageError(
            f"--target {target}: name --checkpoint too, a folder or a URL that Spark can write to "
            f"(s3a:// needs Hadoop's S3 client on Spark's class path)"
        )
    places = (target, checkpoint or f"{target}.checkpoint")
    target, checkpoint = (p if _is_url(p) else str(Path(p).resolve()) for p in places)
    return target, checkpoint


def _is_url(place: str) -> bool:
    return "://" in place


def run_changelog_command(settings: Settings, options: ChangelogOptions) -> None:
    """Run until SIGINT or SIGTERM; with `available_now` until everything there is recorded."""
    source = source_options(settings, options)
    target, checkpoint = locations(options)
    # Before Spark: what is wrong here is said at once, and not inside one of Spark's exceptions.
    for place in (target, checkpoint):
        if not _is_url(place):
            check_writable(Path(place))
    parse_start(options.start, "--from")
    SourceOptions.parse({**source, "keyspace": options.keyspace})
    known_topology(settings.kafka_client(), options.keyspace)
    stop = stop_on_signals()
    lines = StatusLines(as_json=options.as_json, every_s=options.every_s)
    printer = _ProgressPrinter(options.keyspace, lines)
    with ended_with_spark(stop):
        try:
            spark = build_session(f"changelog {options.keyspace}", LOCAL_MASTER)
            # Spark has replaced the handler of SIGINT by one that raises inside its own calls.
            stop_on_signals(stop)
        except KeyboardInterrupt:  # between the two
            return
        try:
            end = run_changelog(
                spark,
                options.keyspace,
                target,
                checkpoint,
                source,
                trigger="availableNow" if options.available_now else "processingTime",
                on_progress=printer,
                stop=stop,
            )
            printer.report(end, at_once=True)
        finally:
            end_session(spark)


class _ProgressPrinter:
    """Prints what it waits for at once, progress when a line is due, and the end."""

    def __init__(self, keyspace: str, lines: StatusLines) -> None:
        self._keyspace = keyspace
        self._lines = lines
        self._waiting = ""

    def __call__(self, progress: ChangeLogProgress) -> None:
        self.report(progress, at_once=progress.waiting != self._waiting)

    def report(self, progress: ChangeLogProgress, *, at_once: bool) -> None:
        """Print it, now if `at_once`, else when a line is due."""
        self._waiting = progress.waiting
        frontier = "-"
        if progress.frontier_us is not None:
            moment = datetime.fromtimestamp(progress.frontier_us / 1e6, tz=UTC)
            frontier = moment.isoformat(timespec="milliseconds")
        text = f"{progress.rows:,} rows, complete up to {frontier}"
        line = Status(
            self._keyspace,
            f"{text}; waiting: {progress.waiting}" if progress.waiting else text,
            {"keyspace": self._keyspace, **asdict(progress)},
            progress=progress.rows,
            level=logging.WARNING if progress.waiting else logging.INFO,
        )
        self._lines.report(line, at_once=at_once)
