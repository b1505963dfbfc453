"""The docs speak of what is there: settings, make targets, commands, tests."""

import re

from typer.main import get_command

from shardstream.commands.app import app
from shardstream.settings import model as settings
from tests.repository import ROOT

SECTIONS = (
    settings.KafkaSection,
    settings.ProducerSection,
    settings.CopySection,
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
    """Each setting's name stands in docs/settings.md."""
    text = (ROOT / "docs/settings.md").read_text()
    names = {name for section in SECTIONS for name in section.model_fields}

    assert {name for name in names if f"`{name}`" not in text} == set()


def test_make_targets_and_commands_of_the_readme_exist() -> None:
    """What the README tells to run can be run."""
    blocks = re.findall(
        r"^ *```.*?^ *```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL
    )
    text = "\n".join(blocks)
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = set(getattr(get_command(app), "commands", {}))

    assert set(re.findall(r"^\s*make ([a-z]+)", text, re.MULTILINE)) <= targets
    assert set(re.findall(r"^\s*shardstream ([a-z]+)", text, re.MULTILINE)) <= commands


def test_links_and_tests_that_the_docs_name_exist() -> None:
    """No link in the docs leads nowhere, and each test named is there."""
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        text = page.read_text()
        for link in re.findall(r"\]\(([^)#]+)\)", text):
            assert (page.parent / link).exists(), f"{page.name}: {link}"
        for test in re.findall(r"`(tests/[\w/]+\.py)`", text):
            assert (ROOT / test).exists(), f"{page.name}: {test}"
