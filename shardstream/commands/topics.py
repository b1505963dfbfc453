"""`shardstream topics`: which topics a keyspace needs, and a shard's that start over."""

from typing import Annotated

import typer

from shardstream.commands.audit import recorded
from shardstream.commands.options import SHARD_NAMES, CommandLine, Config, Keyspace, Shard
from shardstream.settings.model import load_settings
from shardstream.settings.producer_settings import topic_settings
from shardstream.shard_removal import plan_reset, run_reset
from topics.kafka.topic_plan import PlanFormat, plan_text, planned_topics

app = CommandLine(no_args_is_help=True)


@app.callback()
def topics() -> None:
    """Print the topics that a keyspace needs, or start the log of a shard over."""


@app.command()
def plan(
    keyspace: Keyspace,
    config: Config = None,
    form: Annotated[
        PlanFormat, typer.Option("--format", help="Form that another tool reads")
    ] = PlanFormat.TEXT,
) -> None:
    """Print every topic of a keyspace with its settings, for those who create topics themselves.

    Nothing is asked of Kafka. A setting that is optional may be left out where it cannot be set.
    """
    settings = load_settings(config)
    shards = sorted(settings.keyspace(keyspace).all_shards)
    chosen = topic_settings(settings)
    typer.echo(plan_text(planned_topics(keyspace, shards, chosen), chosen, form))


@app.command(context_settings=SHARD_NAMES)
def reset(
    keyspace: Keyspace,
    shard: Shard,
    reason: Annotated[str, typer.Option("--reason", help="Reason, printed with the result")],
    config: Config = None,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Delete without asking")] = False,
) -> None:
    """Delete the log, progress and copies of a shard; `produce --from` then starts a new log."""
    settings = load_settings(config)
    planned = plan_reset(settings, keyspace, shard)
    typer.echo(planned.loses)
    if not yes:
        typer.confirm("Delete them?", abort=True)
    with recorded(settings, keyspace, "topics reset", shard, reason):
        typer.echo(run_reset(planned, reason))
