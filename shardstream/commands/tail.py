"""`shardstream tail`: the merged stream on the terminal."""

import json
import sys
import threading
from datetime import UTC, datetime
from typing import Annotated, Final, Self

import typer
from rich.text import Text

from event_token.errors import Halt
from shardstream.commands.options import (
    CommandLine,
    Config,
    Json,
    KeyRangeOption,
    Keyspace,
    MaxHoldOption,
    ReaderName,
)
from shardstream.commands.status_lines import terminal, warn
from shardstream.settings.model import load_settings
from shardstream.stream_filter import Images, StreamFilter, parse_columns
from topics.reading.followed_shards import Stall
from topics.reading.planner import MaxHold, Strict
from topics.records.event_json import event_to_json_dict, event_to_json_text
from topics.records.skip_record import Skip
from topics.records.vevent import EventType, VEvent
from topics.start.start_forms import parse_start
from topics.stream.progress_feed import clock_ms
from topics.stream.subscriber import StreamSubscriber

_OP_STYLE = {"INSERT": "green", "UPDATE": "yellow", "DELETE": "red", "READ": "cyan"}
# A producer advances its head every 250 ms, so this is neither a slow poll nor a short pause.
SILENT_MS: Final = 2_000
POLL_S: Final = 0.2

_Start = Annotated[
    str,
    typer.Option(
        "--from",
        help="Where to start: earliest, latest, copy, a time (2026-01-31T12:00:00Z) or a position",
    ),
]

app = CommandLine()


@app.command()
def tail(
    keyspace: Keyspace,
    config: Config = None,
    key_range: KeyRangeOption = "-",
    start: _Start = "latest",
    until_idle_s: Annotated[
        float | None,
        typer.Option("--until-idle", help="End after this many seconds without an event", min=0),
    ] = None,
    table: Annotated[
        list[str] | None,
        typer.Option("--table", help="database.table, or both in backquotes; repeatable"),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option("--columns", help="Columns of each row, with commas between (default: all)"),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(
            "--where",
            metavar="CONDITION",
            help="Only rows of which this is true, as in filter rules, e.g. 'total > 100'; an "
            "update that enters or leaves them is an INSERT or a DELETE",
        ),
    ] = None,
    images: Annotated[
        Images,
        typer.Option(
            "--images",
            help="Columns of the row before and after: of both all, of the row before the change "
            "those of the primary key, or of both those of the key",
        ),
    ] = Images.BOTH,
    max_hold_ms: MaxHoldOption = None,
    name: ReaderName = None,
    *,
    as_json: Json = False,
) -> None:
    """Print the merged stream."""
    # A shard that holds the stream back is named on standard error. If it still does at the end,
    # its changes, and newer ones of the other shards, were not printed.
    chosen = StreamFilter(
        columns=() if columns is None else parse_columns(columns), where=where, images=images
    )
    settings = load_settings(config)
    with StreamSubscriber(
        keyspace,
        key_range,
        start=parse_start(start, "--from"),
        config=settings.kafka_client(),
        registry_url=settings.kafka.schema_registry_url,
        mode=Strict() if max_hold_ms is None else MaxHold(max_hold_ms),
        idle_timeout_s=until_idle_s,
        tables=table or None,
        clock=settings.clock_uncertainty(),
        name=name,
    ) as events:
        try:
            with _StallWatch(events, keyspace, as_json=as_json) as stalls:
                console = terminal()
                for event in filter(None, map(chosen.apply, events)):
                    if as_json:
                        typer.echo(event_to_json_text(event))
                    else:
                        console.print(event_line(event))
                # Half of the idle time: the watch began a little later than the wait.
                idle_ms = SILENT_MS if until_idle_s is None else int(until_idle_s * 1000 / 2)
                waiting = stalls.waiting_for(min(SILENT_MS, idle_ms))
        except BrokenPipeError:
            # The reader (such as head) has enough and closed the pipe; nothing is lost.
            sys.stderr.close()
            return
    if waiting is not None:
        raise Halt(f"{keyspace}: the stream is incomplete, {waiting}")


class _StallWatch:
    """Warns, from a separate thread, when a shard holds the stream back, and when it is over.

    Without the warning a silent shard looks like an idle one.
    """

    def __init__(self, events: StreamSubscriber, keyspace: str, *, as_json: bool) -> None:
        self._events = events
        self._keyspace = keyspace
        self._as_json = as_json
        self._stall = Stall(clock_ms())
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join()

    def waiting_for(self, at_least_ms: int) -> str | None:
        """Return the shards that the stream has waited for for so long; None while it advances."""
        return self._stall.text(at_least_ms, clock_ms())

    def _watch(self) -> None:
        while not self._stop.wait(POLL_S):
            waiting, position = self._events.waiting, self._events.position
            frontier_us = None if position is None else position.frontier_us
            self._stall.observe(waiting, frontier_us, clock_ms())
            news = self._stall.news(SILENT_MS, clock_ms())
            if news is not None:
                warn(self._keyspace, news, as_json=self._as_json)


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
            name: after[name]
            for name in after
            if name in keys or name not in before or before[name] != after[name]
        }
        return json.dumps(shown, ensure_ascii=False)
    return json.dumps(after if after is not None else before, ensure_ascii=False)


def _key_names(event: VEvent) -> set[str]:
    if event.shape is None:
        return set()
    return {event.shape.columns[i].name for i in event.shape.primary_key}
