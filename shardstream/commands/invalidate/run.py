"""Runs the invalidator of a cache until it is stopped."""

import logging
from dataclasses import asdict, dataclass
from functools import partial

from caching.invalidating.counters import InvalidatorStatus
from caching.invalidating.invalidator import Invalidator, InvalidatorOptions
from caching.invalidating.start import Stream, parse_invalidator_start
from caching.stores.opening import open_floors
from caching.stores.store import FloorStore
from event_token import UsageError
from shardstream.commands.invalidate.checks import check_invalidator
from shardstream.commands.invalidate.key_maps import load_key_map
from shardstream.commands.status_lines import Status, StatusLines, warn
from shardstream.commands.stop_signals import stop_on_signals
from shardstream.settings.model import Settings
from topics.schemas.registry import open_schema_ids
from topics.stream.arguments import checked_key_range


@dataclass(frozen=True, slots=True)
class InvalidateOptions:
    """Which cache to keep, from where, and what to print."""

    keyspace: str
    cache: str
    key_range: str = "-"
    start: str = "stored"
    as_json: bool = False
    every_s: float | None = None


def run_invalidate(settings: Settings, options: InvalidateOptions) -> None:
    """Invalidate until SIGINT or SIGTERM.

    UsageError lists everything that is wrong with settings, store, tables and row images.
    """
    settings.keyspace(options.keyspace)
    section = settings.cache(options.cache)
    if section.keyspace != options.keyspace:
        raise UsageError(
            f"cache {options.cache} is of keyspace {section.keyspace}, not {options.keyspace}"
        )
    start = parse_invalidator_start(options.start)
    key_range = checked_key_range(options.key_range)
    if options.key_range not in section.key_ranges:
        raise UsageError(
            f"--key-range {options.key_range}: the clients of cache {options.cache} look for the "
            f"positions of {', '.join(section.key_ranges)}; name it in key_ranges of its settings"
        )
    keys = load_key_map(section.keys, settings.folder)
    stop = stop_on_signals()
    lines = StatusLines(as_json=options.as_json, every_s=options.every_s)
    url = settings.cache_url(options.cache)

    def open_store() -> FloorStore:
        return open_floors(url, options.cache, section.buckets)

    say = partial(warn, options.cache, as_json=options.as_json)
    check_invalidator(settings, options.cache, keys, open_store, say)
    config = settings.kafka_client()
    stream = Stream(
        options.keyspace,
        key_range,
        config,
        open_schema_ids(config, settings.kafka.schema_registry_url),
        settings.clock_uncertainty(),
    )
    invalidator = Invalidator(
        stream,
        keys,
        open_store,
        InvalidatorOptions(
            start=start,
            batch_ms=section.batch_ms,
            publish_ms=section.publish_ms,
            renews_on_failover=section.on_failover == "renew",
        ),
        _Printer(f"{options.cache}/{options.key_range}", lines),
    )
    invalidator.run(stop)


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
