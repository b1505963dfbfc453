"""`shardstream preflight`: all problems of servers, grants and topics at once."""

import dataclasses
import json
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from databases.errors import ServerLost
from event_token.compiled import IS_COMPILED, PLAIN_WARNING
from event_token.errors import Rebuild, Retry, UsageError
from producers.errors import Problem
from producers.settings import ShardProducerSettings
from shardstream.commands.findings import (
    Findings,
    collect_findings,
    shard_problems,
    topic_problems,
)
from shardstream.settings.model import Settings
from topics.errors import NoBrokerAnswers


def refuse_problems(settings: Settings, shard: ShardProducerSettings) -> None:
    """Raise one UsageError with all problems of a shard's servers and topics.

    A server that does not answer is tolerated as long as another one of the shard can be read.
    Raises ServerLost if all that is wrong is that no server or broker answers, which may pass.
    """
    problems = shard_problems(shard)
    unsound = {problem.where for problem in problems}
    if any(server.read and server.name not in unsound for server in shard.servers):
        problems = [problem for problem in problems if not problem.passing]
    found = [str(problem) for problem in problems]
    may_pass = all(problem.passing for problem in problems)
    try:
        wrong = topic_problems(settings, shard.keyspace, [shard.shard])
        may_pass = may_pass and not wrong
        found += wrong
    except (NoBrokerAnswers, Retry, Rebuild) as fault:
        found.append(str(fault))
    if found and may_pass:
        raise ServerLost(f"{shard.keyspace}/{shard.shard}: {'; '.join(found)}")
    if found:
        lines = "\n".join(f"  {problem}" for problem in found)
        raise UsageError(
            f"{shard.keyspace}/{shard.shard}: {len(found)} problem(s); nothing was started\n{lines}"
        )


def run_preflight(settings: Settings, keyspace: str | None, *, as_json: bool) -> None:
    """Check the shards of one keyspace or of all, and print every problem.

    UsageError if there is any; ServerLost if all of them are servers or brokers that do not answer,
    which may pass.
    """
    chosen = [keyspace] if keyspace is not None else sorted(settings.keyspaces)
    if not chosen:
        raise UsageError("the settings name no keyspace")
    found = collect_findings(settings, chosen)
    if not IS_COMPILED:
        found.warnings.insert(0, PLAIN_WARNING)
    print_warnings(found.warnings)
    if as_json:
        _print_json(found)
    else:
        print_problems(found.servers, found.kafka, len(found.checked))
    if found.count and found.may_pass:
        raise ServerLost(f"{found.count} problem(s) found: servers or brokers that do not answer")
    if found.count:
        raise UsageError(f"{found.count} problem(s) found; each is listed with its fix")


def print_warnings(warnings: Sequence[str]) -> None:
    """Print one line each to standard error."""
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    for text in warnings:
        console.print(f"warning: {text}", markup=False)


def _print_json(found: Findings) -> None:
    """Print a line per problem, and the result."""
    lines: list[dict[str, object]] = [
        {"shard": shard, **dataclasses.asdict(problem)} for shard, problem in found.servers
    ]
    lines += [{"shard": None, "what": text} for text in found.kafka]
    lines.append({"checked": found.checked, "problems": found.count, "warnings": found.warnings})
    for line in lines:
        sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def print_problems(servers: list[tuple[str, Problem]], topics: list[str], shards: int) -> None:
    """Print the problems for people, or that there are none in this number of shards."""
    console = Console(soft_wrap=True, highlight=False)
    for shard, problem in servers:
        # The texts quote servers and settings: brackets in them are no markup.
        where, what = escape(problem.where), escape(problem.what)
        console.print(f"[bold]{escape(shard)}[/] {where}: [red]{what}[/]")
        console.print(f"    {problem.fix}", markup=False)
    for text in topics:
        console.print(text, markup=False)
    if not servers and not topics:
        console.print(f"[green]{shards} shard(s) checked: no problems[/]")
