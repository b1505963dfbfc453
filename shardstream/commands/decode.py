"""`shardstream decode`: what an event token or a stream position says."""

import json
from functools import partial
from typing import Annotated

import typer
from rich import box
from rich.table import Column, Table
from rich.text import Text

from event_token import EventToken, StreamPosition
from event_token.decoded import (
    parse_opaque,
    position_to_json_dict,
    time_text,
    token_to_json_dict,
)
from shardstream.commands.options import CommandLine, Json
from shardstream.commands.status_lines import terminal

_NO_TIME = "no time"

app = CommandLine()


@app.command()
def decode(
    text: Annotated[
        str,
        typer.Argument(metavar="TOKEN|POSITION", help="What a reader has given or stored"),
    ],
    *,
    as_json: Json = False,
) -> None:
    """Show what an event token or a stream position says. Nothing is connected."""
    found = parse_opaque(text.strip())
    if isinstance(found, EventToken):
        said, show = token_to_json_dict(found), partial(_show_token, found)
    else:
        said, show = position_to_json_dict(found), partial(_show_position, found)
    if as_json:
        typer.echo(json.dumps(said))
    else:
        show()


def _show_token(token: EventToken) -> None:
    terminal().print(Text(f"event token of shard {token.shard}"))
    rows = [("time", _time(token)), ("GTIDs", str(token.position))]
    if token.origin is not None:
        rows += [
            ("first committed on", token.origin.shard),
            ("at", _time(token.origin)),
            ("GTIDs there", str(token.origin.position)),
        ]
    table = Table.grid(Column(), Column(overflow="fold"), padding=(0, 2))
    for name, value in rows:
        table.add_row(name, Text(value))
    terminal().print(table)


def _show_position(position: StreamPosition) -> None:
    # 0: nothing has been read yet.
    read = f"read before {time_text(position.frontier_us)}" if position.frontier_us else "new"
    terminal().print(Text(f"stream position, epoch {position.epoch}, {read}"))
    names = ("shard", "next offset", "last seq", "time")
    whole = [Column(name, no_wrap=True) for name in names]
    table = Table(*whole, Column("GTIDs", overflow="fold"), box=box.SIMPLE, padding=0)
    for shard, at in position.shards.items():
        token = "" if at.token is None else _time(at.token)
        gtids = "" if at.token is None else str(at.token.position)
        cells = (shard, f"{at.offset:,}", f"{at.seq:,}", token, gtids)
        table.add_row(*map(Text, cells))
    terminal().print(table)


def _time(token: EventToken) -> str:
    return _NO_TIME if token.timestamp_us is None else time_text(token.timestamp_us)
