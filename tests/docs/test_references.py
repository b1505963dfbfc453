"""What the docs refer to exists: settings, links, tests."""

import re
from dataclasses import fields

from producers.options import CopySettings
from shardstream.settings import model as settings
from tests.repository import ROOT

SECTIONS = (
    settings.KafkaSection,
    settings.ShardSection,
    settings.ServerSection,
    settings.VindexSection,
    settings.FilterSection,
    settings.RuleSection,
    settings.TruncateSection,
    settings.KeyspaceSection,
    settings.ReshardSection,
)


def test_every_setting_is_documented() -> None:
    """docs/settings.md describes each setting."""
    text = (ROOT / "docs/settings.md").read_text()
    names = {name for section in SECTIONS for name in section.model_fields}
    names |= {
        field.name for part in (settings.ProducerSection, CopySettings) for field in fields(part)
    }

    assert {name for name in names if f"`{name}`" not in text} == set()


def test_links_and_tests_that_the_docs_name_exist() -> None:
    """Links and paths of tests lead somewhere."""
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        text = page.read_text()
        for link in re.findall(r"\]\(([^)#]+)\)", text):
            assert (page.parent / link).exists(), f"{page.name}: {link}"
        for test in re.findall(r"`(tests/[\w/]+\.py)`", text):
            assert (ROOT / test).exists(), f"{page.name}: {test}"
