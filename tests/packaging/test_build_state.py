"""Compiled modules that do not match their sources are noticed: by make, and by pytest."""

import importlib.machinery
from pathlib import Path

import pytest

import setup
from tests.plain_copy import copy_plain, run_python

SUFFIX = importlib.machinery.EXTENSION_SUFFIXES[0]
_IS_CURRENT = "import setup; print(setup.is_compiled_current())"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout that looks as a build leaves it: a file per module, and the stamp.

    Tests leave it so.
    """
    root = copy_plain(tmp_path_factory.mktemp("built"))
    for library in setup.LIBRARIES:
        (root / f"{library.name}__mypyc{SUFFIX}").touch()
        for source in library.sources():
            (root / source).with_suffix(SUFFIX).touch()
    (root / "build").mkdir()
    digest = run_python(root, "-c", "import setup; print(setup.source_digest(), end='')").stdout
    (root / "build" / setup.STAMP.name).write_text(digest)
    return root


def is_current(root: Path) -> bool:
    """Ask the setup.py of a copy."""
    return run_python(root, "-c", _IS_CURRENT).stdout.strip() == "True"


def test_a_build_is_current_until_a_source_changes(built: Path) -> None:
    """`make build` has nothing to do after a build, and everything after an edit."""
    source = built / setup.LIBRARIES[0].sources()[0]
    text = source.read_text()
    before = is_current(built)
    source.write_text(f"{text}\n# edited\n")
    after = is_current(built)
    source.write_text(text)

    assert before
    assert not after


@pytest.mark.parametrize("missing", ["library", "module"])
def test_a_build_that_lacks_a_file_is_not_current(built: Path, missing: str) -> None:
    """A module without its library could not be imported, nor the other way round."""
    pattern = f"*__mypyc{SUFFIX}" if missing == "library" else f"topics/records/*{SUFFIX}"
    lacking = next(built.glob(pattern))
    lacking.unlink()
    found = is_current(built)
    lacking.touch()

    assert not found


def test_a_module_that_moved_away_is_noticed(built: Path) -> None:
    """The compiled file of a module that is gone could still be imported."""
    gone = built / "topics" / f"gone{SUFFIX}"
    gone.touch()
    found = is_current(built)
    gone.unlink()

    assert not found
    assert is_current(built)


def test_pytest_refuses_a_stale_build(built: Path) -> None:
    """An edited source beside its old compiled form stops pytest with the command to run."""
    stamp = built / "build" / setup.STAMP.name
    digest = stamp.read_text()
    stamp.write_text("of other sources")

    done = run_python(built, "-m", "pytest", "-p", "no:cacheprovider", "tests/test_layout.py")
    stamp.write_text(digest)

    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "run `make build`" in done.stderr
    assert "Traceback" not in done.stderr
