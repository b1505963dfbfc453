"""`shardstream invalidate`: the invalidator of a cache, and the watch of its entries."""

import logging
import math
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Annotated

import typer

from caching.invalidating.invalidator import Invalidator, InvalidatorStatus
from caching.watcher import Watcher, WatchOptions, WatchStatus
from event_token.errors import UsageError
from shardstream.commands.options import (
    CommandLine,
    Config,
    KeyRangeOption,
    Keyspace,
    Metrics,
    ReaderName,
    ReportOptions,
    observed,
    takes_fields,
)
from shardstream.commands.status_lines import Status, StatusLines, warn
from shardstream.configured_cache import ConfiguredCache, check_invalidation
from shardstream.settings.model import load_settings
from shardstream.status.probe import Probe, StatusRelay
from shardstream.stop_signals import stop_on_signals

_AGES = {"1": "1 s", "60": "1 min", "300": "5 min"}

app = CommandLine()


@app.command()
@takes_fields
def invalidate(
    keyspace: Keyspace,
    cache: Annotated[str, typer.Option("--cache", help="Name of the cache in the settings")],
    config: Config = None,
    key_range: KeyRangeOption = "-",
    start: Annotated[
        str,
        typer.Option(
            "--from",
            help="Where to start: stored, a number of seconds to go back, or latest, which expires "
            "all values of the cache",
        ),
    ] = "stored",
    watch: Annotated[
        float | None,
        typer.Option(
            "--watch",
            metavar="RATE",
            help="Invalidate nothing; report what share of the entries agrees with the database "
            "1 s, 1 min and 5 min after changes, for this share of the keys, e.g. 0.001",
        ),
    ] = None,
    name: ReaderName = None,
    *,
    report: ReportOptions,
) -> None:
    """Apply the changes of a keyspace to a cache, so that it never returns an outdated value."""
    if name is not None and watch is not None:
        raise UsageError("--name is for an invalidator: with --watch nothing is applied")
    settings = load_settings(config)
    configured = ConfiguredCache.of(settings, keyspace, cache, key_range=key_range, start=start)
    watch_options = None if watch is None else WatchOptions(watch, configured.start)
    stop = stop_on_signals()
    printer = _StatusPrinter(f"{cache}/{key_range}", report.lines())
    stream, keys = configured.stream, configured.keys
    reporter = None if name is None else stream.reporter(name)

    def check() -> None:
        check_invalidation(settings, configured, partial(warn, cache, as_json=report.as_json))

    if watch_options is not None:
        check()
        Watcher(stream, keys, configured.open_client(), watch_options, printer.watch).run(stop)
        return
    probe = Probe(is_ready=False)
    watched = StatusRelay(printer.invalidation, probe, _fault)

    def families() -> Metrics:
        from shardstream.status.metrics.processes import invalidator_families

        return invalidator_families(keyspace, cache, watched.last)

    with observed(report.http, probe, families):
        check()
        options = configured.invalidator_options()
        Invalidator(stream, keys, configured.open_floors, options, watched, reporter).run(stop)


def _fault(status: InvalidatorStatus) -> str:
    """Return why the invalidator waits, "" if it works or stands by."""
    return (status.note or "waiting") if status.state == "waiting" else ""


class _StatusPrinter:
    """Prints every change of state and every new note at once, and progress when a line is due."""

    def __init__(self, where: str, lines: StatusLines) -> None:
        self._where = where
        self._lines = lines
        self._state = ""
        self._note = ""

    def invalidation(self, status: InvalidatorStatus) -> None:
        """Print the status of the invalidator."""
        behind = "" if status.behind_s is None else f", behind {status.behind_s:.1f} s"
        text = (
            f"{status.state}, {status.changes:,} changes, {status.values_removed:,} values "
            f"removed, {status.floors_made:,} floors made{behind}"
        )
        is_new_note, self._note = status.note not in {"", self._note}, status.note or self._note
        self._print(status, text, status.changes, at_once=is_new_note)

    def watch(self, status: WatchStatus) -> None:
        """Print the status of the watch."""
        behind = "" if status.behind_s is None else f", logs read to {status.behind_s:.1f} s ago"
        shares = ", ".join(_share(_AGES[age], each) for age, each in status.within.items())
        text = f"{status.state}, agree with the database {shares}{behind}"
        self._print(status, text, status.checks, at_once=bool(status.note))

    def _print(
        self, status: InvalidatorStatus | WatchStatus, text: str, progress: int, *, at_once: bool
    ) -> None:
        is_new, self._state = status.state != self._state, status.state
        is_bad = status.state == "waiting" or bool(status.note)
        line = Status(
            self._where,
            f"{text}; {status.note}" if status.note else text,
            {"cache": self._where, **asdict(status)},
            progress=progress,
            level=logging.WARNING if is_bad else logging.INFO,
        )
        self._lines.report(line, at_once=is_new or at_once)


def _share(age: str, tally: Mapping[str, float | None]) -> str:
    share, entries = tally["share"], int((tally["agrees"] or 0) + (tally["stale"] or 0))
    if share is None:
        return f"after {age}: no entries yet"
    # Rounded down: one stale entry of a million is not 100 %.
    percent = math.floor(share * 100_000) / 1_000
    return f"after {age}: {percent:g} % of {entries:,}"
