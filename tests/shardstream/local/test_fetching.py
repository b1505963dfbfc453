"""The cache: an entry is complete or absent, and made once."""

import subprocess
import sys
from pathlib import Path

import pytest

from event_token import Halt, Retry
from shardstream.local import fetching

# Prints one line a process that really made the entry.
MAKER = """
import sys, time
from pathlib import Path
from shardstream.local.fetching import cached

def make(folder):
    print("made", flush=True)
    (folder / "first").touch()
    deadline = time.monotonic() + 120
    # Until the other process has come as far as the lock.
    while not Path(sys.argv[1]).exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    (folder / "second").touch()

entry = cached("thing", make, report=lambda message: Path(sys.argv[1]).touch())
assert sorted(path.name for path in entry.iterdir()) == ["first", "second"]
"""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDSTREAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(fetching, "FETCH_PAUSE_S", 0.0)


def test_two_processes_make_an_entry_once(tmp_path: Path) -> None:
    """The second process waits for the first and sees a complete entry."""
    command = [sys.executable, "-c", MAKER, str(tmp_path / "waiting")]
    root = Path(__file__).parents[4]
    both = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) for _ in range(2)
    ]

    said = [process.communicate(timeout=240)[0] for process in both]

    assert [process.returncode for process in both] == [0, 0]
    assert sorted(said) == ["", "made\n"]


def test_passing_fault_is_tried_again() -> None:
    """What an attempt brought is still there for the next."""
    seen: list[list[str]] = []

    def make(folder: Path) -> None:
        seen.append([path.name for path in folder.iterdir()])
        (folder / "part").touch()
        if len(seen) < fetching.FETCH_ATTEMPTS_MAX:
            raise Retry("the line is down")

    entry = fetching.cached("thing", make)

    assert seen == [[], ["part"], ["part"]]
    assert (entry / "part").exists()


def test_attempts_are_bounded_and_leave_nothing() -> None:
    """After the last attempt the error tells the reason, and no half entry stays."""

    def make(folder: Path) -> None:
        (folder / "part").touch()
        raise Retry("the line is down")

    with pytest.raises(Halt, match="3 attempts: the line is down"):
        fetching.cached("thing", make)

    assert [path.name for path in fetching.cache_folder().iterdir()] == ["thing.lock"]


def test_leftovers_of_a_killed_process_are_removed() -> None:
    """A half entry under its temporary name is neither taken nor kept."""
    half = fetching.cache_folder() / ".thing~killed"
    half.mkdir(parents=True)

    fetching.cached("thing", lambda folder: (folder / "whole").touch())

    assert not half.exists()
