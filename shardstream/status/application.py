"""The application of `shardstream serve`: page, state, events, probes and the runbook."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import asdict
from html import escape
from itertools import pairwise
from typing import Final
from urllib.parse import parse_qs

from markdown_it import MarkdownIt
from markdown_it.token import Token
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from shardstream.status.access import (
    COOKIE,
    FOLDER,
    SESSION_S_MAX,
    Access,
    ReadToken,
    Sessions,
    login_page,
    page_text,
)
from shardstream.status.keyspace_report import copy_json, headline, keyspace_json, readable
from shardstream.status.refresh import FleetRefresh, FleetState, KeyspaceState, history_json
from shardstream.status.runbook import DOCS, RUNBOOK, runbook_place
from shardstream.status.server import metrics_route
from topics.fleet.view import KeyspaceView

_COMMENT: Final = re.compile(r"<!--.*?-->", re.DOTALL)


def docs_routes() -> list[Route]:
    """Return a route per page, under the names that alerts and messages use."""
    template = page_text("docs.html")
    texts = {path.name: path.read_text("utf-8") for path in sorted(DOCS.glob("*.md"))}

    async def show(request: Request) -> Response:
        name = str(request.path_params["name"])
        if name not in texts:
            return Response(status_code=404)
        return HTMLResponse(template.replace("{{page}}", rendered(texts[name], texts)))

    return [Route("/docs/{name}", show)]


def rendered(text: str, pages: Collection[str]) -> str:
    """Return a page as HTML, with an anchor per heading; links to pages other than these are text.

    What is HTML in the page is shown as text.
    """
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = markdown.parse(_COMMENT.sub("", text))
    for token, following in pairwise(tokens):
        if token.type == "heading_open":
            token.attrSet("id", anchor(following.content))
        _unlink(token.children or (), pages)
    return str(markdown.renderer.render(tokens, markdown.options, {}))


def anchor(heading: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _unlink(tokens: Sequence[Token], pages: Collection[str]) -> None:
    """Leave the text alone of links that lead nowhere."""
    is_dead = False
    for token in tokens:
        if token.type == "link_open":
            target = str(token.attrGet("href")).partition("#")[0]
            is_dead = bool(target) and target not in pages and "://" not in target
        if is_dead and token.type in {"link_open", "link_close"}:
            is_dead = token.type == "link_open"
            token.type, token.nesting, token.content = "text", 0, ""


# The form has one short field.
FORM_BYTES_MAX: Final = 4096


def page_routes(sessions: Sessions | None, runbook_url: str | None = None) -> list[BaseRoute]:
    """Return the routes of the page. `sessions` None: no token is asked for.

    `runbook_url`: a copy of the runbook to link to; None is the one that is served here.
    """
    page = page_text("index.html").replace("{{runbook}}", escape(runbook_url or RUNBOOK))

    async def show(_request: Request) -> Response:
        return HTMLResponse(page)

    static = Mount("/static", _Files(directory=FOLDER))
    routes: list[BaseRoute] = [Route("/", show), static, *docs_routes()]
    if sessions is None:
        return routes
    found = sessions

    async def begin(request: Request) -> Response:
        given = parse_qs((await request.body()).decode("latin-1")).get("token", [""])[0]
        if not found.is_token(given):
            return login_page(is_wrong=True)
        answer = RedirectResponse(".", 303)
        answer.set_cookie(
            COOKIE,
            found.begin(),
            max_age=SESSION_S_MAX,
            httponly=True,
            samesite="strict",
            # A proxy that ends TLS says so; over plain HTTP browsers would not send the cookie.
            secure=request.headers.get("x-forwarded-proto") == "https",
        )
        return answer

    return [*routes, Route("/session", begin, methods=["POST"])]


class _Files(StaticFiles):
    """Files that browsers keep but ask for again: an upgrade shows at the next load."""

    def file_response(self, *args: object, **kwargs: object) -> Response:
        answer = super().file_response(*args, **kwargs)  # type: ignore[arg-type]  # as given
        answer.headers["cache-control"] = "no-cache"
        return answer


# Fields that hold row values: the key of the last row copied, and an operator's conditions.
_ROW_VALUES = frozenset(("last_key", "rule", "where"))


def state_json(state: FleetState, max_behind_s: float) -> str:
    """Return the state as one line of JSON: `number`, `at_us` and `keyspaces`.

    Each keyspace has the fields of `shardstream status --json`, without row values, and
    `headline`, `readable`, `is_held_back`, `stops`, `error`, `age_ms` and `seen_us`. A keyspace
    that was never read has only these and its name, and no `readable`.
    """
    now_s = time.monotonic() if state.is_late else state.turned_s
    keyspaces = [_keyspace_json(keyspace, now_s, max_behind_s) for keyspace in state.keyspaces]
    return json.dumps({"number": state.number, "at_us": state.at_us, "keyspaces": keyspaces})


def _keyspace_json(keyspace: KeyspaceState, now_s: float, max_behind_s: float) -> dict[str, object]:
    view, error = keyspace.view, keyspace.error
    age_ms = None if keyspace.seen_s is None else round((now_s - keyspace.seen_s) * 1_000)
    fields: dict[str, object] = {
        "keyspace": keyspace.keyspace,
        "error": error,
        "age_ms": age_ms,
        "seen_us": keyspace.samples[-1].at_us if keyspace.samples else None,
        "stops": [
            {**asdict(stop), "runbook": runbook_place(stop.error)} for stop in keyspace.stops
        ],
    }
    if view is None:
        said = f"cannot be read: {error}" if error else "is being read"
        return {**fields, "headline": f"{keyspace.keyspace}: {said}", "is_held_back": bool(error)}
    said = headline(view, max_behind_s)
    fields["readable"] = readable(view)
    if error:
        said = f"{keyspace.keyspace}: not read for {(age_ms or 0) / 1_000:.0f} s: {error}"
    is_held_back = bool(error) or view.is_held_back(round(max_behind_s * 1_000))
    return {**_view_json(view), **fields, "headline": said, "is_held_back": is_held_back}


def _view_json(view: KeyspaceView) -> dict[str, object]:
    found = keyspace_json(view)
    copies = [
        {name: value for name, value in copy_json(shard, copy).items() if name not in _ROW_VALUES}
        for shard, copy in view.copies
    ]
    return {**found, "copies": copies}


# How late an event stream may notice a new state, or the end of the process.
EVENT_POLL_S: Final = 0.2
# A silent stream looks like a broken connection, to proxies as well.
_SILENCE_POLLS: Final = 5
# How long browsers wait before they connect again.
RETRY_MS: Final = 2_000


def application(
    fleet: FleetRefresh,
    *,
    token: ReadToken | None,
    is_loopback: bool,
    max_behind_s: float,
    metrics: Callable[[], bytes] | None = None,
    runbook_url: str | None = None,
    more: Sequence[BaseRoute] = (),
) -> Starlette:
    """Return the application; it answers every request from what `fleet` saw last.

    `token`: the secret that requests must carry. `is_loopback`: only this machine reaches it.
    `max_behind_s`: how far behind readers may be before the headline names the shards that hold
    them back. `metrics`: returns the answer of `/metrics`, in Prometheus' text format.
    `runbook_url`: as of `page_routes`. `more`: routes beside those of the page.
    """
    served = _Served(fleet, max_behind_s)
    routes: list[BaseRoute] = [
        *page_routes(None if token is None else Sessions(token), runbook_url),
        Route("/status.json", served.status),
        Route("/history.json", served.history),
        Route("/events", served.events),
        Route("/livez", served.livez),
        Route("/readyz", served.readyz),
        *more,
    ]
    if metrics is not None:
        routes.append(metrics_route(metrics))
    return Starlette(
        routes=routes,
        middleware=[Middleware(Access, token=token, is_loopback=is_loopback, has_page=True)],
        max_body_size=FORM_BYTES_MAX,
    )


class _Served:
    """The handlers of the routes."""

    def __init__(self, fleet: FleetRefresh, max_behind_s: float) -> None:
        self._fleet = fleet
        self._max_behind_s = max_behind_s
        self._rendered = (-1, "")

    async def status(self, _request: Request) -> Response:
        """The state as one JSON object."""
        return Response(self._json(), media_type="application/json")

    async def history(self, _request: Request) -> Response:
        """The last two minutes, for a page that was just opened."""
        keyspaces = self._fleet.state().keyspaces
        found = history_json({each.keyspace: each.samples for each in keyspaces})
        return Response(found, media_type="application/json")

    async def events(self, _request: Request) -> Response:
        """The state whenever it has changed, as server-sent events."""
        return StreamingResponse(
            self._stream(),
            media_type="text/event-stream",
            headers={"x-accel-buffering": "no"},
        )

    async def livez(self, _request: Request) -> Response:
        """200 while the keyspaces are read, in any state; otherwise a restart may help."""
        state = self._fleet.state()
        if state.is_stale:
            return PlainTextResponse(f"no refresh has ended for {state.age_s:.0f} s\n", 503)
        return PlainTextResponse("ok\n")

    async def readyz(self, _request: Request) -> Response:
        """200 after the first refresh. The page shows an outage of Kafka, so that is no reason."""
        if self._fleet.state().number == 0:
            return PlainTextResponse("the first refresh has not ended\n", 503)
        return PlainTextResponse("ok\n")

    def _json(self) -> str:
        """The state as JSON, rendered once per refresh."""
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
