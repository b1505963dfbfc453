"""The command line of `shardstream invalidate`."""

from typing import Annotated

import typer

from shardstream.commands.http.options import serves_metrics
from shardstream.commands.options import Config, Every, Json, KeyRangeOption, Keyspace


@serves_metrics
def invalidate(
    keyspace: Keyspace,
    cache: Annotated[str, typer.Option("--cache", help="The cache, as the settings name it")],
    config: Config = None,
    key_range: KeyRangeOption = "-",
    start: Annotated[
        str,
        typer.Option(
            "--from",
            help="stored (default), a number of seconds to go back, or latest, which takes all "
            "values of the cache out of use",
        ),
    ] = "stored",
    watch: Annotated[
        float | None,
        typer.Option(
            "--watch",
            metavar="RATE",
            help="Invalidate nothing; tell what share of the entries agrees with the database 1 s, "
            "1 min and 5 min after changes, for this share of the keys, e.g. 0.001",
        ),
    ] = None,
    every_s: Every = None,
    *,
    as_json: Json = False,
) -> None:
    """Apply the changes of a keyspace to a cache, so that it never returns what it has outlived."""
    from shardstream.commands.invalidate.chosen import InvalidateOptions
    from shardstream.commands.invalidate.run import run_invalidate
    from shardstream.commands.invalidate.watch import run_watch
    from shardstream.settings.model import load_settings

    options = InvalidateOptions(
        keyspace=keyspace,
        cache=cache,
        key_range=key_range,
        start=start,
        as_json=as_json,
        every_s=every_s,
    )
    if watch is None:
        run_invalidate(load_settings(config), options)
    else:
        run_watch(load_settings(config), options, watch)
