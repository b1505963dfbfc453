"""An open page, and what it did: its requests, its errors, and what it shows."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page

AXE = Path(__file__).parent / "vendor" / "axe.min.js"
# A producer is silent after 10 s; the rest is for a busy machine.
WAIT_MS = 120_000

FORK_IS_DRAWN = """(keyspace) => {
  const { forks } = window.shardstream.timelines[keyspace];
  if (forks.length !== 1 || !forks[0].marks.length) return false;
  const canvas = sections.get(keyspace).querySelector("canvas");
  const ink = document.createElement("canvas").getContext("2d");
  ink.fillStyle = color("--ink");
  ink.fillRect(0, 0, 1, 1);
  const wanted = ink.getImageData(0, 0, 1, 1).data;
  return forks[0].marks.every((mark) => {
    const at = [mark.x, mark.y].map((px) => Math.round(px * devicePixelRatio));
    const drawn = canvas.getContext("2d").getImageData(...at, 1, 1).data;
    return drawn.every((value, i) => value === wanted[i]);
  });
}"""


@dataclass
class StatusRelay:
    """A page in a browser."""

    page: Page
    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def wait(self, condition: str) -> None:
        """Wait until a JavaScript expression holds."""
        self.page.wait_for_function(f"() => {condition}", timeout=WAIT_MS)

    def sentence(self, keyspace: str) -> str:
        """The sentence of a keyspace."""
        found = self.page.locator(f'[data-key="{keyspace}"] .sentence .text').text_content()
        return found or ""

    def wait_for_sentence(self, keyspace: str, words: str) -> None:
        """Wait until the sentence of a keyspace has these words."""
        selector = json.dumps(f'[data-key="{keyspace}"] .sentence .text')
        said = f"document.querySelector({selector})?.textContent"
        self.wait(f"({said} ?? '').includes({json.dumps(words)})")

    def timeline(self, keyspace: str) -> dict[str, Any]:
        """The timeline of a keyspace as it was drawn last."""
        found: dict[str, Any] = self.page.evaluate(
            "(keyspace) => window.shardstream.timelines[keyspace]", keyspace
        )
        return found

    def wait_for_fork(self, keyspace: str) -> dict[str, Any]:
        """Wait until the page has drawn one fork with all its marks; return the timeline then.

        A mark is drawn if its middle has the color of ink. Marks move with the clock, and the line
        of the frontier crosses them, so that place and color are of the same drawing.
        """
        self.page.wait_for_function(FORK_IS_DRAWN, arg=keyspace, timeout=WAIT_MS)
        return self.timeline(keyspace)

    def faults_of_axe(self) -> list[str]:
        """What axe-core finds wrong."""
        self.page.evaluate(AXE.read_text("utf-8"))
        found = self.page.evaluate("() => axe.run().then((found) => found.violations)")
        return [f"{fault['id']}: {fault['nodes'][0]['failureSummary']}" for fault in found]


@contextmanager
def watching(browser: Browser, url: str, **options: Any) -> Iterator[StatusRelay]:
    """Open a page until the block ends."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
    try:
        context.set_default_timeout(WAIT_MS)
        page = context.new_page()
        watched = StatusRelay(page)
        page.on("request", lambda request: watched.requests.append(request.url))
        page.on("pageerror", lambda error: watched.errors.append(str(error)))
        page.on(
            "console",
            lambda line: watched.errors.append(line.text) if line.type == "error" else None,
        )
        page.goto(url)
        yield watched
    finally:
        context.close()
