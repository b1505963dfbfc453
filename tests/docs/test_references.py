"""What the docs refer to exists: settings, links and their anchors, tests, glossary entries."""

import inspect
import re
from dataclasses import fields
from pathlib import Path

import pytest

from producers.settings import CopySettings
from shardstream import Subscriber, VEvent
from shardstream.settings import model as settings
from shardstream.settings.model import CacheSection
from spark_consumers.source.options import KNOWN_OPTIONS
from tests.docs.anchors import anchors_of
from tests.docs.page_run import make_targets
from tests.repository import PACKAGES, ROOT, pages, python_files
from topics.arrow.output_columns import ENVELOPE_TYPES, ON_REQUEST_TYPES

SECTIONS = (
    settings.KafkaSection,
    settings.ClockSection,
    settings.ShardSection,
    settings.ServerSection,
    settings.VindexSection,
    settings.FilterSection,
    settings.RuleSection,
    settings.TruncateSection,
    settings.KeyspaceSection,
    settings.ReshardSection,
)
PAGES = pages()
GLOSSARY = ROOT / "docs/glossary.md"

# `name` from, in or under the settings, with at most a few words between; `the settings file` is
# where programs find parameters of their own.
_SETTING = re.compile(r"`([a-z]+_[a-z_]+)`[^`]{0,20} (?:from|in|under|to) the settings(?! file)")
_LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)]*))?\)")


def test_every_setting_is_documented() -> None:
    """docs/settings.md describes each setting."""
    text = (ROOT / "docs/settings.md").read_text()
    names = {name for section in SECTIONS for name in section.model_fields}
    names |= {
        field.name
        for part in (settings.ProducerSection, CopySettings, CacheSection)
        for field in fields(part)
    }

    assert {name for name in names if f"`{name}`" not in text} == set()


def test_every_setting_that_a_page_names_exists() -> None:
    """What a page tells to change in the settings is one of those that docs/settings.md lists."""
    listed = set(re.findall(r"`(\w+)`", (ROOT / "docs/settings.md").read_text()))
    named = {
        (page.name, name)
        for page in PAGES
        for sentence in re.split(r"[.;:]\s", page.read_text())
        for name in re.findall(_SETTING, " ".join(sentence.split()))
    }

    assert {name for _, name in named} >= {"bootstrap_servers"}
    assert {(page, name) for page, name in named if name not in listed} == set()


def test_everything_that_a_reader_receives_is_documented() -> None:
    """docs/reader-api.md names the event's fields, and the parameters and columns of readers."""
    page = (ROOT / "docs/reader-api.md").read_text()
    event, subscriber, spark = (
        re.search(rf"^## {heading}$.*?(?=^## )", page, re.MULTILINE | re.DOTALL)
        for heading in ("VEvent", "Subscriber", "Spark")
    )
    # Events are given the source of their position, and offer `position`.
    in_event = {field.name for field in fields(VEvent)} - {"place"}
    in_event |= {name for name, _ in inspect.getmembers(VEvent, lambda m: isinstance(m, property))}
    parameters = set(inspect.signature(Subscriber).parameters)
    # Spark passes `path`; the format takes none. Options ignore case.
    options = KNOWN_OPTIONS - {"path"}

    assert event
    assert subscriber
    assert spark
    assert {name for name in in_event if f"`{name}`" not in event[0]} == set()
    assert {name for name in parameters if f"`{name}`" not in subscriber[0]} == set()
    assert {name for name in options if f"| `{name}` |" not in spark[0].lower()} == set()
    columns = ENVELOPE_TYPES | ON_REQUEST_TYPES
    assert {name for name in columns if f"`{name}`" not in spark[0]} == set()


def test_contributors_find_every_make_target() -> None:
    """CONTRIBUTING.md lists the targets of the Makefile, and no others."""
    documented = re.findall(
        r"^\| `make ([\w-]+)`", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE
    )

    assert sorted(documented) == sorted(make_targets() - {"help"})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """A link to a file finds the file, and a link to a section finds its heading."""
    for path, anchor in _LINK.findall(page.read_text()):
        if path.startswith("https://"):
            continue
        target = page.parent / path if path else page
        assert target.exists(), f"{page.name}: {path}"
        assert not anchor or anchor in anchors_of(target), f"{page.name}: {path}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tests_that_a_page_names_exist(page: Path) -> None:
    """A guarantee is only as good as its test."""
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(test_\w+))?`", page.read_text())

    assert [path for path, _ in named if not (ROOT / path).exists()] == []
    assert [
        name for path, name in named if name and f"def {name}(" not in (ROOT / path).read_text()
    ] == []


def test_each_glossary_entry_names_its_code() -> None:
    """Every term is explained in a few sentences and ends with the code that implements it."""
    _, *entries = re.split(r"^### ", GLOSSARY.read_text(), flags=re.MULTILINE)

    assert entries
    for entry in entries:
        term, text = entry.split("\n", maxsplit=1)
        text = re.split(r"^## ", text, flags=re.MULTILINE)[0].strip()
        assert re.search(r"\[([\w/.]+\.py)\]\(\.\./\1\)$", text), f"{term}: no link to its code"


def test_errors_that_operators_look_up_exist() -> None:
    """Each error class that docs/operations.md names is raised under that name."""
    named = re.findall(r"`([A-Z][a-z]+[A-Z]\w+)`", (ROOT / "docs/operations.md").read_text())
    code = "\n".join(path.read_text() for package in PACKAGES for path in python_files(package))

    assert named
    assert [name for name in named if f"class {name}(" not in code] == []
