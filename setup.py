"""Compile the hot path with mypyc: every build of the package comes through here.

`pip install .`, `pip wheel .`, `pip install -e .` and `make build` all run this file; the rest of
the packaging is declared in pyproject.toml. SHARDSTREAM_PURE_PYTHON=1 skips the compilation.
"""

import hashlib
import importlib.machinery
import importlib.util
import os
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from setuptools import Extension, setup

ROOT = Path(__file__).resolve().parent
PURE_PYTHON_VARIABLE = "SHARDSTREAM_PURE_PYTHON"
# mypyc runs for a minute, so only the commands that need its output run it: not metadata or sdist.
COMPILING_COMMANDS = {"build", "build_ext", "bdist_wheel", "editable_wheel"}
# Digest of the sources that the modules compiled in place were built from.
STAMP = ROOT / "build" / "compiled-sources.sha256"
# Let calls inside a library bind directly and be inlined: the decoder is an eighth faster for it.
C_FLAGS = ["-fvisibility=hidden", "-fno-semantic-interposition", "-fno-plt"]
MYPY_FLAGS = ["--strict", "--config-file=", "--follow-imports=silent", "--ignore-missing-imports"]
# Modules that only declare exceptions, values and re-exports gain nothing from compilation.
PLAIN_NAMES = {"__init__.py", "batch.py", "errors.py", "options.py"}


@dataclass(frozen=True)
class Library:
    """Modules compiled into one shared library, within which calls are plain C calls."""

    name: str
    patterns: tuple[str, ...]

    def sources(self) -> list[str]:
        """Return the source files, relative to the root."""
        found: list[str] = []
        for pattern in self.patterns:
            paths = [path for path in sorted(ROOT.glob(pattern)) if path.name not in PLAIN_NAMES]
            if not paths:
                raise SystemExit(f"setup.py: no module to compile matches {pattern}")
            found += [path.relative_to(ROOT).as_posix() for path in paths]
        return found


LIBRARIES = (
    Library(
        "shardstream_decoder",
        (
            "databases/statements.py",
            "event_token/running_set.py",
            "producers/copy/binary_rows.py",
            "producers/decoder/**/*.py",
        ),
    ),
    # Spark's row loop and the messages of table topics call the cursor of topics.records, so the
    # three share a library.
    Library(
        "shardstream_records",
        (
            "topics/records/cursor.py",
            "topics/records/envelope.py",
            "topics/records/event_decoder.py",
            "topics/records/values.py",
            "topics/arrow/columns/**/*.py",
            "sinks/table_topics/envelope/*_writer*.py",
        ),
    ),
    Library(
        "shardstream_applier",
        (
            "resharding/routing.py",
            "resharding/apply/last_changes.py",
            "resharding/apply/literals.py",
            "resharding/apply/statements.py",
        ),
    ),
)


def source_digest() -> str:
    """Return one digest of this file and of every source that it compiles."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for library in LIBRARIES:
        for source in library.sources():
            digest.update(source.encode() + b"\0" + (ROOT / source).read_bytes() + b"\0")
    return digest.hexdigest()


def compiled_in_place() -> list[Path]:
    """Return every compiled file that lies beside the sources of this checkout."""
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    libraries = [path for lib in LIBRARIES for path in ROOT.glob(f"{lib.name}__mypyc*{suffix}")]
    packages = {pattern.partition("/")[0] for lib in LIBRARIES for pattern in lib.patterns}
    modules = [path for package in packages for path in (ROOT / package).rglob(f"*{suffix}")]
    return libraries + modules


def is_compiled_current() -> bool:
    """Tell whether all modules are compiled in place, from the sources as they are now."""
    expected = len(LIBRARIES) + sum(len(library.sources()) for library in LIBRARIES)
    has_all = len(compiled_in_place()) == expected
    return has_all and STAMP.exists() and STAMP.read_text() == source_digest()


def require_compiler() -> None:
    """Exit with one message unless this machine can compile."""
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    header = Path(sysconfig.get_path("include"), "Python.h")
    if shutil.which(compiler) is None:
        missing = f"no C compiler ({compiler})"
    elif not header.exists():
        missing = f"no Python headers ({header})"
    elif importlib.util.find_spec("mypyc") is None:
        missing = "no mypyc (pip install mypy)"
    else:
        return
    raise SystemExit(
        f"shardstream: cannot compile the hot path: {missing}. Install it, or set "
        f"{PURE_PYTHON_VARIABLE}=1 to build plain Python, which is many times slower."
    )


def extensions() -> list[Extension]:
    """Translate all libraries to C and describe how to compile them."""
    require_compiler()
    from mypyc.build import mypycify  # noqa: PLC0415 - only a build that compiles needs it

    found: list[Extension] = []
    for library in LIBRARIES:
        found += mypycify(
            [*MYPY_FLAGS, *library.sources()],
            group_name=library.name,
            opt_level="3",
            debug_level="0",
            target_dir=f"build/mypyc/{library.name}",
        )
    for extension in found:
        extension.extra_compile_args += C_FLAGS
    return found


def main() -> None:
    """Run setuptools, with compiled modules where the command and the environment ask for them."""
    is_compiling = bool(COMPILING_COMMANDS & set(sys.argv))
    is_in_place = "editable_wheel" in sys.argv or "--inplace" in sys.argv
    is_pure = os.environ.get(PURE_PYTHON_VARIABLE) == "1"
    if not is_compiling or (is_in_place and not is_pure and is_compiled_current()):
        setup()
        return
    if is_in_place:
        for path in compiled_in_place():
            path.unlink()
    if is_pure:
        setup()
        return
    digest = source_digest()
    setup(ext_modules=extensions(), options={"build_ext": {"parallel": True}})
    if is_in_place:
        STAMP.parent.mkdir(exist_ok=True)
        STAMP.write_text(digest)


if __name__ == "__main__":
    main()
