"""The options of commands that serve their metrics: `--http` and who may ask."""

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from event_token.errors import UsageError
from shardstream.commands.http.probe import Probe
from shardstream.commands.http.service_manager import told

if TYPE_CHECKING:
    from prometheus_client.core import Metric

# What a scrape gets; the module of it comes with an extra.
Metrics: TypeAlias = "Iterable[Metric]"


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """Where to serve, and who may ask. `http` None: nowhere."""

    http: str | None
    token_file: Path | None
    no_auth: bool


# Who may ask, of these commands and of `serve`.
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--auth-token-file", help="File with the token that requests must carry as bearer"
    ),
]
NoAuth = Annotated[
    bool, typer.Option("--no-auth", help="Let everybody ask who reaches the address")
]
_OPTIONS = {
    "http": (
        None,
        Annotated[
            str | None,
            typer.Option(
                "--http",
                metavar="HOST:PORT",
                help="Serve /metrics, /livez and /readyz there (default: nowhere)",
            ),
        ],
    ),
    "token_file": (None, TokenFile),
    "no_auth": (False, NoAuth),
}
_given: ContextVar[HttpOptions | None] = ContextVar("http_options", default=None)


def serves_metrics(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options to a command, within which `observed` finds them."""

    @functools.wraps(command)
    def run(
        *arguments: Any,
        http: str | None = None,
        token_file: Path | None = None,
        no_auth: bool = False,
        **options: Any,
    ) -> None:
        if http is None and (token_file is not None or no_auth):
            raise UsageError("--auth-token-file and --no-auth are about --http: add it")
        before = _given.set(HttpOptions(http, token_file, no_auth))
        try:
            command(*arguments, **options)
        finally:
            _given.reset(before)

    signature = inspect.signature(command, eval_str=True)
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (default, kind) in _OPTIONS.items()
    ]
    shown = signature.replace(parameters=[*signature.parameters.values(), *added])
    run.__signature__ = shown  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in shown.parameters.values()}
    return run


@contextmanager
def observed(probe: Probe, families: Callable[[], Metrics]) -> Iterator[None]:
    """Serve the metrics and probes of this process within the block, if `--http` says so.

    And tell systemd what they say, if it has started this process. UsageError where the address is
    another's, or needs a token.
    """
    with told(probe):
        yield from _served(probe, families)


def _served(probe: Probe, families: Callable[[], Metrics]) -> Iterator[None]:
    options = _given.get()
    if options is None or options.http is None:
        yield
        return
    from shardstream.status.address import Address, access_token
    from shardstream.status.process import serving

    address = Address.parse(options.http)
    token = access_token(address, options.token_file, is_open=options.no_auth)
    with serving(address, token, probe, families):
        yield
