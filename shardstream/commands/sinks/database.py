"""`shardstream database`: tables of another database that follow a keyspace, each change once."""

import os
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import typer

from event_token.errors import UsageError
from shardstream.commands.options import (
    CommandLine,
    Config,
    Json,
    KeyRangeOption,
    Keyspace,
    takes_fields,
)
from shardstream.commands.sinks.sink_run import KeyedQueryOptions, RunByDefault, place, run_sink
from shardstream.settings.model import load_settings
from sinks.database.options import DatabaseOptions, FollowerName, NulText
from sinks.rule.policy import TableNames, duration_s, table_name

# The password, where the URL has none: a command line can be read by every user of the machine.
PASSWORD_VARIABLE = "SHARDSTREAM_DATABASE_PASSWORD"  # noqa: S105 - the name of a variable

Url = Annotated[
    str,
    typer.Option(
        "--to",
        help="The database: postgresql://USER@HOST:PORT/DATABASE, mysql:// or mariadb://",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """What to compare; `tables` () are all tables."""

    keyspace: Keyspace
    url: Url
    follower: FollowerName = ""
    tables: TableNames = ()
    nul_text: NulText = "stop"
    key_range: KeyRangeOption = "-"
    as_json: Json = False


def _with_password(url: str) -> str:
    """Return a URL with the password of the environment, unless it has one or says where one is."""
    from sinks.database.urls import has_password, parse_url

    parsed = parse_url(url)
    password = os.environ.get(PASSWORD_VARIABLE)
    if password is not None and not has_password(parsed):
        parsed = parsed.set(password=password)
    return parsed.render_as_string(hide_password=False)


LocalCheckpoint = Annotated[
    str | None,
    typer.Option("--checkpoint", help="Folder or URL of Spark's checkpoint; not with --local"),
]
Local = Annotated[bool, typer.Option("--local", help="Follow in one process, without Spark")]
RefreshOption = Annotated[
    str, typer.Option("--refresh", help="Time between transactions: 200ms, 1s, 10m")
]

app = CommandLine(
    cls=RunByDefault,
    help="Let tables of another database follow, and verify them.",
    no_args_is_help=True,
)


@app.command("run")
@takes_fields
def run_database_command(
    query: KeyedQueryOptions,
    policy: DatabaseOptions,
    url: Url,
    checkpoint: LocalCheckpoint = None,
    config: Config = None,
    refresh: RefreshOption = "1s",
    *,
    local: Local = False,
) -> None:
    """Let the tables of another database follow, every change exactly once.

    Written by Spark, or with --local by this process alone.
    """
    from event_token import KeyRange
    from sinks.database.database import SqlDatabase
    from spark_consumers.database import run_database, run_database_locally

    if local == (checkpoint is not None):
        raise UsageError(
            "name --checkpoint, which Spark writes to, or --local, which needs none: one of them"
        )
    settings = load_settings(config)
    url = _with_password(url)
    interval_s = duration_s(refresh, "--refresh")
    policy = replace(
        policy,
        follower=policy.follower or query.keyspace,
        key_range=KeyRange.parse(query.key_range),
        key_scope=query.key_scope,
    )
    # Before Spark: errors of account, rights and options are reported at once.
    SqlDatabase(url, policy).prepare()
    run = run_locally = None
    if checkpoint is None:
        run_locally = partial(
            run_database_locally, query.keyspace, url, policy=policy, interval_s=interval_s
        )
    else:
        checkpoint = place(checkpoint)
        run = partial(
            run_database,
            keyspace=query.keyspace,
            url=url,
            checkpoint=checkpoint,
            policy=policy,
            interval_s=interval_s,
        )
    places = [] if checkpoint is None else [checkpoint]
    run_sink(
        "database", settings, query, places, run, run_locally=run_locally, tables=policy.tables
    )


@app.command()
@takes_fields
def verify(options: VerifyOptions, config: Config = None) -> None:
    """Compare the tables with the sources row by row; exit with 1 if rows differ."""
    from event_token import KeyRange
    from shardstream.commands.sinks.verify import run_verify
    from sinks.database.verification import VerifyTarget

    target = VerifyTarget(
        _with_password(options.url),
        options.follower or options.keyspace,
        replaces_nul=options.nul_text == "replace",
        key_range=KeyRange.parse(options.key_range),
    )
    tables = [table_name(name) for name in options.tables]
    settings = load_settings(config)
    if not run_verify(settings, options.keyspace, target, tables, as_json=options.as_json):
        raise typer.Exit(1)
