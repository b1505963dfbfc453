"""Which section of the runbook says what to do about an error or an alert."""

import re
from functools import cache
from pathlib import Path
from typing import Final

# Links to the pages of docs/, of which a wheel has copies.
DOCS: Final = Path(__file__).parent / "docs"
# Relative, so that it holds behind a proxy that puts a path in front.
RUNBOOK: Final = "docs/runbook.md"
# A row of the table of errors: classes in backquotes, and the link to their section.
_ROW: Final = re.compile(r"^\| (`.+`) \| \[.+\]\(#(.+)\) \|$", re.MULTILINE)
_ALL_ERRORS: Final = "errors-that-stop-a-process"


@cache
def _sections() -> dict[str, str]:
    """The section of each class of error, by the table of the runbook itself."""
    rows = _ROW.findall((DOCS / "runbook.md").read_text("utf-8"))
    return {name: place for classes, place in rows for name in re.findall(r"\w+", classes)}


def runbook_place(error: str, alert: str = "ShardSilent") -> str:
    """Return the place of an error's class, or without one that of an alert.

    A class that a newer release knows leads to the table of all.
    """
    section = _sections().get(error, _ALL_ERRORS) if error else alert.lower()
    return f"{RUNBOOK}#{section}"
