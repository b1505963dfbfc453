"""Who may ask, and what browsers may do with the answers: around every request."""

import ipaddress
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shardstream.status.page_routes import login_page
from shardstream.status.session import COOKIE, Sessions

# Probes come without a token and learn nothing but whether the process works.
PROBES: Final = frozenset(("/livez", "/readyz"))
# What the form that takes the token is made of.
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


class Access:
    """Refuses requests without the token; without a token, those under a foreign host name.

    A web site can let its own name point to 127.0.0.1 and would then read what this machine's
    browser may read (DNS rebinding). `is_loopback`: no other name than this machine's is right.
    """

    def __init__(
        self, app: ASGIApp, token: str | None, *, is_loopback: bool, has_page: bool = False
    ) -> None:
        """`token` None: everybody may ask. `has_page`: a browser gets a form for the token."""
        self._app = app
        self._sessions = None if token is None else Sessions(token)
        self._is_loopback = is_loopback
        self._has_page = has_page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""

        async def send_with_headers(message: Message) -> None:
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
        if is_form or _may_ask(self._sessions, request):
            return None
        if self._has_page and path == "/":
            return login_page()
        return PlainTextResponse(
            "this needs the header `Authorization: Bearer TOKEN`\n",
            401,
            {"www-authenticate": "Bearer"},
        )


def _may_ask(sessions: Sessions, request: HTTPConnection) -> bool:
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    is_bearer = scheme.lower() == "bearer" and sessions.is_token(given.strip())
    return is_bearer or sessions.is_valid(request.cookies.get(COOKIE, ""))


def _is_own_name(host: str) -> bool:
    """Whether the request's host is an IP address or this machine: no name that others define."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name == "localhost"
    return True
