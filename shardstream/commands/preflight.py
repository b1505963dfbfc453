"""`shardstream preflight`: all problems of servers, grants and topics at once."""

import dataclasses
import json
from typing import Annotated

import typer
from rich.markup import escape

from databases.errors import ServerLost
from event_token.compiled import IS_COMPILED, PLAIN_WARNING
from event_token.errors import UsageError
from producers.errors import Problem
from shardstream.commands.options import CommandLine, Config, Json
from shardstream.commands.status_lines import terminal
from shardstream.preflight import PreflightReport, collect_findings
from shardstream.settings.model import load_settings

app = CommandLine()


@app.command()
def preflight(
    keyspace: Annotated[str | None, typer.Argument(help="Keyspace (default: all)")] = None,
    config: Config = None,
    *,
    as_json: Json = False,
) -> None:
    """Check servers, grants and topics; report every problem at once, each with its fix."""
    settings = load_settings(config)
    found = collect_findings(settings, settings.keyspaces_named(keyspace))
    if not IS_COMPILED:
        found.warnings.insert(0, PLAIN_WARNING)
    for text in found.warnings:
        terminal(stderr=True).print(f"warning: {text}", markup=False)
    if as_json:
        _print_json(found)
    else:
        print_problems(found.servers, found.kafka, len(found.checked))
    if found.count and found.may_pass:
        raise ServerLost(f"{found.count} problem(s) found: servers or brokers that do not answer")
    if found.count:
        raise UsageError(f"{found.count} problem(s) found; each is listed with its fix")


def _print_json(found: PreflightReport) -> None:
    """Print a line per problem, and the result."""
    for shard, problem in found.servers:
        typer.echo(json.dumps({"shard": shard, **dataclasses.asdict(problem)}))
    for text in found.kafka:
        typer.echo(json.dumps({"shard": None, "what": text}))
    result = {"checked": found.checked, "problems": found.count, "warnings": found.warnings}
    typer.echo(json.dumps(result))


def print_problems(servers: list[tuple[str, Problem]], topics: list[str], shards: int) -> None:
    """Print the problems for people, or that there are none in this number of shards."""
    console = terminal()
    for shard, problem in servers:
        # The texts quote servers and settings: brackets in them are no markup.
        where, what = escape(problem.where), escape(problem.what)
        console.print(f"[bold]{escape(shard)}[/] {where}: [red]{what}[/]")
        console.print(f"    {problem.fix}", markup=False)
    for text in topics:
        console.print(text, markup=False)
    if not servers and not topics:
        console.print(f"[green]{shards} shard(s) checked: no problems[/]")
