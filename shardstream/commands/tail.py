"""`shardstream tail`: the merged stream on the terminal."""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TextIO

from rich.console import Console
from rich.text import Text

from event_token.errors import Halt
from shardstream.commands.silent_shards import SILENT_MS, SilentShards
from shardstream.commands.status_lines import warn
from shardstream.settings.model import Settings
from topics.reading.planner import MaxHold, Mode, Strict
from topics.records.event_json import event_to_json_dict, event_to_json_text
from topics.records.skip_record import Skip
from topics.records.vevent import EventType, VEvent
from topics.start.start_forms import parse_start
from topics.stream.subscriber import StreamSubscriber

_OP_STYLE = {"INSERT": "green", "UPDATE": "yellow", "DELETE": "red", "READ": "cyan"}


@dataclass(frozen=True, slots=True)
class TailOptions:
    """What to show of a keyspace, from where, and when to end."""

    keyspace: str
    key_range: str = "-"
    start: str = "latest"
    until_idle_s: float | None = None
    tables: tuple[str, ...] = ()
    max_hold_ms: int | None = None
    name: str | None = None
    as_json: bool = False


def run_tail(settings: Settings, options: TailOptions, out: TextIO | None = None) -> None:
    """Print events until interrupted, or until there was none for `until_idle_s`.

    A shard that holds the stream back is named on standard error. Halt when it still does at the
    end: what it has, and what is newer in the other shards, was not printed.
    """
    mode: Mode = Strict() if options.max_hold_ms is None else MaxHold(options.max_hold_ms)
    stream = out or sys.stdout
    with StreamSubscriber(
        options.keyspace,
        options.key_range,
        start=parse_start(options.start, "--from"),
        config=settings.kafka_client(),
        registry_url=settings.kafka.schema_registry_url,
        mode=mode,
        idle_timeout_s=options.until_idle_s,
        tables=options.tables or None,
        clock=settings.clock_uncertainty(),
        name=options.name,
    ) as events:
        try:
            with SilentShards(
                events, partial(warn, options.keyspace, as_json=options.as_json)
            ) as silent:
                if options.as_json:
                    _print_json(events, stream)
                else:
                    _print_lines(events, Console(file=stream, soft_wrap=True, highlight=False))
                # Half of the idle time: the watch began a little later than the wait.
                idle_ms = SILENT_MS
                if options.until_idle_s is not None:
                    idle_ms = int(options.until_idle_s * 1000 / 2)
                waiting = silent.waiting_for(min(SILENT_MS, idle_ms))
        except BrokenPipeError:
            # The reader (such as head) has enough and closed the pipe; nothing is lost.
            sys.stderr.close()
            return
    if waiting is not None:
        raise Halt(f"{options.keyspace}: the stream is incomplete, {waiting}")


def _print_json(events: Iterator[VEvent], stream: TextIO) -> None:
    for event in events:
        stream.write(event_to_json_text(event))
        stream.write("\n")
        stream.flush()


def _print_lines(events: Iterator[VEvent], console: Console) -> None:
    for event in events:
        console.print(event_line(event))


def event_line(event: VEvent) -> Text:
    """One event as a person reads it: time, shard, op, table, row."""
    moment = datetime.fromtimestamp((event.token.timestamp_us or 0) / 1e6, tz=UTC)
    line = Text()
    line.append(moment.strftime("%H:%M:%S.%f")[:-3], style="dim")
    line.append(f" {event.shard:>8} ", style="blue")
    if event.type is EventType.ROW:
        line.append(f"{event.op.value:<6} ", style=_OP_STYLE.get(event.op.value, ""))
        line.append(f"{event.database}.{event.table} ", style="bold")
        line.append(_row_text(event))
    else:
        line.append(f"{event.type.value:<6} ", style="magenta")
        line.append(_statement_text(event))
    if event.late:
        line.append(" late", style="bold red")
    if event.possible_duplicate:
        line.append(" possible duplicate", style="bold red")
    return line


def _statement_text(event: VEvent) -> str:
    if event.type is EventType.JOURNAL and event.statement:
        mark = json.loads(event.statement)
        sources, targets = ", ".join(mark["sources"]), ", ".join(mark["targets"])
        return f"{mark['kind']} of reshard {mark['reshard_id']}: {sources} -> {targets}"
    if event.type is EventType.SKIP:
        skip = Skip.of(event)
        return f"{skip.kind.value} {skip.gtids}: {skip.reason}"
    return event.statement or f"{event.database}.{event.table}"


def _row_text(event: VEvent) -> str:
    values = event_to_json_dict(event)
    before, after = values["before"], values["after"]
    if before is not None and after is not None:
        keys = _key_names(event)
        shown = {
            name: after[name] for name in after if name in keys or before.get(name) != after[name]
        }
        return json.dumps(shown, ensure_ascii=False)
    return json.dumps(after if after is not None else before, ensure_ascii=False)


def _key_names(event: VEvent) -> set[str]:
    if event.shape is None:
        return set()
    return {event.shape.columns[i].name for i in event.shape.primary_key}
