"""`shardstream local`: real database servers and Kafka on loopback."""

import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from event_token import Flavor, UsageError
from shardstream.commands.options import SHARD_NAMES, CommandLine
from shardstream.local.fetching import cache_folder, exclusive, ivy_jar, quiet
from shardstream.local.kafka_cluster import kafka_jars
from shardstream.local.stack import (
    DEFAULT_KEYSPACE,
    LOCK_FILE,
    SHARDS_MAX,
    Stack,
    StackFacts,
    StackShape,
    flavor_at_hand,
    read_shape,
    run_producers,
)
from shardstream.settings.model import default_config, load_settings
from shardstream.stop_signals import stop_on_signals

DEFAULT_FOLDER = Path(".local")
DEFAULT_SHARDS = 2
DEFAULT_BROKERS = 1
# How often a stack in the foreground checks whether it was stopped by `down`.
FOREGROUND_POLL_S = 0.5

# Shows a row in the stream, to try it out.
EXAMPLE_SQL = (
    "CREATE DATABASE shop; CREATE TABLE shop.orders (id INT PRIMARY KEY); "
    "INSERT INTO shop.orders VALUES (1)"
)

app = CommandLine(help="Run real database servers and Kafka on loopback.", no_args_is_help=True)

Folder = Annotated[Path, typer.Option("--folder", help="Folder for the servers and their data")]
AsJson = Annotated[bool, typer.Option("--json", help="Print addresses, sockets and pids as JSON")]


@app.command()
def up(
    *,
    mysql: Annotated[
        int | None,
        typer.Option(help="Number of MySQL servers (one per shard)", min=1, max=SHARDS_MAX),
    ] = None,
    mariadb: Annotated[
        int | None,
        typer.Option(help="Number of MariaDB servers (one per shard)", min=1, max=SHARDS_MAX),
    ] = None,
    brokers: Annotated[int | None, typer.Option(help="Kafka brokers: 1 or 3", min=1)] = None,
    keyspace: Annotated[str | None, typer.Option(help="Keyspace of the shards")] = None,
    redis: Annotated[bool, typer.Option("--redis", help="Also run Redis")] = False,
    memcached: Annotated[bool, typer.Option("--memcached", help="Also run memcached")] = False,
    folder: Folder = DEFAULT_FOLDER,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Keep running; the servers end with this command")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Start the servers (fetched the first time) and write their shardstream.toml."""
    signal.signal(signal.SIGTERM, _interrupt)
    errors = Console(stderr=True)
    with errors.status("checking") as line:

        def report(message: str) -> None:
            line.update(message)
            if not errors.is_terminal:
                _note(errors, message)

        def choose_flavor() -> Flavor:
            # Before the databases: a missing extra stops the download of Kafka.
            kafka_jars(report)
            return flavor_at_hand(report, notice=lambda said: _note(errors, said))

        with exclusive(folder / LOCK_FILE, report=report):
            shape = _shape(
                *(mysql, mariadb, brokers, keyspace),
                held=read_shape(folder),
                choose_flavor=choose_flavor,
            )
            kafka_jars(report)
            shape = shape.model_copy(update={"redis": redis, "memcached": memcached})
            stack = Stack(folder, shape, die_with_parent=foreground, report=report)
            already = stack.running
            if already and foreground:
                raise UsageError(
                    f"the stack in {stack.folder} is already running; stop it with `shardstream "
                    f"local down`"
                )
            stack.start()
    _print(stack.facts(), "already running" if already else "running", as_json=as_json)
    if not as_json:
        _print_next_steps(stack)
    if foreground:
        _stay(stack)


@app.command()
def produce(folder: Folder = DEFAULT_FOLDER) -> None:
    """Run the producers of all shards, one process each, until Ctrl-C."""
    stack = _existing(folder)
    stop = stop_on_signals()
    keyspace = load_settings(stack.settings_path).keyspace(stack.shape.keyspace)
    shards = sorted(keyspace.shards)
    status = run_producers(stack.settings_path, stack.shape.keyspace, shards, stop)
    if status:
        raise typer.Exit(status)


@app.command()
def fetch() -> None:
    """Download the servers that `up` and the demo start, if they are missing; start none."""
    note = partial(_note, Console(stderr=True))
    ivy_jar()  # without it there is only the error
    with ThreadPoolExecutor(1) as beside:
        kafka = beside.submit(kafka_jars, note)
        flavor = flavor_at_hand(quiet, notice=note)
        kafka.result()
    typer.echo(f"Kafka and {flavor} can be started without a download: {cache_folder()}")


@app.command()
def status(folder: Folder = DEFAULT_FOLDER, as_json: AsJson = False) -> None:
    """Show which servers run, and their addresses."""
    stack = _existing(folder)
    facts = stack.facts()
    word = "running" if facts.running else "stopped" if stack.stopped else "partly running"
    _print(facts, word, as_json=as_json)


@app.command()
def down(
    folder: Folder = DEFAULT_FOLDER,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what was stopped as JSON, as `status` does")
    ] = False,
) -> None:
    """Stop all servers of the folder and wait until they have ended; the data stays."""
    stack = _existing(folder)
    with Console(stderr=True).status("stopping"), exclusive(folder / LOCK_FILE):
        already = stack.stopped
        stack.stop()
    _print(stack.facts(), "already stopped" if already else "stopped", as_json=as_json)


@app.command(context_settings=SHARD_NAMES)
def sql(
    shard: Annotated[str, typer.Argument(help="Shard, e.g. -80")],
    statements: Annotated[
        str | None,
        typer.Option("-e", "--execute", help="SQL statements (default: standard input)"),
    ] = None,
    folder: Folder = DEFAULT_FOLDER,
) -> None:
    """Run SQL as root on the database server of a shard; at a terminal, prompt for it."""
    from shardstream.local.sql import prompt_sql, run_sql

    stack = _existing(folder)
    if shard not in stack.databases:
        raise UsageError(
            f"the stack has no shard {shard!r}; its shards: {', '.join(stack.databases)}"
        )
    server, console = stack.databases[shard], Console(highlight=False)
    if statements is None and sys.stdin.isatty():
        prompt_sql(server, f"{stack.shape.keyspace}/{shard}> ", console)
    else:
        run_sql(server, sys.stdin.read() if statements is None else statements, console)


def _shape(
    mysql: int | None,
    mariadb: int | None,
    brokers: int | None,
    keyspace: str | None,
    *,
    held: StackShape | None,
    choose_flavor: Callable[[], Flavor],
) -> StackShape:
    """Complete the options by the shape of the stack in the folder, else by the defaults."""
    if mysql is not None and mariadb is not None:
        raise UsageError(
            "all servers of a stack are of one family: give --mysql or --mariadb, not both"
        )
    if mysql is not None:
        flavor, shards = Flavor.MYSQL, mysql
    elif mariadb is not None:
        flavor, shards = Flavor.MARIADB, mariadb
    elif held is not None:
        flavor, shards = held.flavor, held.shards
    else:
        flavor, shards = choose_flavor(), DEFAULT_SHARDS
    return StackShape(
        flavor=flavor,
        shards=shards,
        brokers=brokers or (held.brokers if held else DEFAULT_BROKERS),
        keyspace=(held.keyspace if held else DEFAULT_KEYSPACE) if keyspace is None else keyspace,
        targets=held.targets if held else (),
    )


def _existing(folder: Path) -> Stack:
    held = read_shape(folder)
    if held is None:
        raise UsageError(f"there is no stack in {folder}; `shardstream local up` creates one")
    return Stack(folder, held)


def _stay(stack: Stack) -> None:
    """Wait for Ctrl-C, SIGTERM or `down`, then stop the servers that still run."""
    try:
        while not stack.stopped:
            time.sleep(FOREGROUND_POLL_S)
    except KeyboardInterrupt:
        Console(stderr=True).print("stopping")
    finally:
        stack.stop()


def _print_next_steps(stack: Stack) -> None:
    """Print commands to try next, ready to be pasted."""
    config = "" if default_config() == stack.settings_path else f" --config {stack.settings_path}"
    folder = "" if stack.folder == DEFAULT_FOLDER.resolve() else f" --folder {stack.folder}"
    keyspace, shard = stack.shape.keyspace, next(iter(stack.databases))
    lines = [
        "next, each in a separate terminal:",
        f"  shardstream local produce{folder}",
        f"  shardstream tail {keyspace} --from earliest{config}",
        f'  shardstream local sql {shard} -e "{EXAMPLE_SQL}"{folder}',
    ]
    for line in lines:
        typer.echo(line)


def _note(console: Console, message: str) -> None:
    console.print(message, soft_wrap=True, markup=False, highlight=False)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    """Let SIGTERM end the command as Ctrl-C does, so that everything it started is stopped."""
    raise KeyboardInterrupt


def _print(facts: StackFacts, word: str, *, as_json: bool) -> None:
    if as_json:
        typer.echo(facts.model_dump_json(indent=2))
        return
    console = Console()
    # Paths stay on one line so that they can be copied.
    console.print(f"{word}: {facts.folder}", soft_wrap=True, highlight=False)
    table = Table("server", "address", "pid")
    for database in facts.databases:
        address = "-" if database.port is None else f"{database.host}:{database.port}"
        name = f"{database.flavor} {facts.keyspace}/{database.shard}"
        table.add_row(name, address, str(database.pid or "-"))
    for broker in facts.brokers:
        table.add_row(
            f"kafka broker {broker.node_id}", broker.address or "-", str(broker.pid or "-")
        )
    for cache in facts.caches:
        table.add_row(f"cache {cache.kind}", cache.url or "-", str(cache.pid or "-"))
    console.print(table)
    console.print(f"settings: {facts.settings}", soft_wrap=True, highlight=False)
    console.print(f"logs: server.log in each server's folder in {facts.folder}", soft_wrap=True)
