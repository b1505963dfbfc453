"""How a browser gets in: the form, and the cookie that stands for the token."""

from urllib.parse import quote

import pytest

from shardstream.status import access
from shardstream.status.access import COOKIE, Sessions
from tests.shardstream.status.serving import serving
from tests.shardstream.status.views import two_shards

TOKEN = "a-token/of the+tests&more"


def test_a_cookie_is_valid_for_its_token_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forged, changed, foreign or old cookie is worth nothing."""
    sessions = Sessions(lambda: TOKEN)
    cookie = sessions.begin()
    until, _, signature = cookie.partition(".")
    forged = ("", ".", "x", f"{int(until) + 1}.{signature}", f"{until}.", until, f"{until}.\xe9")

    assert sessions.is_valid(cookie)
    assert not any(sessions.is_valid(each) for each in forged)
    assert not Sessions(lambda: TOKEN + "x").is_valid(cookie)
    monkeypatch.setattr(access, "SESSION_S_MAX", -1)
    assert not sessions.is_valid(sessions.begin())


def test_the_form_gives_a_cookie_that_opens_the_page() -> None:
    """Without the token the form comes instead of the page; its answer leads back to the page."""
    form = {"content-type": "application/x-www-form-urlencoded"}
    with serving(two_shards, "commerce", token=TOKEN) as served:
        asked = served.get("/")
        style = served.get("/static/page.css")
        wrong = served.ask("POST", "/session", "token=wrong", **form)
        right = served.ask("POST", "/session", f"token={quote(TOKEN)}", **form)
        cookie = right.headers["set-cookie"].partition(";")[0]
        page = served.get("/", cookie=cookie)
        state = served.get("/status.json", cookie=cookie)
        forged = served.get("/status.json", cookie=f"{COOKIE}=1.x")
        over_tls = served.ask(
            "POST", "/session", f"token={quote(TOKEN)}", **form, **{"x-forwarded-proto": "https"}
        )
        long = served.ask("POST", "/session", "token=" + "x" * 100_000, **form)

    assert (asked.status, wrong.status, forged.status, long.status) == (401, 401, 401, 413)
    assert 'name="token"' in asked.text
    assert "keyspaces" not in asked.text
    assert "set-cookie" not in wrong.headers
    assert (style.status, style.headers["cache-control"]) == (200, "no-cache")
    assert (right.status, page.status, state.status) == (303, 200, 200)
    assert 'id="keyspaces"' in page.text
    assert "HttpOnly" in right.headers["set-cookie"]
    assert "SameSite=strict" in right.headers["set-cookie"]
    assert "Secure" not in right.headers["set-cookie"]
    assert "Secure" in over_tls.headers["set-cookie"]
    assert TOKEN not in cookie


def test_without_a_token_there_is_no_form() -> None:
    """An address that is open to all shows the page at once and takes no tokens."""
    with serving(two_shards, "commerce") as served:
        page = served.get("/")
        form = served.ask("POST", "/session", "token=x")

    assert (page.status, form.status) == (200, 404)
