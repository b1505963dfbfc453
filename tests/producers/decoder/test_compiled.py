"""The compiled decoder and its source give the same bytes; a stale build is refused."""

import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from producers.compiled import GROUP
from tests.database_servers import DatabaseFixture
from tests.producers.decoder.capture import capture, executed_set
from tests.producers.decoder.workload import run_workload
from topics.compiled import GROUP as READING
from topics.compiled_modules import PLAIN_VARIABLE, RECORD_NAME, CompiledModules
from topics.compiling import missing_tool

ROOT = Path(__file__).resolve().parents[3]
ROWS = 60
# What a build leaves.
BUILT = shutil.ignore_patterns("*.so", RECORD_NAME)

_DECODE = """
import pickle, sys
from producers.compiled import COMPILED
from tests.producers.decoder.decoding import decode
from event_token import Flavor
flavor, before, stream = pickle.load(open(sys.argv[1], "rb"))
sink, summary = decode(stream, Flavor(flavor), before)
import producers.decoder.decoder, event_token.running_set
files = [producers.decoder.decoder.__file__, event_token.running_set.__file__]
pickle.dump((COMPILED, files, sink.messages, summary), open(sys.argv[2], "wb"))
"""


@pytest.fixture(scope="module")
def compiled_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the packages with compiled modules, so that nobody's own are touched."""
    if lacking := missing_tool():
        pytest.fail(f"the tests need a compiler: {lacking}")
    root = tmp_path_factory.mktemp("compiled")
    for package in (
        "event_token",
        "topics",
        "producers",
        "spark_consumers",
        "shardstream",
        "tests",
    ):
        shutil.copytree(ROOT / package, root / package, ignore=BUILT)
    python(root, "-m", "producers.build")
    return root


def python(root: Path, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run Python on the packages of `root`."""
    plain = {k: v for k, v in os.environ.items() if k != PLAIN_VARIABLE}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=root,
        env={**plain, "PYTHONPATH": str(root), **environment},
        check=True,
        capture_output=True,
        text=True,
        timeout=600,
    )


def decoded(root: Path, tmp_path: Path, given: tuple[str, str, bytes], plain: str) -> tuple:  # type: ignore[type-arg]
    source, result = tmp_path / "stream", tmp_path / "result"
    source.write_bytes(pickle.dumps(given))
    python(root, "-c", _DECODE, str(source), str(result), **{PLAIN_VARIABLE: plain})
    found: tuple[object, ...] = pickle.loads(result.read_bytes())  # noqa: S301 - written just now
    return found


def test_both_forms_give_the_same_bytes(
    compiled_tree: Path, database: DatabaseFixture, tmp_path: Path
) -> None:
    """All column types, random rows: every message of the compiled modules equals the source's."""
    before = executed_set(database)
    run_workload(database, database.new_database(), ROWS, seed=4)
    given = (database.flavor.value, before, capture(database, before))

    is_compiled, files, messages, summary = decoded(compiled_tree, tmp_path, given, "0")
    is_compiled_too, plain_files, plain_messages, plain_summary = decoded(
        compiled_tree, tmp_path, given, "1"
    )

    assert is_compiled
    assert not is_compiled_too
    assert all(str(path).endswith(".so") for path in files)
    assert all(str(path).endswith(".py") for path in plain_files)
    assert messages == plain_messages
    assert summary == plain_summary
    assert len(messages) > ROWS


@pytest.fixture
def edited_source(compiled_tree: Path) -> Iterator[Path]:
    path = compiled_tree / "producers" / "decoder" / "wire.py"
    text = path.read_text()
    path.write_text(text + "\n# edited\n")
    yield path
    path.write_text(text)


def test_a_stale_build_is_refused(compiled_tree: Path, edited_source: Path) -> None:
    """An edited source beside its old compiled form is an error that names the command."""
    with pytest.raises(subprocess.CalledProcessError) as caught:
        python(compiled_tree, "-c", "import producers.decoder")

    assert edited_source.exists()
    assert "StaleBuild" in caught.value.stderr
    assert "python -m producers.build" in caught.value.stderr


def test_a_build_that_fits_is_left_alone(compiled_tree: Path) -> None:
    """Building again without an edit does nothing and says so."""
    assert "up to date" in python(compiled_tree, "-m", "producers.build").stdout


def test_a_build_without_its_library_does_not_fit(compiled_tree: Path) -> None:
    """The modules' files alone are not enough: nothing could be imported."""
    [library] = compiled_tree.glob(f"{GROUP.library}__mypyc*")
    script = "from producers.compiled import GROUP; print(GROUP.is_up_to_date)"
    away = library.rename(library.with_suffix(".away"))
    without = python(compiled_tree, "-c", script).stdout
    away.rename(library)

    assert without.strip() == "False"
    assert python(compiled_tree, "-c", script).stdout.strip() == "True"


def test_without_a_compiler_the_build_says_so_and_ends_well(compiled_tree: Path) -> None:
    """No compiler: one clear line, exit status 0, and the sources run."""
    copy = compiled_tree / "without"
    for package in ("event_token", "topics", "producers", "spark_consumers"):
        shutil.copytree(compiled_tree / package, copy / package, ignore=BUILT)
    said = python(copy, "-m", "producers.build", CC="no-such-compiler").stdout
    loaded = python(copy, "-c", "from producers.decoder import COMPILED; print(COMPILED)").stdout

    assert "no C compiler (no-such-compiler)" in said
    assert loaded.strip() == "False"


def test_the_record_of_a_build_names_its_sources(compiled_tree: Path) -> None:
    """The hash beside the compiled modules is that of the sources they were built from."""
    record = json.loads((compiled_tree / "producers" / RECORD_NAME).read_text())
    script = "from producers.compiled import GROUP; print(GROUP.source_hash())"

    assert python(compiled_tree, "-c", script).stdout.strip() == record["source_hash"]


@pytest.mark.parametrize(
    ("group", "package", "plain"),
    [
        (GROUP, "producers.decoder", {"__init__", "batch", "build_check", "errors"}),
        (READING, "topics.records", {"__init__"}),
        (READING, "spark_consumers.row_columns", {"__init__"}),
    ],
)
def test_every_module_is_compiled_or_plain_on_purpose(
    group: CompiledModules, package: str, plain: set[str]
) -> None:
    """A new module of a compiled package must be listed for the build, or here."""
    modules = {path.stem for path in ROOT.joinpath(*package.split(".")).glob("*.py")}
    listed = {module.rpartition(".")[2] for module in group.modules if module.startswith(package)}

    assert modules - plain == listed
