"""The command line. Each command imports what it needs when it runs: tail needs no Spark."""

import logging
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from event_token.errors import Halt, ShardstreamError, UsageError
from shardstream.commands.copy import app as copy_app
from shardstream.commands.local import app as local_app
from shardstream.commands.reshard import app as reshard_app
from shardstream.commands.topology import app as topology_app

# Exit statuses: 2 for what the caller can mend (bad input, settings, grants), 1 for the rest.
EXIT_USAGE = 2
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130

app = typer.Typer(
    name="shardstream",
    help="One change stream for a sharded MySQL or MariaDB database, on Kafka and Spark.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(local_app, name="local", help="Real servers on loopback: databases and Kafka.")
app.add_typer(copy_app, name="copy", help="Rows that tables hold already join the stream.")
app.add_typer(reshard_app, name="reshard", help="Split and merge shards while everything runs.")
app.add_typer(topology_app, name="topology", help="Which shards a keyspace has, and since when.")

Config = Annotated[
    Path | None,
    typer.Option("--config", help="Settings file; default $SHARDSTREAM_CONFIG, ./shardstream.toml"),
]
Keyspace = Annotated[str, typer.Argument(help="Keyspace, e.g. commerce")]
KeyRangeOption = Annotated[
    str, typer.Option("--key-range", help="Part of the keyspace, e.g. -80; default all of it")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object a line, for machines")]


@app.callback()
def _root(
    *,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error")] = False,
) -> None:
    # main() takes --debug out wherever it stands; the option is here for the help text.
    del debug


# A shard's name may begin with a dash (-80): a single dash and digits is no option of ours.
@app.command(context_settings={"ignore_unknown_options": True})
def produce(
    keyspace: Keyspace,
    shard: Annotated[str, typer.Argument(help="Shard, e.g. -80")],
    config: Config = None,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            help="Where an empty log starts: current, earliest, gtid:SET or timestamp:TIME "
            "(timestamp:2026-01-31T12:00:00Z); "
            "a log that holds anything goes on at its tail",
        ),
    ] = "current",
    *,
    as_json: Json = False,
) -> None:
    """Run the producer of one shard: its binlog becomes its log on Kafka."""
    from shardstream.commands.produce import run_produce
    from shardstream.settings.model import load_settings

    run_produce(load_settings(config), keyspace, shard, start=start, as_json=as_json)


@app.command()
def preflight(
    keyspace: Annotated[str | None, typer.Argument(help="Keyspace; default all")] = None,
    config: Config = None,
    *,
    as_json: Json = False,
) -> None:
    """List every problem of settings, grants and topics at once, with what mends each."""
    from shardstream.commands.preflight import run_preflight
    from shardstream.settings.model import load_settings

    run_preflight(load_settings(config), keyspace, as_json=as_json)


@app.command()
def tail(
    keyspace: Keyspace,
    config: Config = None,
    key_range: KeyRangeOption = "-",
    start: Annotated[
        str,
        typer.Option(
            "--from", help="earliest, latest, copy, a time (2026-01-31T12:00:00Z) or a position"
        ),
    ] = "latest",
    until_idle_s: Annotated[
        float | None,
        typer.Option("--until-idle", help="End when nothing came for this many seconds", min=0),
    ] = None,
    table: Annotated[
        list[str] | None, typer.Option("--table", help="database.table; may be repeated")
    ] = None,
    max_hold_ms: Annotated[
        int | None,
        typer.Option("--max-hold-ms", help="Go on without a shard that is silent for this long"),
    ] = None,
    *,
    as_json: Json = False,
) -> None:
    """Show the merged stream."""
    from shardstream.commands.tail import TailOptions, run_tail
    from shardstream.settings.model import load_settings

    options = TailOptions(
        keyspace=keyspace,
        key_range=key_range,
        start=start,
        until_idle_s=until_idle_s,
        tables=tuple(table or ()),
        max_hold_ms=max_hold_ms,
        as_json=as_json,
    )
    run_tail(load_settings(config), options)


@app.command()
def changelog(
    keyspace: Keyspace,
    target: Annotated[Path, typer.Option("--target", help="Folder of the Delta table")],
    config: Config = None,
    checkpoint: Annotated[
        Path | None, typer.Option("--checkpoint", help="Default: TARGET and `.checkpoint`")
    ] = None,
    key_range: KeyRangeOption = "-",
    start: Annotated[
        str,
        typer.Option("--from", help="Of a new checkpoint: earliest, latest, a time, a position"),
    ] = "earliest",
    max_rows_per_batch: Annotated[
        int | None, typer.Option("--max-rows-per-batch", help="Smaller batches, less memory", min=1)
    ] = None,
    max_hold_ms: Annotated[
        int | None,
        typer.Option("--max-hold-ms", help="Go on without a shard that is silent for this long"),
    ] = None,
    *,
    available_now: Annotated[
        bool, typer.Option("--available-now", help="Take what is there now, then end")
    ] = False,
    as_json: Json = False,
) -> None:
    """Keep the change log: every change once in a Delta table, written by Spark."""
    from shardstream.commands.changelog import ChangelogOptions, run_changelog_command
    from shardstream.settings.model import load_settings

    options = ChangelogOptions(
        keyspace=keyspace,
        target=target,
        checkpoint=checkpoint or target.with_name(target.name + ".checkpoint"),
        key_range=key_range,
        start=start,
        max_rows_per_batch=max_rows_per_batch,
        max_hold_ms=max_hold_ms,
        available_now=available_now,
        as_json=as_json,
    )
    run_changelog_command(load_settings(config), options)


@app.command()
def query(
    path: Annotated[Path, typer.Argument(help="Folder of the Delta table")],
    sql: Annotated[str, typer.Argument(help="SQL; the table is called log")],
) -> None:
    """Ask a change log something, without Spark."""
    from shardstream.commands.query import run_query

    run_query(path, sql)


@app.command()
def demo(
    seconds: Annotated[int, typer.Option(help="How long the shop's traffic runs", min=5)] = 45,
    folder: Annotated[Path, typer.Option(help="Where everything lies")] = Path(".local/demo"),
) -> None:
    """Show the whole system at work on real servers, and prove that nothing was lost."""
    from shardstream.demo.run import run_demo

    if not run_demo(seconds, folder):
        raise typer.Exit(EXIT_FAILED)


@app.command()
def version() -> None:
    """Print the version and whether the compiled hot path is in use."""
    from shardstream.version import version_line

    typer.echo(version_line())


def main() -> None:
    """Entry point: errors of the tree become one message and an exit status."""
    # Started in the background of a script, SIGINT arrives ignored; servers would outlive a stop.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    arguments = sys.argv[1:]
    debug = "--debug" in arguments
    # The Kafka client tells of every passing fault; those that matter become errors of our own.
    logging.getLogger("shardstream.kafka").setLevel(logging.DEBUG if debug else logging.CRITICAL)
    try:
        app(args=[a for a in arguments if a != "--debug"])
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except ShardstreamError as error:
        if debug:
            raise
        _say(error)
        sys.exit(EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED)


def _say(error: ShardstreamError) -> None:
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    word = "stopped" if isinstance(error, Halt) else "error"
    console.print(f"[bold red]{word}:[/] ", end="")
    console.print(str(error), markup=False)
