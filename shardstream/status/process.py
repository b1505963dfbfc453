"""What a process with `--http` serves: its metrics and probes."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from shardstream.status.access import Access
from shardstream.status.address import Address
from shardstream.status.metrics.families import Families, scrape
from shardstream.status.server import HttpServer


class Probes(Protocol):
    """What tells whether a process works: each answers with a text as well."""

    def live(self) -> tuple[bool, str]:
        """Whether a restart would not help."""
        ...

    def ready(self) -> tuple[bool, str]:
        """Whether it does its work."""
        ...


@contextmanager
def serving(
    address: Address, token: str | None, probes: Probes, families: Families
) -> Iterator[None]:
    """Serve `/metrics`, `/livez` and `/readyz` within the block. UsageError if it cannot listen."""
    with (
        address.listen() as listening,
        HttpServer(
            process_application(probes, families, token, is_loopback=address.is_loopback), listening
        ),
    ):
        yield


def process_application(
    probes: Probes, families: Families, token: str | None, *, is_loopback: bool
) -> Starlette:
    """Return the application. `token`: what scrapes must carry; probes come without."""
    return Starlette(
        routes=[
            metrics_route(scrape(families)),
            Route("/livez", _answering(probes.live)),
            Route("/readyz", _answering(probes.ready)),
        ],
        middleware=[Middleware(Access, token=token, is_loopback=is_loopback)],
    )


def _answering(ask: Callable[[], tuple[bool, str]]) -> Callable[[Request], Response]:
    def answer(_request: Request) -> Response:
        is_well, text = ask()
        return PlainTextResponse(f"{text}\n", 200 if is_well else 503)

    return answer


def metrics_route(scraped: Callable[[], bytes]) -> Route:
    """Return the route `/metrics`; `scraped` returns what it answers, in Prometheus' format."""

    async def answer(_request: Request) -> Response:
        return Response(await asyncio.to_thread(scraped), media_type="text/plain; version=0.0.4")

    return Route("/metrics", answer)
