"""`shardstream serve`: the state of all keyspaces over HTTP."""

from typing import Annotated

import typer

from event_token.errors import UsageError
from shardstream.commands.http.options import NoAuth, TokenFile
from shardstream.commands.options import MAX_BEHIND_S, Config, Json, MaxBehind
from shardstream.status.address import DEFAULT_ADDRESS


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
            "--runbook-url", metavar="URL", help="Your copy of the runbook (default: one is served)"
        ),
    ] = None,
    *,
    no_auth: NoAuth = False,
    as_json: Json = False,
) -> None:
    """Serve the state of all keyspaces over HTTP, until it is stopped."""
    from shardstream.settings.model import load_settings
    from shardstream.status.address import Address, access_token
    from shardstream.status.serving import run_server

    _check_url(runbook_url)
    address = Address.parse(http)
    token = access_token(address, token_file, is_open=no_auth)
    run_server(
        load_settings(config),
        address,
        token=token,
        max_behind_s=max_behind_s,
        runbook_url=runbook_url,
        as_json=as_json,
    )


def _check_url(url: str | None) -> None:
    """UsageError unless a browser opens it as a page."""
    if url is not None and not url.startswith(("https://", "http://")):
        raise UsageError(f"--runbook-url {url}: a URL begins with https:// or http://")
