"""What a start of the benchmarks is asked to measure."""

import pytest

from benchmarks.__main__ import NAMES, RUNS, RUNS_MAX, RUNS_QUICK, read_plan
from event_token.errors import UsageError


def test_everything_without_names() -> None:
    """Without names all is measured, several times; quickly, once."""
    assert read_plan([]).names == NAMES
    assert (read_plan([]).runs, read_plan(["--quick"]).runs) == (RUNS, RUNS_QUICK)


def test_beginnings_of_names_choose() -> None:
    """A name stands for all that begin with it, each once and in the usual order."""
    plan = read_plan(
        ["drain.rows", "reshard.apply_single", "drain.rows_100", "drain.single", "--runs", "5"]
    )

    assert plan.names == ("drain.single_row", "drain.rows_100", "reshard.apply_single_row")
    assert plan.runs == 5


@pytest.mark.parametrize(
    "arguments", [["nothing"], ["--runs", "-1"], ["--runs", "0"], ["--runs", str(RUNS_MAX + 1)]]
)
def test_what_cannot_be_measured_is_refused(arguments: list[str]) -> None:
    """An unknown name or a senseless number of turns is an error before anything starts."""
    with pytest.raises(UsageError):
        read_plan(arguments)
