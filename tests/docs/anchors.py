"""The places of a page that links may lead to."""

import re
from pathlib import Path

from shardstream.status.application import anchor

_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def anchors_of(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    headings = _HEADING.findall(_FENCED.sub("", page.read_text()))
    return {anchor(heading) for heading in headings}
