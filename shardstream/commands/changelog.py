"""`shardstream changelog`: a Spark job that writes every change once to a Delta table."""

import json
import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from shardstream.commands.stop_signals import stop_on_signals
from shardstream.settings.model import Settings
from spark_consumers.change_log.run import ChangeLogProgress, run_changelog
from spark_consumers.session import build_session

# On one machine; on a cluster the same job runs under spark-submit.
LOCAL_MASTER = "local[*]"


@dataclass(frozen=True, slots=True)
class ChangelogOptions:
    """What to record of a keyspace and where, and whether to end once the log is caught up."""

    keyspace: str
    target: Path
    checkpoint: Path
    key_range: str = "-"
    start: str = "earliest"
    max_rows_per_batch: int | None = None
    max_hold_ms: int | None = None
    available_now: bool = False
    as_json: bool = False


def source_options(settings: Settings, options: ChangelogOptions) -> dict[str, str]:
    """Return the options of the Spark format `shardstream` for a change log."""
    source = {f"kafka.{name}": value for name, value in settings.kafka_client().items()}
    source |= {"keyRange": options.key_range, "start": options.start}
    if settings.kafka.schema_registry_url is not None:
        source["registryUrl"] = settings.kafka.schema_registry_url
    if options.max_rows_per_batch is not None:
        source["maxRowsPerBatch"] = str(options.max_rows_per_batch)
    if options.max_hold_ms is not None:
        source |= {"mode": "max_hold", "maxHoldMs": str(options.max_hold_ms)}
    return source


def run_changelog_command(settings: Settings, options: ChangelogOptions) -> None:
    """Run until SIGINT or SIGTERM; with `available_now` until everything there is recorded."""
    source = source_options(settings, options)
    stop = stop_on_signals()
    spark = build_session(f"changelog {options.keyspace}", LOCAL_MASTER)
    try:
        run_changelog(
            spark,
            options.keyspace,
            str(options.target.resolve()),
            str(options.checkpoint.resolve()),
            source,
            trigger="availableNow" if options.available_now else "processingTime",
            on_progress=_ProgressPrinter(as_json=options.as_json),
            stop=stop,
        )
    finally:
        spark.stop()


class _ProgressPrinter:
    """Prints a line per batch that changed anything."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._console = Console(soft_wrap=True, highlight=False)
        self._last: ChangeLogProgress | None = None

    def __call__(self, progress: ChangeLogProgress) -> None:
        if progress == self._last:
            return
        self._last = progress
        if self._as_json:
            sys.stdout.write(json.dumps(asdict(progress)) + "\n")
            sys.stdout.flush()
            return
        frontier = "-"
        if progress.frontier_us is not None:
            moment = datetime.fromtimestamp(progress.frontier_us / 1e6, tz=UTC)
            frontier = moment.isoformat(timespec="milliseconds")
        line = f"{progress.rows:,} rows, complete up to {frontier}"
        if progress.waiting:
            line += f"; waiting: {progress.waiting}"
        self._console.print(line, markup=False)
