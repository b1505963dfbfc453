"""`shardstream copy`: copy existing rows into the stream (snapshot, backfill)."""

from pathlib import Path
from typing import Annotated

import typer

from shardstream.commands.options import Config, Json, Keyspace
from shardstream.commands.single_options import CommandLine
from topics.progress.copy_topic import CopyAction, CopyRequest

app = CommandLine(no_args_is_help=True)

Shards = Annotated[
    list[str] | None, typer.Option("--shard", help="Shard; repeatable (default: all)")
]
Tables = Annotated[
    list[str] | None,
    typer.Option("--table", help="database.table; repeatable (default: all)"),
]


def _ask(
    keyspace: str, config: Path | None, shards: list[str] | None, request: CopyRequest
) -> None:
    from shardstream.commands.copy.requests import ask_shards
    from shardstream.settings.model import load_settings

    ask_shards(load_settings(config), keyspace, shards or [], request)


@app.command()
def start(
    keyspace: Keyspace,
    config: Config = None,
    shard: Shards = None,
    table: Tables = None,
    where: Annotated[
        str, typer.Option("--where", help="SQL condition on the rows of the named tables")
    ] = "",
    *,
    wait: Annotated[
        bool, typer.Option("--wait", help="Show progress until the copies end")
    ] = False,
    as_json: Json = False,
) -> None:
    """Copy tables into the shard logs while changes continue."""
    from shardstream.commands.copy.progress import watch_copies
    from shardstream.settings.model import load_settings

    request = CopyRequest(CopyAction.START, tuple(table or ()), where)
    _ask(keyspace, config, shard, request)
    if wait:
        settings = load_settings(config)
        watch_copies(settings, keyspace, shard or [], table or [], as_json=as_json)


@app.command()
def status(
    keyspace: Keyspace,
    config: Config = None,
    shard: Shards = None,
    table: Tables = None,
    *,
    watch: Annotated[
        bool, typer.Option("--watch", help="Follow until all copies have ended")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show the progress of copies: rows copied, rows per second, time left."""
    from shardstream.commands.copy.progress import show_copies, watch_copies
    from shardstream.settings.model import load_settings

    show = watch_copies if watch else show_copies
    show(load_settings(config), keyspace, shard or [], table or [], as_json=as_json)


@app.command()
def pause(
    keyspace: Keyspace, config: Config = None, shard: Shards = None, table: Tables = None
) -> None:
    """Pause copies."""
    _ask(keyspace, config, shard, CopyRequest(CopyAction.PAUSE, tuple(table or ())))


@app.command()
def resume(
    keyspace: Keyspace, config: Config = None, shard: Shards = None, table: Tables = None
) -> None:
    """Resume copies that were paused, or that failed and whose cause is fixed."""
    _ask(keyspace, config, shard, CopyRequest(CopyAction.RESUME, tuple(table or ())))


@app.command()
def cancel(
    keyspace: Keyspace, config: Config = None, shard: Shards = None, table: Tables = None
) -> None:
    """End copies; the rows copied so far stay in the log."""
    _ask(keyspace, config, shard, CopyRequest(CopyAction.CANCEL, tuple(table or ())))
