"""Two ways to put a mutant in place of a module, both in memory only."""

import sys
from importlib.abc import SourceLoader
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

from tests.mutants.placed import Placed


class ChangedModule(SourceLoader):
    """Gives one module its changed source when it is imported."""

    def __init__(self, root: Path, mutant: Placed) -> None:
        """`root`: the repository."""
        self._root = root
        self._mutant = mutant

    def find_spec(
        self, fullname: str, path: object, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Answer for this module only."""
        del path, target
        return spec_from_loader(fullname, self) if fullname == self._mutant.module else None

    def get_filename(self, fullname: str) -> str:
        """Name the file as it would be without the mutant."""
        del fullname
        return str(self._root / self._mutant.path)

    def get_data(self, path: object) -> bytes:
        """Return the changed source."""
        del path
        return self._mutant.source.encode()


def change_in_place(mutant: Placed) -> CodeType | None:
    """Replace the code of the mutant's function in the imported module, wherever it is known.

    Return the code that was replaced; None, and nothing is done, for a mutant of what a module does
    when it is imported.
    """
    found: object = sys.modules.get(mutant.module)
    names = mutant.mutant.function.split(".")
    for depth, name in enumerate(names, 1):
        found = vars(found).get(name) if isinstance(found, type | ModuleType) else None
        function = _unwrapped(found)
        if function is not None:
            code = compile(mutant.source, mutant.path, "exec")
            for wanted in names[:depth]:
                code = next(
                    each
                    for each in code.co_consts
                    if isinstance(each, CodeType) and each.co_name == wanted
                )
            replaced, function.__code__ = function.__code__, code
            return replaced
    return None


def _unwrapped(found: object) -> FunctionType | None:
    """Return the function behind a method, a property or a decorator."""
    for name in ("__func__", "fget", "__wrapped__"):
        found = getattr(found, name, None) or found
    return found if isinstance(found, FunctionType) else None
