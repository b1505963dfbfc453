"""Words that this repository does without, because readers of this field have better ones."""

import re
from pathlib import Path

import pytest

from tests.repository import PACKAGES, ROOT, pages, python_files

CHECKED = (*PACKAGES, "benchmarks", "examples", "tests")
# Regular expressions over text in lower case, each with what to write instead.
BANNED = {
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\banew\b": "again, re-",
    r"\blet(s|ting)? go of\b": "drop, release",
    r"\bso many\b": "number of",
    r"\bforeseen\b": "predicted",
    r"\bjudged\b": "filtered, checked, evaluated",
    r"\bsaid aloud\b": "with a note",
    r"\bin the making\b": "say what it is",
    r"\bone a (shard|target|table|row|line|server|reshard)\b": "one per ...",
    r"\ba producer a shard\b": "one producer per shard",
    r"\bnot to be had\b": "not available",
    r"\bsee_rows\b": "observe_rows",
    r"\banswer_of\b": "retry_request",
    r"design\.md": "docs/architecture.md",
    r"\bseed 00\d": "docs/architecture.md",
}
# Also what only ends in such a word: with its leading `\b`s this took 15 times as long.
MAY_BE_BANNED = re.compile("|".join(word.removeprefix(r"\b") for word in BANNED))
PAGES = pages()
# The list itself has to name the words.
CODE = [path for folder in CHECKED for path in python_files(folder) if path != Path(__file__)]


def banned_in(text: str) -> list[str]:
    """The banned words of a text, each with its line and what to write instead."""
    if not MAY_BE_BANNED.search(text.lower()):
        return []
    return [
        f"line {number}: {found[0]!r}, better: {better}"
        for number, line in enumerate(text.lower().splitlines(), 1)
        for word, better in BANNED.items()
        if (found := re.search(word, line))
    ]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_pages_use_the_words_of_the_field(path: Path) -> None:
    """No page has a word that has to be decoded, or refers to a document that does not ship."""
    assert banned_in(path.read_text()) == []


def test_the_code_uses_the_words_of_the_field() -> None:
    """Names, docstrings, comments and messages do without these words too."""
    found = {str(path.relative_to(ROOT)): banned_in(path.read_text()) for path in CODE}

    assert {path: words for path, words in found.items() if words} == {}


def test_a_banned_word_is_found() -> None:
    """The list is applied to whole words, whatever their case."""
    assert banned_in("Mended.\nAmendment\nmade anew") == [
        "line 1: 'mended', better: fix",
        "line 3: 'anew', better: again, re-",
    ]
