"""The command line's rule for options that are given more than once.

Of an option that takes one value the parser keeps the last and drops the others without a word.
Every command of ours refuses that; options that take many values are lists.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from event_token.errors import UsageError


def refuse_repeated(parser: Any, args: list[str]) -> None:
    """Raise UsageError on an option of one value, or a flag, that is given twice."""
    _, _, given = parser.parse_args(args=[*args])
    for option, times in Counter(given).items():
        is_list = getattr(option, "multiple", True) or getattr(option, "count", False)
        if times > 1 and not is_list and not option.is_eager:
            raise UsageError(f"{max(option.opts, key=len)} is given {times} times: give it once")


class StrictCommand(TyperCommand):
    """A command that refuses repeated options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Check before values are converted."""
        refuse_repeated(self.make_parser(ctx), args)
        return super().parse_args(ctx, args)


class StrictGroup(TyperGroup):
    """A group whose own options are not repeated."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Check before values are converted."""
        refuse_repeated(self.make_parser(ctx), args)
        return super().parse_args(ctx, args)


class CommandLine(typer.Typer):
    """Commands that refuse repeated options."""

    def __init__(self, **options: Any) -> None:
        """`options`: as of typer.Typer."""
        super().__init__(**{"cls": StrictGroup, "add_completion": False, **options})

    def command(self, name: str | None = None, **options: Any) -> Callable[[Any], Any]:
        """Add a command; `options`: as of typer.Typer."""
        return super().command(name, **{"cls": StrictCommand, **options})
