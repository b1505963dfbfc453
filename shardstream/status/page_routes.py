"""The live page, its files, and the form that takes the token."""

from html import escape
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from shardstream.status.runbook import docs_routes
from shardstream.status.session import COOKIE, SESSION_S_MAX, Sessions

FOLDER: Final = Path(__file__).parent / "page"
# Relative, so that it holds behind a proxy that puts a path in front.
RUNBOOK: Final = "docs/runbook.md"
# The form has one short field.
FORM_BYTES_MAX: Final = 4096


def page_routes(sessions: Sessions | None, runbook_url: str | None = None) -> list[BaseRoute]:
    """Return the routes of the page. `sessions` None: no token is asked for.

    `runbook_url`: a copy of the runbook to link to; None is the one that is served here.
    """
    page = (FOLDER / "index.html").read_text("utf-8")
    page = page.replace("{{runbook}}", escape(runbook_url or RUNBOOK))

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


def login_page(*, is_wrong: bool = False) -> Response:
    """Return the form that asks for the token."""
    form = (FOLDER / "login.html").read_text("utf-8")
    if is_wrong:
        form = form.replace(' role="alert" hidden', ' role="alert"')
    return HTMLResponse(form, 401)


class _Files(StaticFiles):
    """Files that browsers keep but ask for again: an upgrade shows at the next load."""

    def file_response(self, *args: object, **kwargs: object) -> Response:
        answer = super().file_response(*args, **kwargs)  # type: ignore[arg-type]  # as given
        answer.headers["cache-control"] = "no-cache"
        return answer
