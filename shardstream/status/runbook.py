"""The runbook, and the pages that it leads to, as HTML: they are at hand where no web site is."""

import re
from collections.abc import Collection, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from markdown_it import MarkdownIt
from markdown_it.token import Token
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

# Links to the pages of docs/, of which a wheel has copies.
FOLDER: Final = Path(__file__).parent / "docs"
# The page is rendered between these two, with the styles of the live page.
_TEMPLATE: Final = Path(__file__).parent / "page" / "docs.html"
_COMMENT: Final = re.compile(r"<!--.*?-->", re.DOTALL)


def docs_routes() -> list[Route]:
    """Return a route per page, under the names that alerts and messages use."""
    template = _TEMPLATE.read_text("utf-8")
    texts = {path.name: path.read_text("utf-8") for path in sorted(FOLDER.glob("*.md"))}

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
