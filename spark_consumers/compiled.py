"""Which of this package's modules are compiled, and whether they fit their sources.

A stale compiled module beside an edited source is the classic accident: the build records the
hash of the sources, and loading compares. The same as `producers.compiled`, for this package:
neither of the two may need the other. Imports nothing of the project, for it decides before the
first compiled module is imported.
"""

import hashlib
import importlib.machinery
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]
BUILD_RECORD = Path(__file__).with_name("compiled.json")
# Set to "1": the plain modules are loaded though compiled ones are there (tests compare both).
PLAIN_VARIABLE = "SHARDSTREAM_PLAIN_DECODER"

_NAMES = (
    "wire",
    "builders",
    "text",
    "typed",
    "json_values",
    "images",
    "key_range",
    "hop_filter",
    "envelope_text",
    "envelope_columns",
    "records",
)
MODULES = tuple(f"spark_consumers.row_columns.{name}" for name in _NAMES)


def source_of(module: str) -> Path:
    """The source file of a module."""
    return ROOT.joinpath(*module.split(".")).with_suffix(".py")


def compiled_of(module: str) -> Path:
    """Where the compiled form of a module for this interpreter lies, if there is one."""
    source = source_of(module)
    return source.with_name(source.stem + importlib.machinery.EXTENSION_SUFFIXES[0])


def source_hash() -> str:
    """One hash over the sources of all compiled modules."""
    digest = hashlib.sha256()
    for module in MODULES:
        digest.update(module.encode() + b"\0" + source_of(module).read_bytes() + b"\0")
    return digest.hexdigest()


def has_compiled_modules() -> bool:
    """Whether any compiled module lies beside its source."""
    return any(compiled_of(module).exists() for module in MODULES)


def recorded_hash() -> str:
    """The hash of the sources that the compiled modules were built from, "" for none."""
    if not BUILD_RECORD.exists():
        return ""
    return str(json.loads(BUILD_RECORD.read_text()).get("source_hash", ""))


class PlainFinder(MetaPathFinder):
    """Finds the sources of the modules that are compiled, and nothing else."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find one of the modules as its source."""
        del path, target
        if fullname not in MODULES:
            return None
        return importlib.util.spec_from_file_location(fullname, source_of(fullname))


def _is_plain_wanted() -> bool:
    if os.environ.get(PLAIN_VARIABLE) != "1":
        return False
    sys.meta_path.insert(0, PlainFinder())
    return True


COMPILED = not _is_plain_wanted() and has_compiled_modules()
STALE = COMPILED and recorded_hash() != source_hash()
