"""The command line. A command's module is imported when the command runs: `tail` loads no Spark."""

import errno
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Annotated, Any, Final

import typer

from event_token.errors import Halt, ShardstreamError, TakenOver, UsageError
from shardstream.commands.options import CommandGroup, CommandLine
from shardstream.commands.status_lines import (
    SPARK_LOGGER,
    library_formatter,
    print_line,
    terminal,
)
from topics.errors import NoBrokerAnswers
from topics.records.skip_record import accepting_command

_REACHED: Final = {
    errno.EMFILE: "the limit of open files of this process (ulimit -n): raise it",
    errno.ENFILE: "the limit of open files of this machine (fs.file-max): raise it",
    errno.ENOSPC: "the disk is full: free space on it",
    errno.EDQUOT: "the disk quota is used up: raise it, or free space",
    errno.EROFS: "the file system is read-only: mount it for writing, or name another folder",
    errno.ENOMEM: "this machine or process has no more memory: raise its limit",
}


def limit_reached(error: OSError | MemoryError) -> Halt | None:
    """Return the error that names the limit; None if the error is of another kind."""
    if isinstance(error, MemoryError):
        return Halt(
            "this process has reached its memory limit (ulimit -v, or the limit of its container): "
            "raise the limit; a row or event needs several times its size"
        )
    fix = _REACHED.get(error.errno or 0)
    return None if fix is None else Halt(f"{error}: {fix}")


# Exit statuses: 2 for what the caller can fix (bad input, settings, grants), 3 for a producer or
# applier that another one replaced and that a supervisor must not restart, 1 for the rest, also
# for servers and brokers that do not answer.
EXIT_FENCED = 3
EXIT_USAGE = 2
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130

# By command, the module whose `app` it is.
_MODULES: Final = {
    "produce": "shardstream.commands.produce",
    "preflight": "shardstream.commands.preflight",
    "skip": "shardstream.commands.skip",
    "status": "shardstream.commands.status",
    "serve": "shardstream.commands.serve",
    "tail": "shardstream.commands.tail",
    "decode": "shardstream.commands.decode",
    "changelog": "shardstream.commands.changelog",
    "query": "shardstream.commands.query",
    "state": "shardstream.commands.sinks.state",
    "database": "shardstream.commands.sinks.database",
    "table-topics": "shardstream.commands.sinks.table_topics",
    "invalidate": "shardstream.commands.invalidate",
    "copy": "shardstream.commands.copy",
    "reshard": "shardstream.commands.reshard",
    "audit": "shardstream.commands.audit",
    "topology": "shardstream.commands.topology",
    "topics": "shardstream.commands.topics",
    "readers": "shardstream.commands.readers",
    "manifests": "shardstream.commands.manifests",
    "local": "shardstream.commands.local",
    "demo": "shardstream.commands.demo",
    "version": "shardstream.commands.version",
}


def load_command(arguments: Sequence[str]) -> None:
    """Import the module of the command that arguments begin with, behind options of the group."""
    name = next((each for each in arguments if not each.startswith("-")), "")
    if name in _MODULES:
        # The command imports it again, where its errors are reported.
        with suppress(OSError, MemoryError):
            import_module(_MODULES[name])


class _Commands(Mapping[str, Any]):
    """The commands by name; looking one up imports its module."""

    def __getitem__(self, name: str) -> Any:
        command = typer.main.get_command(import_module(_MODULES[name]).app)
        command.name = name
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(_MODULES)

    def __len__(self) -> int:
        return len(_MODULES)


class _RootGroup(CommandGroup):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = _Commands()  # type: ignore[assignment]  # nothing adds to it


app = CommandLine(
    cls=_RootGroup,
    name="shardstream",
    help="One change stream for a sharded MySQL or MariaDB database, on Kafka and Spark.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
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
        _print_error(error, as_json=as_json, command=command)
        sys.exit(exit_status(error))
    except (OSError, MemoryError) as error:
        reached = limit_reached(error)
        if debug or reached is None:
            raise
        _print_error(reached, as_json=as_json)
        sys.exit(EXIT_FAILED)


def exit_status(error: ShardstreamError) -> int:
    """Return the exit status of a command that ends with this error."""
    if isinstance(error, TakenOver):
        return EXIT_FENCED
    # A wrong address looks like brokers that are down, which may be temporary.
    if isinstance(error, NoBrokerAnswers):
        return EXIT_FAILED
    return EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED


def _print_error(error: ShardstreamError, *, as_json: bool, command: str = "") -> None:
    """Print an error, and the command that continues past it, if there is one."""
    word = "stopped" if isinstance(error, Halt) else "error"
    if as_json:
        fields = {"error": type(error).__name__, **({"command": command} if command else {})}
        text = f"{word}: {error}"
        print_line("", text, fields, as_json=True, level=logging.ERROR, out=sys.stderr)
        return
    console = terminal(stderr=True)
    console.print(f"[bold red]{word}:[/] ", end="")
    # The runbook lists these errors by class.
    name = f" [{type(error).__name__}]" if isinstance(error, Halt) else ""
    console.print(f"{error}{name}", markup=False)
    if command:
        console.print(f"Once the tables are right, run: {command}", markup=False)
