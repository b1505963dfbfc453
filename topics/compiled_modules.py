"""Which modules of a package are compiled, from what, and whether what is loaded fits its source.

A stale compiled module beside an edited source is the classic accident: the build records the
hash of the sources, and loading compares. This module imports nothing of the project: what it
decides must be decided before the first compiled module is imported.
"""

import hashlib
import importlib.machinery
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]
# Beside the package that owns the modules.
RECORD_NAME = "compiled.json"
# Set to "1": the plain modules are loaded though compiled ones are there (tests compare both).
PLAIN_VARIABLE = "SHARDSTREAM_PLAIN_DECODER"


@dataclass(frozen=True)
class CompiledModules:
    """The modules of `package` that are compiled into one library, whose name is `library`.

    `title` names them in messages. `mypy_flags` are those that their build needs beside --strict.
    """

    package: str
    title: str
    library: str
    modules: tuple[str, ...]
    mypy_flags: tuple[str, ...] = ()

    @cached_property
    def is_loaded(self) -> bool:
        """Whether the compiled forms are what an import gives; ask before the first one."""
        if os.environ.get(PLAIN_VARIABLE) == "1":
            sys.meta_path.insert(0, PlainFinder(self.modules))
            return False
        return self.has_any

    @property
    def is_stale(self) -> bool:
        """Whether what an import gives was compiled from other sources than those beside it."""
        return self.is_loaded and self.recorded_hash() != self.source_hash()

    @property
    def has_any(self) -> bool:
        """Whether any compiled module lies beside its source."""
        return any(compiled_of(module).exists() for module in self.modules)

    @property
    def is_up_to_date(self) -> bool:
        """Whether all compiled modules are there, with their library, and fit their sources."""
        files = [self.library_file, *map(compiled_of, self.modules)]
        has_all = all(file.exists() for file in files)
        return has_all and self.recorded_hash() == self.source_hash()

    @property
    def library_file(self) -> Path:
        """The library that holds the code of all the modules, which are but doors to it."""
        return ROOT / f"{self.library}__mypyc{importlib.machinery.EXTENSION_SUFFIXES[0]}"

    @property
    def record(self) -> Path:
        """The file in which a build says what it has compiled."""
        return ROOT / self.package / RECORD_NAME

    def source_hash(self) -> str:
        """One hash over the sources of all the modules."""
        digest = hashlib.sha256()
        for module in self.modules:
            digest.update(module.encode() + b"\0" + source_of(module).read_bytes() + b"\0")
        return digest.hexdigest()

    def recorded_hash(self) -> str:
        """The hash of the sources that the compiled modules were built from, "" for none."""
        if not self.record.exists():
            return ""
        return str(json.loads(self.record.read_text()).get("source_hash", ""))


def source_of(module: str) -> Path:
    """The source file of a module."""
    return ROOT.joinpath(*module.split(".")).with_suffix(".py")


def compiled_of(module: str) -> Path:
    """Where the compiled form of a module for this interpreter lies, if there is one."""
    source = source_of(module)
    return source.with_name(source.stem + importlib.machinery.EXTENSION_SUFFIXES[0])


class PlainFinder(MetaPathFinder):
    """Finds the sources of these modules, and nothing else."""

    def __init__(self, modules: tuple[str, ...]) -> None:
        self._modules = frozenset(modules)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find one of the modules as its source."""
        del path, target
        if fullname not in self._modules:
            return None
        return importlib.util.spec_from_file_location(fullname, source_of(fullname))
