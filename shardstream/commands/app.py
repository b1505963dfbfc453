"""The command line. Each command imports its own parts when it runs: tail loads no Spark."""

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from event_token import Flavor
from event_token.errors import Halt, ShardstreamError, TakenOver, UsageError
from shardstream.commands.changelog.app import app as changelog_app
from shardstream.commands.copy.app import app as copy_app
from shardstream.commands.fleet.readers import app as readers_app
from shardstream.commands.fleet.serve import serve
from shardstream.commands.http.options import serves_metrics
from shardstream.commands.invalidate.app import invalidate
from shardstream.commands.local import app as local_app
from shardstream.commands.machine_limits import limit_reached
from shardstream.commands.options import (
    MAX_BEHIND_S,
    SHARD_NAMES,
    Config,
    Every,
    Json,
    KeyRangeOption,
    Keyspace,
    MaxBehind,
    MaxHoldOption,
    ReaderName,
)
from shardstream.commands.reshard.app import app as reshard_app
from shardstream.commands.single_options import CommandLine
from shardstream.commands.sinks.database_app import app as database_app
from shardstream.commands.sinks.state_app import app as state_app
from shardstream.commands.sinks.table_topics_app import table_topics
from shardstream.commands.status_lines import (
    SPARK_LOGGER,
    library_formatter,
    print_line,
)
from shardstream.commands.topics import app as topics_app
from shardstream.commands.topology import app as topology_app
from topics.errors import NoBrokerAnswers
from topics.records.accepted_skips import accepting_command

# Exit statuses: 2 for what the caller can fix (bad input, settings, grants), 3 for a producer or
# applier that another one replaced and that a supervisor must not restart, 1 for the rest, also
# for servers and brokers that do not answer.
EXIT_FENCED = 3
EXIT_USAGE = 2
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130

app = CommandLine(
    name="shardstream",
    help="One change stream for a sharded MySQL or MariaDB database, on Kafka and Spark.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(local_app, name="local", help="Run real database servers and Kafka on loopback.")
app.add_typer(
    copy_app, name="copy", help="Copy existing rows into the stream (snapshot, backfill)."
)
app.add_typer(
    changelog_app, name="changelog", help="Keep every change exactly once in a Delta table."
)
app.add_typer(
    database_app, name="database", help="Let tables of another database follow, and verify them."
)
app.add_typer(readers_app, name="readers", help="Show the named readers of a keyspace.")
app.add_typer(reshard_app, name="reshard", help="Split and merge shards online.")
app.add_typer(state_app, name="state", help="Keep the current state of all tables in Delta tables.")
app.add_typer(topics_app, name="topics", help="Start the log of a shard over.")
app.add_typer(
    topology_app, name="topology", help="Show, declare or retire the shards of a keyspace."
)


@app.callback()
def _root(
    *,
    debug: Annotated[
        bool,
        typer.Option(
            "--debug",
            help="Show the traceback of an error, and the messages of Spark and the Kafka client",
        ),
    ] = False,
) -> None:
    # main() removes --debug wherever it stands; the option is here for the help text.
    del debug


@app.command(context_settings=SHARD_NAMES)
@serves_metrics
def produce(
    keyspace: Keyspace,
    shard: Annotated[
        str | None, typer.Argument(help="Shard, e.g. -80; KEYSPACE:SHARD as one word will do")
    ] = None,
    config: Config = None,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            help="Where an empty log starts: latest, earliest, a time (2026-01-31T12:00:00Z) or "
            "gtid:SET; a log that has records resumes at its end",
        ),
    ] = "latest",
    every_s: Every = None,
    *,
    as_json: Json = False,
) -> None:
    """Run the producer of one shard: publish its binlog to its log on Kafka."""
    from shardstream.commands.produce import run_produce
    from shardstream.settings.model import load_settings

    if shard is None:
        keyspace, colon, shard = keyspace.partition(":")
        if not colon:
            raise UsageError(f"which shard of {keyspace}? shardstream produce {keyspace} SHARD")
    settings = load_settings(config)
    run_produce(settings, keyspace, shard, start=start, as_json=as_json, every_s=every_s)


@app.command(context_settings=SHARD_NAMES)
def skip(
    keyspace: Keyspace,
    shard: Annotated[str, typer.Argument(help="Shard, e.g. -80")],
    reason: Annotated[str, typer.Option("--reason", help="Why; every reader of the log sees it")],
    gtid: Annotated[
        list[str] | None,
        typer.Option(
            "--gtid",
            help="Transactions to pass if they stop the shard, whose changes are then not logged: "
            "a GTID, a set of MySQL (uuid:72-73), a list of MariaDB; repeatable",
        ),
    ] = None,
    until: Annotated[
        str,
        typer.Option("--until", help="Pass every transaction that stops the shard up to this GTID"),
    ] = "",
    table: Annotated[
        list[str] | None,
        typer.Option(
            "--table",
            help="Pass only what stops because of this table (database.table); repeatable. Without "
            "--until: up to what the server has executed by now",
        ),
    ] = None,
    lost: Annotated[
        str,
        typer.Option("--lost", help="GTIDs that the log holds and a failover lost on the servers"),
    ] = "",
    config: Config = None,
    *,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Pass the GTIDs of --gtid without checking that they stop the shard"
        ),
    ] = False,
) -> None:
    """Pass transactions that stop a shard for good, or go on after a failover that lost some."""
    from shardstream.commands.skip import Asked, run_skip
    from shardstream.settings.model import load_settings

    asked = Asked(tuple(gtid or ()), until, tuple(table or ()), lost, reason, force)
    run_skip(load_settings(config), keyspace, shard, asked)


@app.command()
def preflight(
    keyspace: Annotated[str | None, typer.Argument(help="Keyspace (default: all)")] = None,
    config: Config = None,
    *,
    as_json: Json = False,
) -> None:
    """Check servers, grants and topics; report every problem at once, each with its fix."""
    from shardstream.commands.preflight import run_preflight
    from shardstream.settings.model import load_settings

    run_preflight(load_settings(config), keyspace, as_json=as_json)


@app.command()
def status(
    keyspace: Annotated[str | None, typer.Argument(help="Keyspace (default: all)")] = None,
    config: Config = None,
    max_behind_s: MaxBehind = MAX_BEHIND_S,
    *,
    watch: Annotated[bool, typer.Option("--watch", help="Look every second, until Ctrl-C")] = False,
    as_json: Json = False,
) -> None:
    """Show all shards: what can be read, how far behind it is, and who holds readers back.

    Exit with status 1 if readers are held back, or a producer has stopped.
    """
    from shardstream.commands.fleet.status import run_status
    from shardstream.settings.model import load_settings

    if not run_status(
        load_settings(config), keyspace, max_behind_s=max_behind_s, watch=watch, as_json=as_json
    ):
        raise typer.Exit(EXIT_FAILED)


app.command()(serve)


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
        typer.Option("--until-idle", help="End after this many seconds without an event", min=0),
    ] = None,
    table: Annotated[
        list[str] | None,
        typer.Option("--table", help="database.table, or both in backquotes; repeatable"),
    ] = None,
    max_hold_ms: MaxHoldOption = None,
    name: ReaderName = None,
    *,
    as_json: Json = False,
) -> None:
    """Print the merged stream."""
    from shardstream.commands.tail import TailOptions, run_tail
    from shardstream.settings.model import load_settings

    options = TailOptions(
        keyspace=keyspace,
        key_range=key_range,
        start=start,
        until_idle_s=until_idle_s,
        tables=tuple(table or ()),
        max_hold_ms=max_hold_ms,
        name=name,
        as_json=as_json,
    )
    run_tail(load_settings(config), options)


app.command()(invalidate)
app.command("table-topics")(table_topics)


@app.command()
def query(
    path: Annotated[str, typer.Argument(help="Folder or URL of the Delta table")],
    sql: Annotated[str, typer.Argument(help="SQL; the table is named log")],
) -> None:
    """Query a change log with SQL, without Spark."""
    from shardstream.commands.query import run_query

    run_query(path, sql)


@app.command()
def demo(
    seconds: Annotated[int, typer.Option(help="How long the workload runs", min=5)] = 45,
    folder: Annotated[Path, typer.Option(help="Folder for all servers and data")] = Path(
        ".local/demo"
    ),
    *,
    mariadb: Annotated[
        bool, typer.Option("--mariadb", help="Use MariaDB (default: MySQL where it is available)")
    ] = False,
    cache: Annotated[
        bool,
        typer.Option("--cache", help="A shop behind a cache, with replicas that lag, instead"),
    ] = False,
    plain: Annotated[
        bool, typer.Option("--plain", help="With --cache: ordinary caches, for comparison")
    ] = False,
) -> None:
    """Run the whole system on real servers, split a shard live, and prove that nothing is lost."""
    flavor = Flavor.MARIADB if mariadb else None
    if plain and not cache:
        raise UsageError("--plain is about caches: add --cache")
    if cache:
        from shardstream.demo.cached.run import run_cached_demo

        is_proven = run_cached_demo(seconds, folder, flavor, plain=plain)
    else:
        from shardstream.demo.run import run_demo

        is_proven = run_demo(seconds, folder, flavor)
    if not is_proven:
        raise typer.Exit(EXIT_FAILED)


@app.command()
def manifests(
    keyspace: Keyspace,
    config: Config = None,
    image: Annotated[str, typer.Option(help="Image of the producers")] = "shardstream",
) -> None:
    """Print one Kubernetes Deployment per shard, as YAML."""
    from shardstream.commands.fleet.manifests import producer_manifests
    from shardstream.settings.model import load_settings

    typer.echo(producer_manifests(load_settings(config), keyspace, image), nl=False)


@app.command()
def version() -> None:
    """Print the version, and whether the hot path is compiled."""
    from shardstream.version import version_line

    typer.echo(version_line())


def main() -> None:
    """Run a command; report a ShardstreamError as one message and an exit status."""
    arguments = sys.argv[1:]
    debug = "--debug" in arguments
    handler = logging.StreamHandler()
    as_json = "--json" in arguments
    handler.setFormatter(library_formatter(as_json=as_json))
    logging.getLogger("shardstream").addHandler(handler)
    # The Kafka client logs every transient fault; those that matter are raised as errors.
    # librdkafka's fatal errors are critical lines of its log; they arrive as exceptions, too.
    quiet = logging.CRITICAL + 1
    for name in ("shardstream.kafka", SPARK_LOGGER):
        logging.getLogger(name).setLevel(logging.DEBUG if debug else quiet)
    try:
        app(args=[a for a in arguments if a != "--debug"])
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except ShardstreamError as error:
        if debug:
            raise
        command = accepting_command(arguments, str(error)) if isinstance(error, Halt) else ""
        _say(error, as_json=as_json, command=command)
        sys.exit(exit_status(error))
    except (OSError, MemoryError) as error:
        reached = limit_reached(error)
        if debug or reached is None:
            raise
        _say(reached, as_json=as_json)
        sys.exit(EXIT_FAILED)


def exit_status(error: ShardstreamError) -> int:
    """Return the exit status of a command that ends with this error."""
    if isinstance(error, TakenOver):
        return EXIT_FENCED
    # Brokers that are away look like brokers of another address; a restart of them may pass.
    if isinstance(error, NoBrokerAnswers):
        return EXIT_FAILED
    return EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED


def _say(error: ShardstreamError, *, as_json: bool, command: str = "") -> None:
    """Print an error; `command`: what gets past it."""
    word = "stopped" if isinstance(error, Halt) else "error"
    if as_json:
        fields = {"error": type(error).__name__, **({"command": command} if command else {})}
        text = f"{word}: {error}"
        print_line("", text, fields, as_json=True, level=logging.ERROR, out=sys.stderr)
        return
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    console.print(f"[bold red]{word}:[/] ", end="")
    # By its class the runbook says what to do.
    name = f" [{type(error).__name__}]" if isinstance(error, Halt) else ""
    console.print(f"{error}{name}", markup=False)
    if command:
        console.print(f"Once they are right: {command}", markup=False)
