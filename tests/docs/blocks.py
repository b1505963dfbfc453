"""The fenced blocks of a Markdown page, and what the words after a fence ask the test to do.

A fence names a language and may be followed by attributes, which GitHub does not show:

    ```shell background until="streaming"

`LANGUAGES` says what each language means; `FLAGS` and `VALUES` are the attributes. Blocks inside
an HTML comment count like any other: readers do not see them.
"""

import re
import shlex
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

# What a test does with a block of the language.
LANGUAGES = {
    "shell": "run by bash; must exit 0",
    "console": "the lines behind `$ ` are run by bash, the others are sample output",
    "python": "run as a program of its own",
    "toml": "with [kafka]: written to shardstream.toml; else appended to it. The file must load",
    "sql": "run as root on every database server of the page",
    "json": "must be JSON",
    "text": "neither run nor checked: pictures, output, grammar",
}
# background: runs until the end of the page. parse: commands and options must exist, nothing runs.
# check (toml): must load, but is not kept.
FLAGS = frozenset(("background", "parse", "check"))
# until: a regular expression to wait for in the output. exit: the exit status wanted.
# on (sql): the server. file: written under this name, not run. from: an excerpt of this file of the
# repository, whose own tests run it.
VALUES = frozenset(("until", "exit", "on", "file", "from"))

# The test runs in a repository that is set up already.
_SETUP_COMMANDS = ("make ", "git clone ", "pip install ")

_FENCE = re.compile(
    r"^(?P<indent>[ \t]*)```(?P<info>[^`\n]*)\n(?P<text>.*?)^(?P=indent)```[ \t]*$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block; `line` is that of its fence, from 1."""

    line: int
    language: str
    text: str
    flags: frozenset[str]
    values: Mapping[str, str]

    def commands(self) -> str:
        """The shell commands to run, without those that set the repository up."""
        lines = self.text.splitlines()
        if self.language == "console":
            lines = _prompted(lines)
        return "\n".join(line for line in lines if not line.startswith(_SETUP_COMMANDS))

    def make_targets(self) -> set[str]:
        """The targets of the block's `make` lines."""
        return set(re.findall(r"^(?:\$ )?make ([\w-]+)", self.text, re.MULTILINE))


def blocks_of(page: str) -> list[Block]:
    """Return a page's blocks in order; ValueError for a fence that is not understood."""
    return [_block(page, found) for found in _FENCE.finditer(page)]


def _block(page: str, found: re.Match[str]) -> Block:
    line = page.count("\n", 0, found.start()) + 1
    language, *attributes = shlex.split(found["info"]) or [""]
    if language not in LANGUAGES:
        message = f"line {line}: {language!r} is not one of {', '.join(LANGUAGES)}"
        raise ValueError(message)
    flags = frozenset(word for word in attributes if "=" not in word)
    values = dict(word.split("=", maxsplit=1) for word in attributes if "=" in word)
    unknown = (flags - FLAGS) | (values.keys() - VALUES)
    if unknown:
        message = f"line {line}: unknown attribute {', '.join(sorted(unknown))}"
        raise ValueError(message)
    return Block(line, language, textwrap.dedent(found["text"]), flags, values)


def _prompted(lines: list[str]) -> list[str]:
    """The lines behind a prompt, with those that a backslash continues."""
    commands: list[str] = []
    for line in lines:
        if line.startswith("$ "):
            commands.append(line.removeprefix("$ "))
        elif commands and commands[-1].endswith("\\"):
            commands.append(line.removeprefix("> "))
    return commands
