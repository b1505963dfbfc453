"""Runs the invalidator of a cache until it is stopped."""

import logging
from dataclasses import asdict

from caching.invalidating.counters import InvalidatorStatus
from caching.invalidating.invalidator import Invalidator
from caching.stores.opening import open_floors
from caching.stores.store import FloorStore
from shardstream.commands.http.options import Metrics, observed
from shardstream.commands.http.probe import Probe, Watched
from shardstream.commands.invalidate.checks import check
from shardstream.commands.invalidate.chosen import Chosen, InvalidateOptions
from shardstream.commands.status_lines import Status, StatusLines
from shardstream.commands.stop_signals import stop_on_signals
from shardstream.settings.model import Settings


def run_invalidate(settings: Settings, options: InvalidateOptions) -> None:
    """Invalidate until SIGINT or SIGTERM.

    UsageError lists everything that is wrong with settings, store, tables and row images.
    """
    chosen = Chosen.of(settings, options)
    section = chosen.section
    stop = stop_on_signals()

    def open_store() -> FloorStore:
        return open_floors(
            chosen.url, options.cache, section.buckets, stale_ok_s=section.stale_ok_s
        )

    probe = Probe(is_ready=False)
    watched = Watched(_Printer(options.where, options.lines()), probe, _fault)

    def families() -> Metrics:
        from shardstream.status.metrics.invalidator import invalidator_families

        return invalidator_families(options.keyspace, options.cache, watched.last)

    with observed(probe, families):
        check(settings, options, chosen)
        invalidator = Invalidator(
            chosen.stream, chosen.keys, open_store, chosen.invalidator_options(), watched
        )
        invalidator.run(stop)


def _fault(status: InvalidatorStatus) -> str:
    """What the invalidator waits for, "" if it works, or stands by."""
    return (status.note or "waiting") if status.state == "waiting" else ""


class _Printer:
    """Prints every change of state and every new note at once, and progress when a line is due."""

    def __init__(self, where: str, lines: StatusLines) -> None:
        self._where = where
        self._lines = lines
        self._said = ("", "")

    def __call__(self, status: InvalidatorStatus) -> None:
        said = (status.state, status.note or self._said[1])
        is_new, self._said = said != self._said, said
        behind = "" if status.behind_s is None else f", behind {status.behind_s:.1f} s"
        text = (
            f"{status.state}, {status.changes:,} changes, {status.values_removed:,} values "
            f"removed, {status.floors_made:,} floors made{behind}"
        )
        is_bad = status.state == "waiting" or bool(status.note)
        line = Status(
            self._where,
            f"{text}; {status.note}" if status.note else text,
            {"cache": self._where, **asdict(status)},
            progress=status.changes,
            level=logging.WARNING if is_bad else logging.INFO,
        )
        self._lines.report(line, at_once=is_new)
