"""`shardstream serve`: the state of all keyspaces over HTTP."""

import resource
from contextlib import nullcontext
from functools import partial
from itertools import chain
from typing import Annotated, Final

import typer

from event_token.errors import UsageError
from shardstream.commands.options import (
    MAX_BEHIND_S,
    CommandLine,
    Config,
    Json,
    MaxBehind,
    NoAuth,
    TokenFile,
)
from shardstream.commands.status_lines import print_line
from shardstream.settings.model import load_settings
from shardstream.status.address import DEFAULT_ADDRESS, Address, access_token
from shardstream.status.refresh import ANSWER_S, FleetRefresh, open_fleet
from shardstream.stop_signals import stop_on_signals

# Where the kernel gives a signal to another thread, Python's handler runs once this one wakes up.
_SIGNAL_S: Final = 0.5

# The connections of STREAMS_MAX clients, and those of readers to a large cluster.
FILES_MAX: Final = 16_384

app = CommandLine()


@app.command()
def serve(
    config: Config = None,
    http: Annotated[
        str, typer.Option("--http", metavar="HOST:PORT", help="Where to listen")
    ] = DEFAULT_ADDRESS,
    token_file: TokenFile = None,
    max_behind_s: MaxBehind = MAX_BEHIND_S,
    runbook_url: Annotated[
        str | None,
        typer.Option(
            "--runbook-url",
            metavar="URL",
            help="URL of your copy of the runbook (default: the one served here)",
        ),
    ] = None,
    *,
    streams: Annotated[
        bool, typer.Option("--streams", help="Also serve the streams of the keyspaces, under /v1")
    ] = False,
    no_auth: NoAuth = False,
    as_json: Json = False,
) -> None:
    """Serve the state of all keyspaces over HTTP, and their streams, until it is stopped."""
    # These come with an extra, which may be missing.
    from shardstream.status.application import application
    from shardstream.status.metrics.families import scrape
    from shardstream.status.metrics.fleet import fleet_families
    from shardstream.status.server import HttpServer

    if runbook_url is not None and not runbook_url.startswith(("https://", "http://")):
        raise UsageError(f"--runbook-url {runbook_url}: a URL begins with https:// or http://")
    address = Address.parse(http)
    token = access_token(address, token_file, is_open=no_auth)
    settings = load_settings(config)
    keyspaces = settings.keyspaces_named(None)
    settings.kafka_client()  # wrong settings end the command before anything listens
    service, streams_max = None, 0
    if streams:
        from shardstream.streams.service import STREAMS_MAX, StreamService

        service, streams_max = StreamService(settings), STREAMS_MAX
        allow_files()
    stop = stop_on_signals()
    with address.listen() as listening:
        url = f"http://{address.bound(listening)}/"
        fleet = FleetRefresh(partial(open_fleet, settings, ANSWER_S), keyspaces)
        pages = application(
            fleet,
            token=token,
            is_loopback=address.is_loopback,
            max_behind_s=max_behind_s,
            runbook_url=runbook_url,
            metrics=scrape(
                lambda: chain(
                    fleet_families(fleet.state()), () if service is None else service.families()
                )
            ),
            more=[] if service is None else service.routes(),
        )
        # Open streams end with `fleet` and `service`, so these end first.
        with HttpServer(pages, listening, streams_max), fleet, service or nullcontext():
            fields = {"url": url, "keyspaces": keyspaces, "needs_token": token is not None}
            print_line("serve", f"{url} for {', '.join(keyspaces)}", fields, as_json=as_json)
            while not stop.wait(_SIGNAL_S):
                pass


def allow_files() -> None:
    """Raise the limit of open files: a stream is one, and many systems begin at 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, FILES_MAX)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
