"""What a preflight finds: everything at once, each with its fix."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

from event_token import UsageError


@dataclass(slots=True)
class Findings:
    """Problems, with which nothing should start, and warnings. `layout`: see `Layout.text`."""

    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    layout: str | None = None

    def add(self, other: "Findings") -> Self:
        """Add what was found elsewhere."""
        self.problems += other.problems
        self.warnings += other.warnings
        return self

    def refuse(self, what: str) -> None:
        """Raise one UsageError that lists all problems, if there are any."""
        if self.problems:
            lines = "\n".join(f"  {problem}" for problem in self.problems)
            raise UsageError(f"{what}: {len(self.problems)} problem(s)\n{lines}")


def version_number(text: str) -> tuple[int, ...]:
    """Return the numbers of a version such as 1.6.18, up to the first part that is none."""
    return tuple(_numbers(text.split(".")))


def _numbers(parts: Iterable[str]) -> Iterable[int]:
    for part in parts:
        if not part.isdecimal():
            return
        yield int(part)
