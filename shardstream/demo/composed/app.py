"""The command line of `shardstream-shop`, the shop of the Docker Compose stack."""

import logging
import sys
from typing import Annotated

import typer

from event_token.errors import ShardstreamError
from shardstream.commands.app import EXIT_FAILED, exit_status
from shardstream.commands.options import SHARD_NAMES, Config, Json
from shardstream.commands.single_options import CommandLine
from shardstream.commands.stop_signals import stop_on_signals
from shardstream.demo.composed.page_check import check_pages
from shardstream.demo.composed.split import run_split
from shardstream.demo.composed.target import Target
from shardstream.demo.composed.traffic import run_traffic
from shardstream.settings.model import load_settings

app = CommandLine(
    name="shardstream-shop",
    help="The shop of the Docker Compose stack: traffic, and the split of a shard.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.command()
def run(config: Config = None, *, as_json: Json = False) -> None:
    """Write orders and read pages until SIGINT or SIGTERM; the last line counts the changes."""
    stop = stop_on_signals()
    run_traffic(load_settings(config), stop, as_json=as_json)


@app.command(context_settings=SHARD_NAMES)
def target(
    shard: Annotated[str, typer.Argument(help="Target, e.g. 80-c0")], config: Config = None
) -> None:
    """Wait for the split, then run the producer and the applier of one of its targets."""
    stop = stop_on_signals()
    Target(load_settings(config), shard).run(stop)


@app.command()
def split(config: Config = None) -> None:
    """Split a shard while the shop goes on writing."""
    run_split(load_settings(config), typer.echo)


@app.command()
def pages(config: Config = None) -> None:
    """Compare every page in the cache with the databases; exit with 1 if one differs."""
    if not check_pages(load_settings(config), typer.echo):
        raise typer.Exit(EXIT_FAILED)


def main() -> None:
    """Run a command; report a ShardstreamError as one message and an exit status."""
    # The Kafka client logs every transient fault; those that matter are raised as errors.
    logging.getLogger("shardstream.kafka").setLevel(logging.CRITICAL + 1)
    try:
        app()
    except ShardstreamError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(exit_status(error))


if __name__ == "__main__":
    main()
