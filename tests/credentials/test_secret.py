"""Secrets from files, variables and commands."""

import pickle
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

import credentials.command
import credentials.secret
from credentials.errors import SecretUnavailable
from credentials.secret import Secret
from event_token.errors import UsageError

MARKER = "Marker-Secret"
READERS = 8


def python(program: str) -> tuple[str, ...]:
    """Return a command that runs a program."""
    return (sys.executable, "-S", "-c", program)


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (python(f"print({MARKER!r}); import sys; sys.exit('no token today')"), "no token today"),
        (python(f"print({MARKER!r}); raise SystemExit(3)"), "status 3: .it wrote no error"),
        (python(f"print({MARKER!r}); print({MARKER!r})"), "printed 2 lines"),
        (python(f"print({MARKER!r} * 10_000)"), "at most 65536 bytes"),
        (python("pass"), "printed 0 lines"),
        (python("print()"), "one line"),
        (python("import time; time.sleep(60)"), "did not end within 0.5 s"),
        (("/no/such/program",), "cannot be run: No such file"),
    ],
    ids=["fails", "silent", "two lines", "long", "nothing", "blank", "hangs", "missing"],
)
def test_a_command_that_prints_no_secret_is_one_clear_sentence(
    command: tuple[str, ...], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names whose secret, the program and what is wrong, and never what was printed."""
    monkeypatch.setattr(credentials.command, "COMMAND_S_MAX", 0.5 if "60" in command[-1] else 30.0)

    with pytest.raises(SecretUnavailable, match=problem) as raised:
        Secret("app@db", command=command).read()

    text = str(raised.value)
    assert text.startswith(f"app@db: the command {command[0]} ")
    assert "\n" not in text
    assert MARKER not in text


def test_what_a_command_printed_is_kept_as_long_as_it_is_valid(tmp_path: Path) -> None:
    """Within `valid_s` it runs once, in all copies of a secret, unless a server refuses it."""
    counted = tmp_path / "runs"
    program = f"f = open({str(counted)!r}, 'a+'); f.write('x'); print(f.tell())"
    kept, fresh = (Secret("s", command=python(program), valid_s=s) for s in (3600.0, 0.0))

    assert [kept.read(), pickle.loads(pickle.dumps(kept)).read()] == ["1", "1"]  # noqa: S301
    assert [kept.renewed("1"), kept.renewed("1"), kept.read()] == ["2", "2", "2"]
    assert [fresh.read(), fresh.renewed("3"), fresh.read()] == ["3", "3", "4"]


@pytest.mark.parametrize("end", ["", "; raise SystemExit('away')"], ids=["works", "fails"])
def test_connections_that_are_opened_at_once_run_a_command_once(
    tmp_path: Path, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that have asked before it ends take what it printed, or its failure."""
    counted, gate = tmp_path / "runs", tmp_path / "gate"
    program = (
        f"import os, time; open({str(counted)!r}, 'a').write('x')\n"
        f"while not os.path.exists({str(gate)!r}): time.sleep(0.01)\n"
        f"print(1){end}"
    )
    secret = Secret("s", command=python(program))
    asked: list[float] = []

    def now() -> float:
        asked.append(time.monotonic())
        if len(asked) == READERS:
            gate.touch()
        return asked[-1]

    monkeypatch.setattr(credentials.secret, "time", SimpleNamespace(monotonic=now))

    def read(_: int) -> str:
        try:
            return secret.read()
        except SecretUnavailable as error:
            return str(error)

    with ThreadPoolExecutor(READERS) as pool:
        answers = set(pool.map(read, range(READERS)))

    assert len(answers) == 1
    assert counted.read_text() == "x"


def test_one_source_is_enough(tmp_path: Path) -> None:
    """A secret that is given by two sources is refused."""
    with pytest.raises(UsageError, match="given twice; keep one of file, variable and command"):
        Secret("s", file=tmp_path, command=("cat",)).read()
