"""The runbook as `shardstream serve` shows it."""

import re

import pytest

from event_token import UsageError
from shardstream.commands.serve import serve
from shardstream.status.application import rendered
from shardstream.status.runbook import DOCS
from tests.repository import ROOT
from tests.shardstream.status.serving import serving
from tests.shardstream.status.views import two_shards

NAMES = sorted(path.name for path in DOCS.iterdir())


def test_every_link_of_the_runbook_leads_to_its_place() -> None:
    """Its pages are served under their names, with the anchors that links and alerts name."""
    with serving(two_shards, "commerce") as served:
        pages = {name: served.get(f"/docs/{name}") for name in NAMES}
        unknown = served.get("/docs/glossary.md")

    assert {answer.status for answer in pages.values()} == {200}
    assert unknown.status == 404
    anchors = {
        name: set(re.findall(r' id="([^"]+)"', answer.text)) for name, answer in pages.items()
    }
    links = re.findall(r'href="([^"#]*)#([^"]+)"', pages["runbook.md"].text)
    assert len(links) > len(NAMES)
    for name, place in links:
        assert place in anchors[name or "runbook.md"]
    rules = (ROOT / "docker" / "prometheus" / "rules.yml").read_text()
    named = set(re.findall(r"runbook_url: docs/runbook\.md#(\w+)", rules))
    assert named <= anchors["runbook.md"]
    # Of the pages that are not served the text is there.
    assert "docker/prometheus/rules.yml" in pages["runbook.md"].text
    assert 'href="../' not in pages["runbook.md"].text.partition("<main")[2]


def test_what_is_html_in_a_page_is_text() -> None:
    """Neither elements nor comments of a page reach a browser."""
    shown = rendered("<!-- for a test -->\n# A <b>c</b>\n\n[gone](../x.md#y) [b](b.md)", {"b.md"})

    assert shown == (
        '<h1 id="a-bcb">A &lt;b&gt;c&lt;/b&gt;</h1>\n<p>gone <a href="b.md">b</a></p>\n'
    )


def test_the_page_links_to_another_copy() -> None:
    """`--runbook-url` takes the place of the one that is served; it must be a page's URL."""
    url = 'https://wiki/run"book'
    with serving(two_shards, "commerce", runbook_url=url) as served:
        other = served.get("/").text
    with serving(two_shards, "commerce") as served:
        own = served.get("/").text

    assert 'data-runbook="https://wiki/run&quot;book"' in other
    assert 'data-runbook="docs/runbook.md"' in own
    with pytest.raises(UsageError, match="https://"):
        serve(runbook_url="javascript:alert(1)")
