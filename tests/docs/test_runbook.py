"""docs/runbook.md against the alerts and the errors that it is for."""

import re
from typing import Any

import pytest
import yaml

from event_token.errors import Halt, UsageError
from tests.docs.anchors import anchors_of
from tests.repository import PACKAGES, ROOT, python_files

PAGE = ROOT / "docs" / "runbook.md"
RULES = ROOT / "docker" / "prometheus" / "rules.yml"
REFUSED_READS = "Fresh reads that are refused"
PARTS = ("- **Symptom:**", "- **Safe:**", "- **Look:**", "- **Fix:**", "- **Do not**")


def alerts() -> dict[str, dict[str, Any]]:
    """The alerts of the rules, by name."""
    [group] = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


def ending_errors() -> set[str]:
    """The classes that end a process: Halt and UsageError, and what is below them.

    Below UsageError those that a producer can end with; others are bad input of one command.
    """
    of_producers = {"credentials", "databases", "topics", "producers"}
    return below(Halt.__name__, set(PACKAGES)) | below(UsageError.__name__, of_producers)


def below(base: str, packages: set[str]) -> set[str]:
    """A class and all classes below it."""
    bases: dict[str, set[str]] = {}
    for package in packages:
        for path in python_files(package):
            for name, above in re.findall(r"^class (\w+)\((.+)\):", path.read_text(), re.MULTILINE):
                bases.setdefault(name, set()).update(above.split(", "))
    found = {base}
    while more := {name for name, above in bases.items() if above & found} - found:
        found |= more
    return found


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
    """Each class stands in the table once, and each section of the part is linked."""
    page = PAGE.read_text()
    rows = re.findall(r"^\| (`.*`) \| \[(.+)\]\(#(.+)\) \|$", page, re.MULTILINE)
    named = [name for classes, _, _ in rows for name in re.findall(r"`(\w+)`", classes)]

    assert sorted(named) == sorted(ending_errors())
    assert [title for _, title, _ in rows] == list(sections("Errors that stop a process"))
    assert {anchor for _, _, anchor in rows} <= anchors_of(PAGE)


def test_every_refused_read_has_a_section() -> None:
    """What fresh reads raise to be repeated, and stores do not, stands under its name."""
    found = below("Retry", {"caching"}) - below("StoreError", {"caching"}) - {"Retry"}

    assert sorted(sections(REFUSED_READS)) == sorted(found)


@pytest.mark.parametrize("part", ["Alerts", "Errors that stop a process", REFUSED_READS])
def test_every_section_says_what_to_do_and_what_not(part: str) -> None:
    """Symptom, what is safe, where to look, how to fix it, what not to do: in this order."""
    for title, text in sections(part).items():
        found = re.findall(r"^- \*\*[^*]+\*\*", text, re.MULTILINE)
        assert tuple(found) == PARTS, title
