"""The compiled decoder and its plain sources produce the same bytes."""

import pickle
from pathlib import Path

import pytest

from tests.database_servers import DatabaseFixture
from tests.plain_copy import copy_plain, run_python
from tests.producers.decoder.capture import capture, executed_set
from tests.producers.decoder.workload import run_workload
from tests.repository import ROOT

ROWS = 60

_DECODE = """
import pickle, sys
from event_token.compiled import IS_COMPILED
from tests.producers.decoder.decoding import decode
from event_token import Flavor
flavor, before, stream = pickle.load(open(sys.argv[1], "rb"))
sink, summary = decode(stream, Flavor(flavor), before)
import producers.decoder.decoder, event_token.running_set
files = [producers.decoder.decoder.__file__, event_token.running_set.__file__]
pickle.dump((IS_COMPILED, files, sink.messages, summary), open(sys.argv[2], "wb"))
"""


@pytest.fixture(scope="module")
def plain_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this checkout without compiled modules."""
    return copy_plain(tmp_path_factory.mktemp("plain"))


def decoded(
    root: Path, tmp_path: Path, given: tuple[str, str, bytes]
) -> tuple[bool, list[str], list[object], object]:
    """Decode `given` with the packages in `root`: is compiled, module files, messages, summary."""
    source, result = tmp_path / "stream", tmp_path / "result"
    source.write_bytes(pickle.dumps(given))
    done = run_python(root, "-c", _DECODE, str(source), str(result))
    assert done.returncode == 0, done.stderr
    found: tuple[bool, list[str], list[object], object] = pickle.loads(  # noqa: S301 - ours
        result.read_bytes()
    )
    return found


def test_both_forms_give_the_same_bytes(
    plain_root: Path, database: DatabaseFixture, tmp_path: Path
) -> None:
    """All column types, random rows: both forms encode every message identically."""
    before = executed_set(database)
    run_workload(database, database.new_database(), ROWS, seed=4)
    given = (database.flavor.value, before, capture(database, before))

    is_compiled, files, messages, summary = decoded(ROOT, tmp_path, given)
    is_compiled_plain, plain_files, plain_messages, plain_summary = decoded(
        plain_root, tmp_path, given
    )

    assert is_compiled, "run `make build` first"
    assert not is_compiled_plain
    assert all(path.endswith(".so") for path in files)
    assert all(path.endswith(".py") for path in plain_files)
    assert messages == plain_messages
    assert summary == plain_summary
    assert len(messages) > ROWS
