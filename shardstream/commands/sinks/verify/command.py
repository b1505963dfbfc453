"""Runs `shardstream database verify`, and prints what it found."""

import dataclasses
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from event_token import KeyRange
from shardstream.commands.sinks.common import table_name
from shardstream.commands.sinks.database import with_password
from shardstream.commands.sinks.verify.shard_reader import ShardReader
from shardstream.settings.model import Settings
from shardstream.settings.producer_settings import shard_producer_settings
from spark_consumers.second_database.catalog import FOLLOWING
from spark_consumers.second_database.verify import verification
from spark_consumers.second_database.verify.target_session import VerifyTarget
from spark_consumers.second_database.verify.verification import (
    Verified,
    verify_database,
)
from topics.schemas.registry import open_schema_ids
from topics.start.known_keyspace import known_topology


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """What to compare; `tables` () are all tables."""

    keyspace: str
    url: str
    follower: str
    tables: tuple[str, ...] = ()
    key_range: str = "-"
    replaces_nul: bool = False
    as_json: bool = False


def run_verify(settings: Settings, options: VerifyOptions) -> bool:
    """Compare table by table and print the results; True if no row differs."""
    tables = [table_name(name) for name in options.tables]
    target = VerifyTarget(
        *(with_password(options.url), options.follower, options.replaces_nul),
        key_range=KeyRange.parse(options.key_range),
    )
    clean = True
    with ExitStack() as opened:
        sources = _sources(settings, options.keyspace, target.key_range, opened)
        on_progress = opened.enter_context(_progress_bar(as_json=options.as_json))
        for found in verify_database(target, sources, tables, on_progress):
            _say(found, as_json=options.as_json)
            clean = clean and found.differing == 0
    return clean


def _sources(
    settings: Settings, keyspace: str, key_range: KeyRange, opened: ExitStack
) -> Sequence[ShardReader]:
    topology = known_topology(settings.kafka_client(), keyspace)
    schema_ids = open_schema_ids(settings.kafka_client(), settings.kafka.schema_registry_url)
    found = []
    for shard in topology.shards_for(key_range):
        told = shard_producer_settings(settings, keyspace, shard)
        told = dataclasses.replace(told, vindexes=topology.vindexes)
        found.append(opened.enter_context(closing(ShardReader(told, schema_ids))))
    return found


@contextmanager
def _progress_bar(*, as_json: bool) -> Iterator[Callable[[verification.Progress], None] | None]:
    """A bar per table on a terminal's standard error, else nothing."""
    console = Console(stderr=True)
    if as_json or not console.is_terminal:
        yield None
        return
    shown = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[told]}"))
    with Progress(*shown, TimeRemainingColumn(), console=console) as progress:
        bars: dict[str, TaskID] = {}

        def show(now: verification.Progress) -> None:
            told = f"{now.rows:,} rows, {now.differing:,} differ"
            total = max(now.rows, now.rows_estimated)
            if now.table not in bars:
                bars[now.table] = progress.add_task(now.table, total=total, told=told)
            progress.update(bars[now.table], completed=now.rows, total=total, told=told)

        yield show


def _say(found: Verified, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(dataclasses.asdict(found)) + "\n")
        sys.stdout.flush()
        return
    moment = datetime.fromtimestamp(found.frontier_us / 1e6, tz=UTC)
    at = moment.isoformat(timespec="milliseconds")
    lines = [f"{found.table}: {found.rows} rows, {found.differing} differ (at {at})"]
    lines += [f"  shard {each.shard}, {each.key}: {each.what}" for each in found.named]
    if found.differing > len(found.named):
        lines.append(f"  and {found.differing - len(found.named)} more")
    if not found.is_whole:
        lines.append("  stopped here: copy the table again")
    if found.changing:
        lines.append(f"  {found.changing} rows changed all the time and were not compared")
    if found.differing and found.state == FOLLOWING:
        lines.append(
            "  no copy has completed it: rows that have not changed since the start are missing"
        )
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()
