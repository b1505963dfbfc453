"""docs/runbook.md against the alerts and the errors that it is for."""

import re
from typing import Any

import pytest
import yaml

from event_token.errors import Halt
from tests.docs.anchors import anchors_of
from tests.repository import PACKAGES, ROOT, python_files

PAGE = ROOT / "docs" / "runbook.md"
RULES = ROOT / "docker" / "prometheus" / "rules.yml"
PARTS = ("- **Symptom:**", "- **Safe:**", "- **Look:**", "- **Fix:**", "- **Do not**")


def alerts() -> dict[str, dict[str, Any]]:
    """The alerts of the rules, by name."""
    [group] = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


def halts() -> set[str]:
    """The classes below Halt, in all packages."""
    bases: dict[str, set[str]] = {}
    for package in PACKAGES:
        for path in python_files(package):
            for name, above in re.findall(r"^class (\w+)\((.+)\):", path.read_text(), re.MULTILINE):
                bases.setdefault(name, set()).update(above.split(", "))
    found = {Halt.__name__}
    while more := {name for name, above in bases.items() if above & found} - found:
        found |= more
    return found - {Halt.__name__}


def sections(part: str) -> dict[str, str]:
    """The text of each section of a part of the page, by heading."""
    _, _, text = PAGE.read_text().partition(f"\n## {part}\n")
    text, _, _ = text.partition("\n## ")
    pieces = re.split(r"^### (.+)\n", text, flags=re.MULTILINE)[1:]
    return dict(zip(pieces[::2], pieces[1::2], strict=True))


def test_every_alert_has_a_section() -> None:
    """Whoever is woken finds what to do under the alert's name, and nothing else is there."""
    assert list(sections("Alerts")) == list(alerts())


def test_every_alert_links_to_its_section() -> None:
    """The link in the message leads to the right place, and the message names what is wrong."""
    for name, rule in alerts().items():
        page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert (page, anchor) == ("docs/runbook.md", name.lower())
        assert anchor in anchors_of(PAGE)
        assert rule["annotations"]["summary"]
        assert rule["labels"]["severity"] in {"page", "ticket"}


def test_every_error_that_stops_a_process_has_a_section() -> None:
    """Each class below Halt stands in the table once, and each section of the part is linked."""
    page = PAGE.read_text()
    rows = re.findall(r"^\| (`.*`) \| \[(.+)\]\(#(.+)\) \|$", page, re.MULTILINE)
    named = [name for classes, _, _ in rows for name in re.findall(r"`(\w+)`", classes)]

    assert sorted(named) == sorted(halts())
    assert [title for _, title, _ in rows] == list(sections("Errors that stop a process"))
    assert {anchor for _, _, anchor in rows} <= anchors_of(PAGE)


@pytest.mark.parametrize("part", ["Alerts", "Errors that stop a process"])
def test_every_section_says_what_to_do_and_what_not(part: str) -> None:
    """Symptom, what is safe, where to look, how to fix it, what not to do: in this order."""
    for title, text in sections(part).items():
        found = re.findall(r"^- \*\*[^*]+\*\*", text, re.MULTILINE)
        assert tuple(found) == PARTS, title
