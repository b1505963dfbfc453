"""Options and arguments that several commands share."""

import functools
import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from operator import getitem
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import ArgumentInfo, OptionInfo

from event_token.errors import UsageError
from shardstream.commands.status_lines import StatusLines
from shardstream.status.probe import Probe, systemd_notified
from sinks.rule.policy import Option
from topics.arrow.key_scope import KeyScope
from topics.fleet.view import SILENT_MS

if TYPE_CHECKING:
    from prometheus_client.core import Metric

# Where a shard is called silent, readers are called held back.
MAX_BEHIND_S = SILENT_MS / 1_000
MaxBehind = Annotated[
    float,
    typer.Option(
        "--max-behind-s",
        help="Readers count as held back when they are more than this many seconds behind",
        min=0,
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="Settings file (default: $SHARDSTREAM_CONFIG, else ./shardstream.toml, else the one "
        "of `shardstream local up`)",
    ),
]
Keyspace = Annotated[str, typer.Argument(help="Keyspace, e.g. commerce")]
Shard = Annotated[str, typer.Argument(help="Shard, e.g. -80")]
Reason = Annotated[
    str, typer.Option("--reason", help="Reason, which `shardstream audit` shows later")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object per line")]
Every = Annotated[
    float | None,
    typer.Option(
        "--every",
        help="Seconds between status lines (default: 10, and 60 while nothing changes)",
        min=0,
    ),
]
KeyRangeOption = Annotated[
    str, typer.Option("--key-range", help="Part of the keyspace, e.g. -80 (default: all of it)")
]
MaxHoldOption = Annotated[
    int | None,
    typer.Option(
        "--max-hold-ms",
        help="Continue without a shard that has been silent for this long; its rows arrive late",
        min=0,
    ),
]
ReaderName = Annotated[
    str | None,
    typer.Option(
        "--name", help="Report the position on Kafka under this name; `status` shows its lag"
    ),
]
# The options of the commands that run a Spark query.
Checkpoint = Annotated[
    str | None,
    typer.Option(
        "--checkpoint", help="Folder or URL of Spark's checkpoint (default: TARGET.checkpoint)"
    ),
]
StartOption = Annotated[
    str,
    typer.Option(
        "--from",
        help="Where a new checkpoint starts: earliest, latest, copy, a time or a position",
    ),
]
MaxRowsPerBatch = Annotated[
    int | None,
    typer.Option("--max-rows-per-batch", help="Limit the rows (and memory) of a batch", min=1),
]
AvailableNow = Annotated[
    bool, typer.Option("--available-now", help="Process what is available now, then end")
]

# A shard name may begin with a dash (-80); without this it would be taken for an option.
SHARD_NAMES = {"ignore_unknown_options": True}
KeyScopeOption = Annotated[
    KeyScope,
    typer.Option(
        "--key-scope",
        help="Where primary keys are unique: in the keyspace, or only on each shard, so that the "
        "keyspace id is part of the key; cannot change later",
    ),
]
RequiredCheckpoint = Annotated[
    str, typer.Option("--checkpoint", help="Folder or URL of Spark's checkpoint")
]


class _OptionsGivenOnce:
    """Refuses an option of one value, or a flag, that is given twice.

    Of such an option the parser keeps the last value and drops the others without a word. Options
    that take many values are lists.
    """

    def make_parser(self, ctx: Any) -> Any:
        """Return a parser that raises UsageError on a repeated option, before values are read."""
        parser = super().make_parser(ctx)  # type: ignore[misc]  # of the class beside this one
        parse = parser.parse_args

        def parse_args(args: list[str]) -> Any:
            values, rest, given = parse(args=args)
            for option, times in Counter(given).items():
                if times > 1 and not (option.nargs != 1 or option.multiple or option.is_eager):
                    raise UsageError(
                        f"{max(option.opts, key=len)} is given {times} times: give it once"
                    )
            return values, rest, given

        parser.parse_args = parse_args
        return parser


class _Command(_OptionsGivenOnce, TyperCommand):
    pass


class CommandGroup(_OptionsGivenOnce, TyperGroup):
    """A group of commands."""


class CommandLine(typer.Typer):
    """Commands that refuse repeated options."""

    def __init__(self, **options: Any) -> None:
        """`options`: as of typer.Typer."""
        super().__init__(**{"cls": CommandGroup, "add_completion": False, **options})

    def command(self, name: str | None = None, **options: Any) -> Callable[[Any], Any]:
        """Add a command; `options`: as of typer.Typer."""
        return super().command(name, **{"cls": _Command, **options})


# What a scrape gets; the module of it comes with an extra.
Metrics: TypeAlias = "Iterable[Metric]"

TokenFile = Annotated[
    Path | None,
    typer.Option("--auth-token-file", help="File with the bearer token that requests must carry"),
]
NoAuth = Annotated[bool, typer.Option("--no-auth", help="Disable authentication")]


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    """Where to serve metrics and probes, and who may ask. `http` None: nowhere."""

    http: Annotated[
        str | None,
        typer.Option(
            "--http",
            metavar="HOST:PORT",
            help="Address at which to serve /metrics, /livez and /readyz (default: none)",
        ),
    ] = None
    token_file: TokenFile = None
    no_auth: NoAuth = False

    def __post_init__(self) -> None:
        """Refuse options that have no effect without `--http`."""
        if self.http is None and (self.token_file is not None or self.no_auth):
            raise UsageError("--auth-token-file and --no-auth require --http")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """How a command that runs until it is stopped shows its state."""

    every_s: Every = None
    as_json: Json = False
    http: HttpOptions = field(default_factory=HttpOptions)

    def lines(self) -> StatusLines:
        """Return what prints the status lines."""
        return StatusLines(as_json=self.as_json, every_s=self.every_s)


@contextmanager
def observed(options: HttpOptions, probe: Probe, families: Callable[[], Metrics]) -> Iterator[None]:
    """Within the block, report to systemd, and serve metrics and probes if `--http` is given.

    UsageError where the address is in use, or needs a token.
    """
    with systemd_notified(probe), ExitStack() as stack:
        if options.http is not None:
            from shardstream.status.address import Address, access_token
            from shardstream.status.server import serving

            address = Address.parse(options.http)
            token = access_token(address, options.token_file, is_open=options.no_auth)
            stack.enter_context(serving(address, token, probe, families))
        yield


_KEYWORD = inspect.Parameter.KEYWORD_ONLY


def takes_fields(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter of a command that is a dataclass by options, one for each field.

    A field whose annotation has an `Option` (or typer's own) is an option, and keeps its default
    where the option is not given. A dataclass in a field is replaced likewise. Another field that
    has no default is the option of the same name; the others keep their defaults.
    """
    signature = inspect.signature(command, eval_str=True)
    own = [p for p in signature.parameters.values() if not is_dataclass(p.annotation)]
    groups = {p.name: p.annotation for p in signature.parameters.values() if p not in own}

    @functools.wraps(command)
    def run(**values: Any) -> None:
        made = {name: _made(kind, values) for name, kind in groups.items()}
        given = {each.name: values[each.name] for each in own if each.name in values}
        command(**given, **made)

    added = [each for kind in groups.values() for each in _parameters(kind)]
    shown = signature.replace(
        parameters=[*(parameter.replace(kind=_KEYWORD) for parameter in own), *added]
    )
    run.__signature__ = shown  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in shown.parameters.values()}
    return run


def _options(kind: Any) -> Iterator[tuple[Field[Any], Any, Any]]:
    """Yield the fields of a dataclass: each with its type and its option, None without one."""
    hints = get_type_hints(kind, include_extras=True)
    for part in fields(kind):
        hint, option = hints[part.name], None
        if get_origin(hint) is Annotated:
            hint, *notes = get_args(hint)
            found = (n for n in notes if isinstance(n, (Option, OptionInfo, ArgumentInfo)))
            option = next(found, None)
        yield part, hint, option


def _flag(part: Field[Any], option: Option) -> str:
    return option.flag or f"--{part.name.replace('_', '-')}"


def _parameters(kind: Any) -> Iterator[inspect.Parameter]:
    for part, hint, option in _options(kind):
        if option is not None:
            yield _parameter(part, hint, option)
        elif is_dataclass(hint):
            yield from _parameters(hint)


def _parameter(part: Field[Any], hint: Any, option: Any) -> inspect.Parameter:
    default: Any = inspect.Parameter.empty if part.default is MISSING else part.default
    if isinstance(option, Option):
        if option.parse is not None:
            hint, default = str | None, option.default
        elif hint == tuple[str, ...]:
            hint, default = list[str] | None, None
        elif default == "":
            hint, default = str | None, None
        option = typer.Option(_flag(part, option), help=option.help)
    annotation = getitem(Annotated, (hint, option))
    return inspect.Parameter(part.name, _KEYWORD, default=default, annotation=annotation)


def _made(kind: Any, values: Mapping[str, Any]) -> Any:
    made: dict[str, Any] = {}
    for part, hint, option in _options(kind):
        if option is None and is_dataclass(hint) and [*_parameters(hint)]:
            made[part.name] = _made(hint, values)
            continue
        has_default = part.default is not MISSING or part.default_factory is not MISSING
        has_option = option is not None or not has_default
        value = values.get(part.name) if has_option else None
        if value is None:
            continue
        if isinstance(option, Option) and option.parse is not None:
            value = option.parse(value, _flag(part, option))
        made[part.name] = tuple(value) if isinstance(value, list) else value
    return kind(**made)
