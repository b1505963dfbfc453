"""The application of `shardstream serve`: the page, the state, its events, and probes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from shardstream.status.access import Access
from shardstream.status.history import history_json
from shardstream.status.page_routes import FORM_BYTES_MAX, page_routes
from shardstream.status.process import metrics_route
from shardstream.status.refresh import FleetRefresh
from shardstream.status.session import Sessions
from shardstream.status.state_json import state_json

# How late an event stream may notice a new state, or the end of the process.
EVENT_POLL_S: Final = 0.2
# A stream of which nothing is heard looks like a broken connection, to proxies as well.
_SILENCE_POLLS: Final = 5
# How long browsers wait before they connect again.
RETRY_MS: Final = 2_000


def application(
    fleet: FleetRefresh,
    *,
    token: str | None,
    is_loopback: bool,
    max_behind_s: float,
    metrics: Callable[[], bytes] | None = None,
    runbook_url: str | None = None,
) -> Starlette:
    """Return the application; it answers every request from what `fleet` saw last.

    `token`: what requests must carry. `is_loopback`: only this machine reaches it. `max_behind_s`:
    how far behind readers may be before the headline says who holds them back. `metrics`: returns
    what `/metrics` answers, in Prometheus' text format. `runbook_url`: as of `page_routes`.
    """
    served = _Served(fleet, max_behind_s)
    routes: list[BaseRoute] = [
        *page_routes(None if token is None else Sessions(token), runbook_url),
        Route("/status.json", served.status),
        Route("/history.json", served.history),
        Route("/events", served.events),
        Route("/livez", served.livez),
        Route("/readyz", served.readyz),
    ]
    if metrics is not None:
        routes.append(metrics_route(metrics))
    return Starlette(
        routes=routes,
        middleware=[Middleware(Access, token=token, is_loopback=is_loopback, has_page=True)],
        max_body_size=FORM_BYTES_MAX,
    )


class _Served:
    """What the routes answer."""

    def __init__(self, fleet: FleetRefresh, max_behind_s: float) -> None:
        self._fleet = fleet
        self._max_behind_s = max_behind_s
        self._rendered = (-1, "")

    async def status(self, _request: Request) -> Response:
        """The state as one JSON object."""
        return Response(self._json(), media_type="application/json")

    async def history(self, _request: Request) -> Response:
        """The last two minutes, for a page that was just opened."""
        looks = self._fleet.state().looks
        found = history_json({look.keyspace: look.samples for look in looks})
        return Response(found, media_type="application/json")

    async def events(self, _request: Request) -> Response:
        """The state whenever it has changed, as server-sent events."""
        return StreamingResponse(
            self._stream(),
            media_type="text/event-stream",
            headers={"x-accel-buffering": "no"},
        )

    async def livez(self, _request: Request) -> Response:
        """200 while the keyspaces are looked at, whatever is seen; else a restart may help."""
        state = self._fleet.state()
        if state.is_stale:
            return PlainTextResponse(f"no look has ended for {state.age_s:.0f} s\n", 503)
        return PlainTextResponse("ok\n")

    async def readyz(self, _request: Request) -> Response:
        """200 after the first look. Kafka's outages are for the page to show, not to hide it."""
        if self._fleet.state().number == 0:
            return PlainTextResponse("the first look has not ended\n", 503)
        return PlainTextResponse("ok\n")

    def _json(self) -> str:
        """The state as JSON, made once per turn for all who ask."""
        state = self._fleet.state()
        if state.is_late:
            return state_json(state, self._max_behind_s)
        if self._rendered[0] != state.number:
            self._rendered = (state.number, state_json(state, self._max_behind_s))
        return self._rendered[1]

    async def _stream(self) -> AsyncIterator[str]:
        yield f"retry: {RETRY_MS}\n\n"
        sent, polls = (-1, False), 0
        while not self._fleet.is_over:
            state = self._fleet.state()
            if (state.number, state.is_late) != sent:
                yield f"id: {state.number}\ndata: {self._json()}\n\n"
                sent, polls = (state.number, state.is_late), 0
            elif polls % _SILENCE_POLLS == 0:
                yield ": nothing new\n\n"
            polls += 1
            await asyncio.sleep(EVENT_POLL_S)
