"""`shardstream copy`: rows that are in tables already join the stream."""

from pathlib import Path
from typing import Annotated

import typer

from topics.progress.copy_topic import CopyAction, CopyRequest

app = typer.Typer(no_args_is_help=True, add_completion=False)

Keyspace = Annotated[str, typer.Argument(help="Keyspace, e.g. commerce")]
Config = Annotated[
    Path | None,
    typer.Option("--config", help="Settings file; default $SHARDSTREAM_CONFIG, ./shardstream.toml"),
]
Shards = Annotated[
    list[str] | None, typer.Option("--shard", help="Shard; may be repeated; default all")
]
Tables = Annotated[
    list[str] | None,
    typer.Option("--table", help="database.table; may be repeated; default all"),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object a line, for machines")]


def _ask(
    keyspace: str, config: Path | None, shards: list[str] | None, request: CopyRequest
) -> None:
    from shardstream.commands.copy_requests import ask_shards
    from shardstream.settings.model import load_settings

    ask_shards(load_settings(config), keyspace, shards or [], request)


@app.command()
def start(
    keyspace: Keyspace,
    config: Config = None,
    shard: Shards = None,
    table: Tables = None,
    where: Annotated[
        str, typer.Option("--where", help="SQL condition on the rows of the tables named")
    ] = "",
    *,
    wait: Annotated[bool, typer.Option("--wait", help="Show the progress until it ends")] = False,
    as_json: Json = False,
) -> None:
    """Copy tables into the shard logs, beside the changes that go on meanwhile."""
    from shardstream.commands.copy_requests import watch_copies
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
    watch: Annotated[bool, typer.Option("--watch", help="Until all copies have ended")] = False,
    as_json: Json = False,
) -> None:
    """Say how far the copies are: rows done, rows a second, time left."""
    from shardstream.commands.copy_requests import show_copies, watch_copies
    from shardstream.settings.model import load_settings

    show = watch_copies if watch else show_copies
    show(load_settings(config), keyspace, shard or [], table or [], as_json=as_json)


@app.command()
def pause(
    keyspace: Keyspace, config: Config = None, shard: Shards = None, table: Tables = None
) -> None:
    """Let copies rest where they are."""
    _ask(keyspace, config, shard, CopyRequest(CopyAction.PAUSE, tuple(table or ())))


@app.command()
def resume(
    keyspace: Keyspace, config: Config = None, shard: Shards = None, table: Tables = None
) -> None:
    """Go on with copies that rest, or that failed by something that is mended now."""
    _ask(keyspace, config, shard, CopyRequest(CopyAction.RESUME, tuple(table or ())))


@app.command()
def cancel(
    keyspace: Keyspace, config: Config = None, shard: Shards = None, table: Tables = None
) -> None:
    """End copies; the rows copied so far stay in the log."""
    _ask(keyspace, config, shard, CopyRequest(CopyAction.CANCEL, tuple(table or ())))
