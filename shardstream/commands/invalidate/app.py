"""The command line of `shardstream invalidate`."""

from typing import Annotated

import typer

from shardstream.commands.options import Config, Every, Json, KeyRangeOption, Keyspace


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
    every_s: Every = None,
    *,
    as_json: Json = False,
) -> None:
    """Apply the changes of a keyspace to a cache, so that it never returns what it has outlived."""
    from shardstream.commands.invalidate.run import InvalidateOptions, run_invalidate
    from shardstream.settings.model import load_settings

    options = InvalidateOptions(
        keyspace=keyspace,
        cache=cache,
        key_range=key_range,
        start=start,
        as_json=as_json,
        every_s=every_s,
    )
    run_invalidate(load_settings(config), options)
