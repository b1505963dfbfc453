"""The wheel, built from the source distribution: its content, and its use without a checkout."""

import json
import pickle
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import typer.main

import setup
from event_token import Flavor
from shardstream.commands.app import app
from tests.packaging.environment import BUILD_S_MAX, Installation, checked, link_distributions
from tests.producers.decoder.decoding import decode
from tests.repository import PACKAGES, ROOT

FOLDERS = tuple(f"{name}/" for name in PACKAGES)
FILES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")
# Recorded from MySQL 9.7 with tests.producers.decoder.capture; all column types of the workload.
RECORDED = Path(__file__).parent / "recorded"

_DECODE = """
import pickle, sys
from event_token import Flavor
from event_token.compiled import IS_COMPILED
from tests.producers.decoder.decoding import decode
import producers
sink, summary = decode(open(sys.argv[1], "rb").read(), Flavor.MYSQL, "")
messages = [message.value for message in sink.messages]
pickle.dump((IS_COMPILED, producers.__file__, messages), open(sys.argv[2], "wb"))
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout without anything built."""
    folder = tmp_path_factory.mktemp("source")
    built = shutil.ignore_patterns("*.so", "__pycache__")
    for name in (*PACKAGES, "tests", "benchmarks", "examples"):
        shutil.copytree(ROOT / name, folder / name, ignore=built)
    for name in FILES:
        shutil.copy(ROOT / name, folder)
    return folder


@pytest.fixture(scope="module")
def sdist(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution."""
    folder = tmp_path_factory.mktemp("sdist")
    build = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    checked(sys.executable, "-c", build, folder, cwd=source)
    [found] = folder.iterdir()
    return found


def pip_wheel(sdist: Path, folder: Path) -> list[object]:
    """The command that builds a wheel with the build tools of this environment."""
    offline = ("--no-deps", "--no-index", "--no-build-isolation", "--no-cache-dir")
    return [sys.executable, "-m", "pip", "wheel", *offline, "--wheel-dir", folder, sdist]


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C compiler without optimisation, which takes most of a build and is not tested here."""
    found = tmp_path_factory.mktemp("compiler") / "cc"
    found.write_text('#!/bin/sh\nexec cc "$@" -O0\n')
    found.chmod(0o755)
    return found


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel in plain Python, whose build takes seconds."""
    folder = tmp_path_factory.mktemp("wheel")
    checked(*pip_wheel(sdist, folder), cwd=folder, SHARDSTREAM_PURE_PYTHON="1")
    [found] = folder.iterdir()
    return found


@pytest.fixture(scope="module")
def compiled_wheel(sdist: Path, compiler: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel for this platform."""
    folder = tmp_path_factory.mktemp("compiled_wheel")
    checked(*pip_wheel(sdist, folder), cwd=folder, CC=str(compiler))
    [found] = folder.iterdir()
    return found


@pytest.fixture(scope="module")
def installation(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """The wheel with what it declares to need, without any extra."""
    return Installation(tmp_path_factory.mktemp("installed"), wheel)


def test_the_source_distribution_holds_what_a_build_needs(sdist: Path) -> None:
    """All sources of the packages and setup.py; no tests, examples or compiled files."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    sources = {str(p.relative_to(ROOT)) for name in PACKAGES for p in (ROOT / name).rglob("*.py")}

    assert sources | {"setup.py", "pyproject.toml", "LICENSE"} <= names
    others = ("tests", "benchmarks", "examples")
    assert not [n for n in names if n.startswith(others) or n.endswith(".so")]


@pytest.mark.full
def test_the_wheel_holds_compiled_modules_and_types(compiled_wheel: Path) -> None:
    """Every compiled module beside its source, the libraries, py.typed in each package."""
    with ZipFile(compiled_wheel) as archive:
        names = set(archive.namelist())
    compiled = {name.partition(".")[0] for name in names if name.endswith(".so")}
    expected = {source.removesuffix(".py") for lib in setup.LIBRARIES for source in lib.sources()}

    assert compiled == expected | {f"{library.name}__mypyc" for library in setup.LIBRARIES}
    assert {f"{package}/py.typed" for package in PACKAGES} <= names
    tops = {name.partition("/")[0] for name in names}
    info = {top for top in tops if top.endswith(".dist-info")}
    assert tops - info - {name for name in names if name.endswith(".so")} == set(PACKAGES)


def test_the_wheel_holds_every_file_that_is_no_module(source: Path, wheel: Path) -> None:
    """Data files of the packages, such as the demo's statements, are there without a checkout."""
    files = {p for name in PACKAGES for p in (source / name).rglob("*") if p.is_file()}
    expected = {p.relative_to(source).as_posix() for p in files if p.suffix != ".py"}
    with ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if name.startswith(FOLDERS)}

    assert "shardstream/demo/shop.sql" in expected
    assert {name for name in names if not name.endswith((".py", ".so"))} == expected


@pytest.mark.full
def test_the_installed_decoder_is_compiled_and_decodes(
    compiled_wheel: Path, tmp_path: Path
) -> None:
    """A recorded binlog gives the same records as in the checkout; `version` says "compiled"."""
    installation = Installation(tmp_path / "installed", compiled_wheel)
    stream = RECORDED / "stream.bin"
    expected, _ = decode(stream.read_bytes(), Flavor.MYSQL, "")
    support, result = tmp_path / "support", tmp_path / "result"
    link_distributions(["pytest"], support)
    shutil.copytree(ROOT / "tests", support / "tests")

    done = installation.run(
        *("-c", _DECODE, stream, result), program="python", PYTHONPATH=str(support)
    )

    assert done.returncode == 0, done.stderr
    is_compiled, producers_file, messages = pickle.loads(result.read_bytes())  # noqa: S301 - ours
    assert is_compiled
    assert Path(producers_file).is_relative_to(installation.site)
    assert messages == [message.value for message in expected.messages]
    assert len(messages) > 5
    assert installation.run("version").stdout.strip().endswith("(compiled)")


def test_help_needs_no_extra(installation: Installation) -> None:
    """Whoever installed a producer alone can list the commands, and the options of each."""
    for command in ((), ("state",), ("database",), ("table-topics",)):
        done = installation.run(*command, "--help")

        assert done.returncode == 0, done.stderr
        assert "Usage: shardstream" in done.stdout


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[list[str]]:
    """Yield every command with a value for each parameter that it must have."""
    if hasattr(command, "commands"):
        for name, inner in command.commands.items():
            yield from commands(inner, (*path, name))
        return
    required = [parameter for parameter in command.params if parameter.required]
    options = [(p.opts[0], "1") for p in required if p.param_type_name == "option"]
    arguments = ["commerce" for p in required if p.param_type_name == "argument"]
    yield [*path, *(text for option in options for text in option), *arguments]


COMMANDS = list(commands(typer.main.get_command(app)))
NEED_SPARK = (
    *("changelog", "database", "demo", "local fetch", "local up", "query", "state"),
    "table-topics",
)


# Each in a process of its own, forked from one that has imported what all of them import.
_RUN_EACH = """
import json, os, sys
from tempfile import TemporaryFile
import shardstream.commands.app
ended = []
for command in json.loads(sys.argv[1]):
    with TemporaryFile() as out, TemporaryFile() as err:
        if (pid := os.fork()) == 0:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            sys.argv[1:] = command
            from shardstream.__main__ import main
            main()
            sys.exit()
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        said = [file.read().decode() for file in (out, err) if not file.seek(0)]
        ended.append((status, *said))
print(json.dumps(ended))
"""


@pytest.mark.full
def test_every_command_runs_without_extras(installation: Installation, tmp_path: Path) -> None:
    """A command that needs an extra ends in one line that names it; none shows a traceback."""
    arguments = ("-c", _RUN_EACH, json.dumps(COMMANDS))
    done = installation.run(*arguments, program="python", SHARDSTREAM_CACHE=str(tmp_path))

    assert done.returncode == 0, done.stderr
    for command, (status, out, err) in zip(COMMANDS, json.loads(done.stdout), strict=True):
        assert "Traceback" not in err, command
        assert "No module named" not in err, command
        if " ".join(command).startswith(NEED_SPARK):
            [line] = err.splitlines()
            assert status == 2, command
            # These need two extras, and name the first that is missing.
            extra = "database" if command[:2] in (["demo"], ["database", "run"]) else "spark"
            assert f"shardstream[{extra}]" in line
        elif command == ["serve"]:
            assert status == 2
            assert "shardstream[serve]" in err
        else:
            assert "[spark]" not in err + out, command


@pytest.mark.full
def test_without_a_compiler_the_build_names_the_switch(sdist: Path, tmp_path: Path) -> None:
    """A build that cannot compile fails with one sentence; the switch it names builds plain."""
    refused = subprocess.run(
        list(map(str, pip_wheel(sdist, tmp_path))),
        env={"CC": "no-such-compiler", "PATH": "/usr/bin:/bin"},
        check=False,
        capture_output=True,
        text=True,
        timeout=BUILD_S_MAX,
    )
    checked(
        *pip_wheel(sdist, tmp_path),
        cwd=tmp_path,
        CC="no-such-compiler",
        SHARDSTREAM_PURE_PYTHON="1",
    )

    assert refused.returncode != 0
    said = refused.stdout + refused.stderr
    assert "cannot compile the hot path: no C compiler (no-such-compiler)" in said
    assert "SHARDSTREAM_PURE_PYTHON=1" in said
    assert "Traceback" not in said
    [built] = tmp_path.glob("*.whl")
    assert built.name.endswith("-py3-none-any.whl")
    with ZipFile(built) as archive:
        assert not [name for name in archive.namelist() if name.endswith(".so")]
