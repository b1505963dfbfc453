"""The token, and cookies that stand for it: browsers cannot send a bearer token by themselves."""

import hmac
import time
from typing import Final

COOKIE: Final = "shardstream_session"
# A screen on the wall shows the page for weeks; a stolen cookie should not work for years.
SESSION_S_MAX: Final = 30 * 86_400


class Sessions:
    """Checks tokens and cookies. Nothing is stored: a new token makes all old cookies worthless."""

    def __init__(self, token: str) -> None:
        """`token`: what requests must know."""
        self._token = token.encode()

    def is_token(self, given: str) -> bool:
        """Whether this is the token; the time it takes does not tell how much of it is right."""
        return hmac.compare_digest(given.encode(), self._token)

    def begin(self) -> str:
        """Return the value of a new cookie."""
        until = str(int(time.time()) + SESSION_S_MAX)
        return f"{until}.{self._signature(until)}"

    def is_valid(self, cookie: str) -> bool:
        """Whether the cookie was made for this token and is not too old."""
        until, _, signature = cookie.partition(".")
        is_signed = hmac.compare_digest(signature.encode(), self._signature(until).encode())
        return is_signed and int(until) > time.time()

    def _signature(self, until: str) -> str:
        return hmac.digest(self._token, f"session until {until}".encode(), "sha256").hex()
