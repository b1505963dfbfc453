"""Runs the watcher of a cache until it is stopped."""

import logging
import math
from collections.abc import Mapping
from dataclasses import asdict

from caching.watching.watcher import Watcher, WatchOptions, WatchStatus
from shardstream.commands.invalidate.checks import check
from shardstream.commands.invalidate.chosen import Chosen, InvalidateOptions
from shardstream.commands.status_lines import Status, StatusLines
from shardstream.commands.stop_signals import stop_on_signals
from shardstream.settings.model import Settings

_AGES = {"1": "1 s", "60": "1 min", "300": "5 min"}


def run_watch(settings: Settings, options: InvalidateOptions, rate: float) -> None:
    """Watch until SIGINT or SIGTERM; UsageError for settings and options that cannot be used."""
    chosen = Chosen.of(settings, options)
    watched = WatchOptions(rate, chosen.start)
    stop = stop_on_signals()
    check(settings, options, chosen)
    printer = _Printer(options.where, options.lines())
    store = chosen.open_client(options.cache)
    Watcher(chosen.stream, chosen.keys, store, watched, printer).run(stop)


class _Printer:
    """Prints what is new about state and stale entries at once, and reports when a line is due."""

    def __init__(self, where: str, lines: StatusLines) -> None:
        self._where = where
        self._lines = lines
        self._state = ""

    def __call__(self, status: WatchStatus) -> None:
        is_new, self._state = status.state != self._state, status.state
        behind = "" if status.behind_s is None else f", logs read to {status.behind_s:.1f} s ago"
        shares = ", ".join(_share(_AGES[age], each) for age, each in status.within.items())
        text = f"{status.state}, agree with the database {shares}{behind}"
        is_bad = status.state == "waiting" or bool(status.note)
        line = Status(
            self._where,
            f"{text}; {status.note}" if status.note else text,
            {"cache": self._where, **asdict(status)},
            progress=status.looks,
            level=logging.WARNING if is_bad else logging.INFO,
        )
        self._lines.report(line, at_once=is_new or bool(status.note))


def _share(age: str, tally: Mapping[str, float | None]) -> str:
    share, entries = tally["share"], int((tally["agrees"] or 0) + (tally["stale"] or 0))
    if share is None:
        return f"after {age}: no entries yet"
    # Rounded down: one stale entry of a million is not 100 %.
    percent = math.floor(share * 100_000) / 1_000
    return f"after {age}: {percent:g} % of {entries:,}"
