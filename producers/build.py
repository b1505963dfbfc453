"""Compile the decoder in place: `python -m producers.build`; `--clean` removes what was compiled.

It leaves alone what is up to date. Without a C compiler or mypyc it says so and ends well: the
same sources run uncompiled, more slowly.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from producers.compiled import (
    BUILD_RECORD,
    MODULES,
    ROOT,
    compiled_of,
    has_compiled_modules,
    recorded_hash,
    source_hash,
    source_of,
)

# mypyc takes half a minute here; a machine that needs longer than this is stuck.
BUILD_TIMEOUT_S = 900
# Names the one library that holds the code of all modules.
GROUP_NAME = "shardstream_decoder"

# Functions of the one library call each other directly, and small ones are inlined; without this
# the linker lets others take their place, and the decoder needs an eighth more time.
_C_FLAGS = "-fvisibility=hidden -fno-semantic-interposition -fno-plt"

_SETUP = """
import sys
from mypyc.build import mypycify
from setuptools import setup
sources = {sources!r}
setup(
    name={group!r},
    packages=[],
    ext_modules=mypycify(
        {flags!r} + sources, group_name={group!r}, opt_level="3", target_dir={target!r}
    ),
)
"""


def clean() -> None:
    """Remove everything that a build leaves."""
    suffix = compiled_of(MODULES[0]).name.partition(".")[2]
    for module in MODULES:
        compiled_of(module).unlink(missing_ok=True)
    (ROOT / f"{GROUP_NAME}__mypyc.{suffix}").unlink(missing_ok=True)
    BUILD_RECORD.unlink(missing_ok=True)


def is_up_to_date() -> bool:
    """Whether all compiled modules are there and fit their sources."""
    has_all = all(compiled_of(module).exists() for module in MODULES)
    return has_all and recorded_hash() == source_hash()


def missing_tool() -> str:
    """What a build needs and this machine lacks, "" when all is there."""
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return f"no C compiler ({compiler})"
    include = sysconfig.get_path("include")
    if not Path(include, "Python.h").exists():
        return f"no Python headers ({include}/Python.h)"
    check = subprocess.run(
        [sys.executable, "-c", "import mypyc.build, setuptools"], check=False, capture_output=True
    )
    return "no mypyc (pip install mypy setuptools)" if check.returncode else ""


def build(report: str = "") -> None:
    """Compile all modules in place; `report` names an HTML file for mypyc's notes on slow spots."""
    started_from = source_hash()
    clean()
    flags = ["--strict", "--config-file="]
    if report:
        flags += ["-a", str(Path(report).resolve())]
    with tempfile.TemporaryDirectory(prefix="shardstream-build-") as folder:
        script = Path(folder, "setup.py")
        script.write_text(
            _SETUP.format(
                sources=[str(source_of(module).relative_to(ROOT)) for module in MODULES],
                group=GROUP_NAME,
                target=str(Path(folder, "c")),
                flags=flags,
            )
        )
        subprocess.run(
            [
                *(sys.executable, str(script), "-q", "build_ext", "--inplace"),
                *("--build-temp", str(Path(folder, "objects"))),
            ],
            cwd=ROOT,
            check=True,
            timeout=BUILD_TIMEOUT_S,
            env={
                **os.environ,
                "MYPYPATH": str(ROOT),
                "PYTHONPATH": str(ROOT),
                "CFLAGS": f"{os.environ.get('CFLAGS', '')} {_C_FLAGS}".strip(),
            },
        )
    BUILD_RECORD.write_text(json.dumps({"source_hash": started_from}) + "\n")


def main(arguments: list[str]) -> int:
    """Build, or clean; say in one line what happened."""
    if arguments == ["--clean"]:
        clean()
        sys.stdout.write("shardstream decoder: compiled modules removed\n")
        return 0
    report = arguments[1] if len(arguments) == 2 and arguments[0] == "--report" else ""
    if arguments and not report:
        sys.stderr.write("usage: python -m producers.build [--clean | --report FILE.html]\n")
        return 2
    if is_up_to_date() and not report:
        sys.stdout.write("shardstream decoder: compiled modules are up to date\n")
        return 0
    lacking = missing_tool()
    if lacking:
        if has_compiled_modules():
            clean()
        sys.stdout.write(
            f"shardstream decoder: not compiled, {lacking}; it runs uncompiled, more slowly\n"
        )
        return 0
    build(report)
    sys.stdout.write(f"shardstream decoder: {len(MODULES)} modules compiled\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
