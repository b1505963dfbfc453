"""Who may send requests, and what browsers may do with the answers.

Requests carry the token, or a cookie in its place, because browsers cannot send a bearer token.
"""

import hmac
import ipaddress
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

FOLDER: Final = Path(__file__).parent / "page"
COOKIE: Final = "shardstream_session"
# A screen on the wall shows the page for weeks; a stolen cookie should not work for years.
SESSION_S_MAX: Final = 30 * 86_400


# The token as it is now; None while nobody may come in.
ReadToken = Callable[[], str | None]


class Sessions:
    """Checks tokens and cookies. Nothing is stored: with a new token no old cookie is valid."""

    def __init__(self, token: ReadToken) -> None:
        """`token`: returns the secret that requests must carry."""
        self.token = token

    def is_token(self, given: str) -> bool:
        """Whether this is the token, compared in constant time."""
        token = self.token()
        return token is not None and hmac.compare_digest(given.encode(), token.encode())

    def begin(self) -> str:
        """Return the value of a new cookie."""
        until = str(int(time.time()) + SESSION_S_MAX)
        return f"{until}.{self._signature(until)}"

    def is_valid(self, cookie: str) -> bool:
        """Whether the cookie was made for this token and is not too old."""
        until, _, signature = cookie.partition(".")
        expected = self._signature(until)
        is_signed = hmac.compare_digest(signature.encode(), expected.encode())
        return bool(expected) and is_signed and int(until) > time.time()

    def _signature(self, until: str) -> str:
        """Return "" while there is no token."""
        token = self.token()
        if token is None:
            return ""
        return hmac.digest(token.encode(), f"session until {until}".encode(), "sha256").hex()


# In the state of a request, the function that cuts its connection off.
ABORT: Final = "abort"
# Probes carry no token, and their answers say only whether the process works.
PROBES: Final = frozenset(("/livez", "/readyz"))
# The paths of the form that takes the token.
FORM: Final = ("/session", "/static/")

# The page loads what this process serves, runs no inline script, and is shown in no frame.
_HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


def page_text(name: str) -> str:
    """Return the text of a page, with the head that all pages share."""
    head = (FOLDER / "head.html").read_text("utf-8")
    return (FOLDER / name).read_text("utf-8").replace("{{head}}", head)


def login_page(*, is_wrong: bool = False) -> Response:
    """Return the form that asks for the token."""
    form = page_text("login.html")
    if is_wrong:
        form = form.replace(' role="alert" hidden', ' role="alert"')
    return HTMLResponse(form, 401)


class Access:
    """Refuses requests without the token; without a token, those under a foreign host name.

    A web site can let its own name point to 127.0.0.1 and would then read what this machine's
    browser may read (DNS rebinding). `is_loopback`: only this machine's own names are accepted.
    """

    def __init__(
        self, app: ASGIApp, token: ReadToken | None, *, is_loopback: bool, has_page: bool = False
    ) -> None:
        """`token` None: no authentication. `has_page`: a browser gets a form for the token."""
        self._app = app
        self._sessions = None if token is None else Sessions(token)
        self._is_loopback = is_loopback
        self._has_page = has_page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or pass it on. An answer under way ends with the token it came by."""
        token = None if self._sessions is None else self._sessions.token()

        async def send_with_headers(message: Message) -> None:
            if self._sessions is not None and self._sessions.token() != token:
                scope["state"][ABORT]()
                return
            if message["type"] == "http.response.start":
                found = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    found[name] = value
                found.setdefault("cache-control", "no-store")
            await send(message)

        answer = self._refusal(HTTPConnection(scope)) or self._app
        await answer(scope, receive, send_with_headers)

    def _refusal(self, request: HTTPConnection) -> Response | None:
        path = request.scope["path"]
        if path in PROBES:
            return None
        if self._sessions is None:
            if self._is_loopback and not _is_own_name(request.headers.get("host", "").lower()):
                return PlainTextResponse("use 127.0.0.1 or localhost as the host\n", 421)
            return None
        is_form = self._has_page and path.startswith(FORM)
        if is_form or _is_authorised(self._sessions, request):
            return None
        if self._has_page and path == "/":
            return login_page()
        return PlainTextResponse(
            "this needs the header `Authorization: Bearer TOKEN`\n",
            401,
            {"www-authenticate": "Bearer"},
        )


def _is_authorised(sessions: Sessions, request: HTTPConnection) -> bool:
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    is_bearer = scheme.lower() == "bearer" and sessions.is_token(given.strip())
    return is_bearer or sessions.is_valid(request.cookies.get(COOKIE, ""))


def _is_own_name(host: str) -> bool:
    """Whether the request's host is an IP address or localhost, which no web site can define."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name == "localhost"
    return True
