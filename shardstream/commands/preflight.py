"""`shardstream preflight`: all problems of servers, grants and topics at once."""

import dataclasses
import json
import sys
from collections.abc import Sequence
from functools import partial

from rich.console import Console
from rich.markup import escape

from databases.errors import ServerLost
from event_token.compiled import IS_COMPILED, PLAIN_WARNING
from event_token.errors import Rebuild, Retry, UsageError
from producers.copy.throttle import lag_problems
from producers.errors import Problem
from producers.preflight.server_checks import preflight
from producers.preflight.twins import twin_problems
from producers.preflight.warnings import server_warnings as warnings_of_servers
from producers.servers.server_list import table_problems
from producers.session.heartbeat_rows import heartbeat_warnings
from producers.settings import ShardProducerSettings
from shardstream.settings.model import Settings
from shardstream.settings.producer_settings import shard_producer_settings, topic_settings
from topics.errors import NoBrokerAnswers
from topics.kafka.provisioning import topic_warnings as log_warnings
from topics.kafka.provisioning import wrong_topics
from topics.names import ShardTopics


def shard_problems(shard: ShardProducerSettings) -> list[Problem]:
    """Return the problems of a shard's servers: settings, versions, grants, reachability."""
    found = [
        problem
        for server in shard.servers
        for problem in preflight(
            server,
            shard.flavor,
            accept_unlogged_cascades=shard.accept_unlogged_cascades,
            accept_loss_at_server_crash=shard.accept_loss_at_server_crash,
            more=partial(table_problems, server_name=server.name, settings=shard),
        )
    ]
    return found + lag_problems(shard)


def topic_problems(settings: Settings, keyspace: str, shards: Sequence[str]) -> list[str]:
    """Return the problems of topics that exist already."""
    topics = [ShardTopics(keyspace, shard) for shard in shards]
    return wrong_topics(settings.kafka_client(), topics, topic_settings(settings))


def topic_warnings(settings: Settings, keyspace: str, shards: Sequence[str]) -> list[str]:
    """Return what an operator should know about the logs, though nothing is refused for it."""
    topics = [ShardTopics(keyspace, shard) for shard in shards]
    return log_warnings(settings.kafka_client(), topics, topic_settings(settings))


def server_warnings(settings: Settings, keyspace: str, shards: Sequence[str]) -> list[str]:
    """Return what an operator should know about the servers, though nothing is refused for it."""
    return [
        warning
        for shard in shards
        for producer in [shard_producer_settings(settings, keyspace, shard)]
        for warning in (*heartbeat_warnings(producer), *warnings_of_servers(producer))
    ]


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
    """Check the shards of one keyspace or of all, print every problem; UsageError if any."""
    chosen = [keyspace] if keyspace is not None else sorted(settings.keyspaces)
    if not chosen:
        raise UsageError("the settings name no keyspace")
    servers: list[tuple[str, Problem]] = []
    topics: list[str] = []
    warnings: list[str] = [] if IS_COMPILED else [PLAIN_WARNING]
    for name in chosen:
        shards = list(settings.keyspace(name).shards)
        for shard in shards:
            found = shard_problems(shard_producer_settings(settings, name, shard))
            servers += [(f"{name}/{shard}", problem) for problem in found]
        topics += topic_problems(settings, name, shards)
        warnings += topic_warnings(settings, name, shards)
        warnings += server_warnings(settings, name, shards)
    servers += twin_problems(
        [
            shard_producer_settings(settings, name, shard)
            for name in chosen
            for shard in settings.keyspace(name).shards
        ]
    )
    print_warnings(warnings)
    if as_json:
        _print_json(servers, topics)
    else:
        print_problems(servers, topics, sum(len(settings.keyspace(k).shards) for k in chosen))
    count = len(servers) + len(topics)
    if count:
        raise UsageError(f"{count} problem(s) found; each is listed with its fix")


def print_warnings(warnings: Sequence[str]) -> None:
    """Print one line each to standard error."""
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    for text in warnings:
        console.print(f"warning: {text}", markup=False)


def _print_json(servers: list[tuple[str, Problem]], topics: list[str]) -> None:
    for shard, problem in servers:
        line = {"shard": shard, **dataclasses.asdict(problem)}
        sys.stdout.write(json.dumps(line) + "\n")
    for text in topics:
        sys.stdout.write(json.dumps({"shard": None, "what": text}) + "\n")
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
