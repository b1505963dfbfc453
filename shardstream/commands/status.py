"""`shardstream status`: the state of all shards, once or every second."""

import json
import sys
import time
from typing import Annotated, Final

import typer
from rich.console import Group
from rich.live import Live

from shardstream.commands.options import MAX_BEHIND_S, CommandLine, Config, Json, MaxBehind
from shardstream.commands.status_lines import terminal
from shardstream.settings.model import load_settings
from shardstream.status.keyspace_report import keyspace_json, keyspace_text
from shardstream.status.refresh import open_fleet

# As often as the status lines of producers change.
WATCH_S: Final = 1.0
# A person or a check waits for the answer, and starting the command takes some of its 10 s.
ANSWER_S: Final = 5.0

app = CommandLine()


@app.command()
def status(
    keyspace: Annotated[str | None, typer.Argument(help="Keyspace (default: all)")] = None,
    config: Config = None,
    max_behind_s: MaxBehind = MAX_BEHIND_S,
    *,
    watch: Annotated[
        bool, typer.Option("--watch", help="Refresh every second, until Ctrl-C")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show what can be read, how far behind each shard is, and which shards hold readers back.

    Exit with status 1 if readers are held back, or a producer has stopped.
    """
    settings = load_settings(config)
    keyspaces = settings.keyspaces_named(keyspace)
    with open_fleet(settings, ANSWER_S) as fleet:
        if watch and not as_json:
            with Live(refresh_per_second=4, screen=sys.stdout.isatty()) as live:
                while True:
                    texts = [keyspace_text(fleet.look(name), max_behind_s) for name in keyspaces]
                    live.update(Group(*texts))
                    time.sleep(WATCH_S)
        while True:
            views = [fleet.look(name) for name in keyspaces]
            for view in views:
                if as_json:
                    typer.echo(json.dumps(keyspace_json(view)))
                else:
                    # A command of many GTIDs may be longer than a line.
                    terminal().print(keyspace_text(view, max_behind_s), crop=False)
            if not watch:
                break
            time.sleep(WATCH_S)
    if any(view.is_held_back(round(max_behind_s * 1_000)) for view in views):
        raise typer.Exit(1)
