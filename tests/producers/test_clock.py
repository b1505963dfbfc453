"""How far the clock of this host may be off, as chrony tells it."""

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import producers.clock
from producers.clock import CHRONY_KEPT_S, ChronyBound, tracking_bound_us
from producers.errors import ClockUnknown

# System time offset -3 us, root delay 40 us, root dispersion 29.5 us.
LINE = (
    "A9FEA97B,169.254.169.123,4,1709727533.139866748,-0.000003000,-0.000003372,0.000002759,"
    "1.274,-0.005,0.161,0.000040000,0.000029500,16.1,Normal"
)
BOUND_US = 53  # 3 + 29.5 + 40 / 2, rounded up
# What chrony 4.3 prints: synchronized, before it is, and with `local stratum 10`.
SYNCHRONIZED = (
    "7F000001,127.0.0.1,2,1795761867.216970223,-0.000001866,-0.000000127,0.000002550,"
    "-0.025,-0.001,0.207,0.000007044,0.000002516,1.0,Normal"
)
LOCAL = (
    "7F7F0101,,10,1795761843.427590811,0.000000000,0.000000000,0.000000000,"
    "0.000,0.000,0.000,0.000000000,0.000000000,0.0,Normal"
)
UNSYNCHRONIZED = (
    "00000000,,0,0.000000000,0.000000000,0.000000000,0.000000000,"
    "0.000,0.000,0.000,1.000000000,1.000000000,0.0,Not synchronised"
)

Install = Callable[[str], ChronyBound]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put a shell script into PATH as `chronyc`, for a new source; it may be slow here."""
    monkeypatch.setattr(producers.clock, "CHRONYC_S_MAX", 60.0)

    def write(script: str) -> ChronyBound:
        path = tmp_path / "chronyc"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        return ChronyBound()

    return write


def test_the_bound_is_the_sum_of_chronys_documentation() -> None:
    """|system time offset| + root dispersion + root delay / 2, whatever the sign of the offset."""
    assert tracking_bound_us(SYNCHRONIZED) == 8  # 1.866 + 2.516 + 7.044 / 2, rounded up
    assert tracking_bound_us(LINE) == BOUND_US
    assert tracking_bound_us(LINE.replace("-0.000003000", "0.000003000")) == BOUND_US
    assert tracking_bound_us(LINE.replace("0.000029500", "1.500029500")) == BOUND_US + 1_500_000


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (UNSYNCHRONIZED, "Not synchronised"),
        (LINE.replace("Normal", "Insert second"), "Insert second"),
        (LOCAL, "this host's own clock"),
        (LINE.replace(",Normal", ""), "13 fields instead of 14"),
        ("506 Cannot talk to daemon", "1 fields instead of 14: '506 Cannot talk to daemon'"),
        (LINE.replace("0.000040000", "nan"), "chronyc printed '.*nan.*'"),
        (LINE.replace("0.000029500", "inf"), "chronyc printed '.*inf.*'"),
        (LINE.replace("-0.000003000", "fast"), "chronyc printed '.*fast.*'"),
    ],
    ids=["unsynchronized", "leap", "local", "short", "no daemon", "nan", "inf", "text"],
)
def test_a_clock_that_is_not_known_has_no_bound(line: str, problem: str) -> None:
    """No number is made of what chrony does not vouch for."""
    with pytest.raises(ClockUnknown, match=problem):
        tracking_bound_us(line)


@pytest.mark.parametrize("works", [True, False])
def test_an_answer_of_chronyc_is_used_for_a_while(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, works: bool
) -> None:
    """One run serves all who ask within that time, a failed one too, and drift is added to it."""
    now_s = [100.0]
    monkeypatch.setattr(producers.clock, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    runs = tmp_path / "runs"
    line = LINE if works else UNSYNCHRONIZED
    source = install(f"echo \"$*\" >> {runs}; echo '{line}'")

    def ask() -> int | None:
        try:
            return source.bound_us()
        except ClockUnknown:
            return None

    found = [ask()]
    now_s[0] += CHRONY_KEPT_S / 2
    found.append(ask())
    assert runs.read_text().splitlines() == ["-c tracking"]
    now_s[0] += CHRONY_KEPT_S / 2
    found.append(ask())
    assert runs.read_text().splitlines() == ["-c tracking"] * 2
    assert found == ([BOUND_US, BOUND_US + 50, BOUND_US] if works else [None] * 3)


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("echo '506 Cannot talk to daemon'; exit 1", "failed with status 1"),
        ("exec sleep 60", "did not end within 0.2 s"),
        ("true", "must print one line"),
    ],
    ids=["fails", "hangs", "silent"],
)
def test_a_chronyc_that_does_not_answer_gives_no_bound(
    install: Install, script: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence says what it did; nobody waits for one that hangs."""
    if "sleep" in script:
        monkeypatch.setattr(producers.clock, "CHRONYC_S_MAX", 0.2)
    with pytest.raises(ClockUnknown, match=f"clock.source: the command chronyc {problem}"):
        install(script).bound_us()


def test_without_chronyc_there_is_no_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing program is a clear sentence, too."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClockUnknown, match="chronyc cannot be run: No such file"):
        ChronyBound().bound_us()
