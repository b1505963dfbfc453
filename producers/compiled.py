"""Which modules are compiled, from what, and whether what is loaded fits its source.

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
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]
BUILD_RECORD = Path(__file__).with_name("compiled.json")
# Set to "1": the plain modules are loaded though compiled ones are there (tests compare both).
PLAIN_VARIABLE = "SHARDSTREAM_PLAIN_DECODER"

MODULES = (
    "event_token.running_set",
    "producers.decoder.wire",
    "producers.decoder.checksum",
    "producers.decoder.key_watch",
    "producers.decoder.plan",
    "producers.decoder.legacy_charsets",
    "producers.decoder.charset",
    "producers.decoder.column_types",
    "producers.decoder.table_map",
    "producers.decoder.temporal",
    "producers.decoder.decimals",
    "producers.decoder.json_binary",
    "producers.decoder.raw_values",
    "producers.decoder.sharding",
    "producers.decoder.records",
    "producers.decoder.row_values",
    "producers.decoder.filtered_rows",
    "producers.decoder.query_events",
    "producers.decoder.gtid_events",
    "producers.decoder.event_types",
    "producers.decoder.format_event",
    "producers.decoder.internal_tables",
    "producers.decoder.mariadb_compression",
    "producers.decoder.stream_clock",
    "producers.decoder.tables",
    "producers.decoder.payload",
    "producers.decoder.prepared",
    "producers.decoder.json_diff",
    "producers.decoder.partial_rows",
    "producers.decoder.transactions",
    "producers.decoder.events",
    "producers.decoder.copied_rows",
    "producers.decoder.decoder",
    "producers.copy.binary_rows",
)


def source_of(module: str) -> Path:
    """The source file of a module."""
    return ROOT.joinpath(*module.split(".")).with_suffix(".py")


def compiled_of(module: str) -> Path:
    """Where the compiled form of a module for this interpreter lies, if there is one."""
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    source = source_of(module)
    return source.with_name(source.stem + suffix)


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
