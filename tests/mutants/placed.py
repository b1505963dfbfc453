"""The mutants of a target, and those of them that make no difference."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.mutations import Mutant, changed, mutants_of
from tests.mutants.targets import Target
from tests.repository import ROOT, module_name

# Blocks of a reason, as comment lines, and the names of the mutants for which it holds.
EQUIVALENT = Path(__file__).with_name("equivalent.txt")


@dataclass(frozen=True, slots=True)
class Placed:
    """A mutant of the module at `path`, relative to the repository's root."""

    path: str
    module: str
    original: str
    mutant: Mutant

    @property
    def name(self) -> str:
        """How the list of equivalent mutants names it: without its line, which moves."""
        times = f" ({self.mutant.times})" if self.mutant.times > 1 else ""
        return f"{self.path} {self.mutant.function}{times}: {self.mutant.change}"

    @property
    def source(self) -> str:
        """The module's source with the mutant."""
        return changed(self.original, self.mutant)


def mutants_in(target: Target) -> Iterator[Placed]:
    """Yield all mutants of the target's modules, in the order of their sources."""
    for path in sorted(path for glob in target.modules for path in ROOT.glob(glob)):
        original = path.read_text("utf-8")
        for mutant in mutants_of(original):
            yield Placed(path.relative_to(ROOT).as_posix(), module_name(path), original, mutant)


def equivalent() -> dict[str, str]:
    """Return the names of the mutants that make no difference, each with its reason."""
    found: dict[str, str] = {}
    for block in EQUIVALENT.read_text("utf-8").split("\n\n"):
        lines = block.splitlines()
        reason = " ".join(line[1:].strip() for line in lines if line.startswith("#"))
        found |= {line: reason for line in lines if line and not line.startswith("#")}
    return found
