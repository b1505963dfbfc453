"""Compiles a package's modules in place with mypyc: `python -m PACKAGE.build`.

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

from topics.compiled_modules import ROOT, CompiledModules, compiled_of, source_of

# mypyc takes half a minute here; a machine that needs longer than this is stuck.
BUILD_TIMEOUT_S = 900

# Functions of the one library call each other directly, and small ones are inlined; without this
# the linker lets others take their place, and the decoder needs an eighth more time.
_C_FLAGS = "-fvisibility=hidden -fno-semantic-interposition -fno-plt"

_SETUP = """
from mypyc.build import mypycify
from setuptools import setup
sources = {sources!r}
setup(
    name={library!r},
    packages=[],
    ext_modules=mypycify(
        {flags!r} + sources, group_name={library!r}, opt_level="3", target_dir={target!r}
    ),
)
"""


def clean(group: CompiledModules) -> None:
    """Remove everything that a build leaves."""
    for module in group.modules:
        compiled_of(module).unlink(missing_ok=True)
    group.library_file.unlink(missing_ok=True)
    group.record.unlink(missing_ok=True)


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


def build(group: CompiledModules, report: str = "") -> None:
    """Compile all modules in place; `report` names an HTML file for mypyc's notes on slow spots."""
    started_from = group.source_hash()
    clean(group)
    flags = ["--strict", "--config-file=", *group.mypy_flags]
    if report:
        flags += ["-a", str(Path(report).resolve())]
    with tempfile.TemporaryDirectory(prefix="shardstream-build-") as folder:
        script = Path(folder, "setup.py")
        script.write_text(
            _SETUP.format(
                sources=[str(source_of(module).relative_to(ROOT)) for module in group.modules],
                library=group.library,
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
    group.record.write_text(json.dumps({"source_hash": started_from}) + "\n")


def main(group: CompiledModules, arguments: list[str]) -> int:
    """Build, or clean; say in one line what happened. Gives the exit status."""
    title = f"shardstream {group.title}"
    if arguments == ["--clean"]:
        clean(group)
        sys.stdout.write(f"{title}: compiled modules removed\n")
        return 0
    report = arguments[1] if len(arguments) == 2 and arguments[0] == "--report" else ""
    if arguments and not report:
        usage = f"usage: python -m {group.package}.build [--clean | --report FILE.html]\n"
        sys.stderr.write(usage)
        return 2
    if group.is_up_to_date and not report:
        sys.stdout.write(f"{title}: compiled modules are up to date\n")
        return 0
    lacking = missing_tool()
    if lacking:
        if group.has_any:
            clean(group)
        sys.stdout.write(f"{title}: not compiled, {lacking}; it runs uncompiled, more slowly\n")
        return 0
    build(group, report)
    sys.stdout.write(f"{title}: {len(group.modules)} modules compiled\n")
    return 0
