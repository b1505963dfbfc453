"""The rates, the medians and the result file."""

import json
from pathlib import Path

import pytest

from benchmarks.figures import (
    MicroBatch,
    Sample,
    Turn,
    drain_rates,
    figure,
    micro_batch_rate,
    percentile,
)
from benchmarks.report import LATEST, MACHINE, write_results
from event_token.errors import Halt

FIELDS = {"name", "unit", "ours", "peer", "theirs", "ratio", "runs"}


def test_steady_rate_leaves_out_start_and_end() -> None:
    """The steady rate counts from 20 % to 90 %; the whole one counts all of the process's time."""
    start = [Sample(0, 0, 0), Sample(10, 0, 5)]
    # 100 messages a second and 0.5 s of processor time a second, then a slow end.
    steady = [Sample(10 + n, 100 * n, 5 + 0.5 * n) for n in range(1, 10)]
    end = [Sample(30, 1000, 12)]

    rates = drain_rates([*start, *steady, *end], messages=1000, started_at_s=0)

    assert rates.steady_per_s == pytest.approx(100)
    assert rates.whole_per_s == pytest.approx(1000 / 30)
    assert rates.cpu_s_per_100k == pytest.approx(500)


def test_only_whole_steps_count() -> None:
    """What comes in steps is counted from the end of one to the end of another, never between."""
    # Steps of 250 each two seconds: 250 of 1000 are not the 200 that 20 % would be.
    samples = [Sample(at, 250 * (at // 2), at) for at in range(9)]

    rates = drain_rates(samples, messages=1000, started_at_s=0)

    assert rates.steady_per_s == pytest.approx(125)
    assert rates.cpu_s_per_100k == pytest.approx(800)


def test_one_large_step_tells_no_rate() -> None:
    """A drain that shows all at once has no steady rate, however quick it was."""
    samples = [Sample(0, 0, 0), Sample(7, 0, 2), Sample(7.1, 1000, 2)]

    with pytest.raises(Halt, match="too few steps"):
        drain_rates(samples, messages=1000, started_at_s=0)


def test_offsets_and_bytes_are_scaled_to_messages() -> None:
    """Markers take offsets and files count bytes: what is done counts as a share of the whole."""
    samples = [Sample(at, 10_000 * at, at) for at in range(11)]

    rates = drain_rates(samples, messages=1000, started_at_s=0)

    assert rates.steady_per_s == pytest.approx(100)


@pytest.mark.parametrize(
    "samples",
    [
        [],
        [Sample(0, 0, 0), Sample(1, 0, 0)],
        [Sample(1, 1000, 0)],
        [Sample(1, 0, 0), Sample(1, 1000, 0)],
    ],
)
def test_too_few_samples_tell_no_rate(samples: list[Sample]) -> None:
    """Samples that cannot tell a rate are an error, not a figure."""
    with pytest.raises(Halt):
        drain_rates(samples, messages=1000, started_at_s=0)


def test_figure_takes_medians() -> None:
    """The figure is the median of the turns, the ratio that of the turns' own ratios."""
    turns = [Turn(500, 100), Turn(600, 50), Turn(900, 60)]

    line = figure("drain", "rows/s", turns, peer="other")

    assert (line.ours, line.theirs, line.ratio) == (600, 60, 12)


def test_figure_without_a_turn_of_the_peer_is_refused() -> None:
    """Ratios come from pairs of turns alone."""
    with pytest.raises(ValueError, match="other"):
        figure("drain", "rows/s", [Turn(1, 2), Turn(1)], peer="other")
    with pytest.raises(ValueError, match="None"):
        figure("drain", "rows/s", [Turn(1, 2)])


def test_result_file_is_a_list_of_lines(tmp_path: Path) -> None:
    """latest.json is a list with seven fields a line, null where there is no peer."""
    lines = [
        figure("a", "rows/s", [Turn(10, 5), Turn(20, 10)], peer="other"),
        figure("b", "ms", [Turn(1.5)]),
    ]

    path = write_results(lines, {"cores": "2"}, tmp_path)

    assert path == tmp_path / LATEST
    written = json.loads(path.read_text())
    assert [set(line) for line in written] == [FIELDS, FIELDS]
    assert written[0]["runs"] == [{"ours": 10, "theirs": 5}, {"ours": 20, "theirs": 10}]
    assert (written[1]["peer"], written[1]["theirs"], written[1]["ratio"]) == (None, None, None)
    assert json.loads((tmp_path / MACHINE).read_text()) == {"cores": "2"}


def test_a_partial_run_leaves_the_other_results(tmp_path: Path) -> None:
    """Figures of benchmarks that did not run stay, in their place."""
    write_results([figure("a", "s", [Turn(1)]), figure("b", "s", [Turn(1)])], {}, tmp_path)

    path = write_results([figure("a", "s", [Turn(2)]), figure("c", "s", [Turn(2)])], {}, tmp_path)

    written = json.loads(path.read_text())
    assert [(line["name"], line["ours"]) for line in written] == [("a", 2), ("b", 1), ("c", 2)]


def test_percentile_is_a_value_that_occurred() -> None:
    """Percentiles are nearest ranks: no value is made up between two."""
    values = [float(n) for n in range(1, 101)]

    assert percentile(values, 50) == 50
    assert percentile(values, 99) == 99
    assert percentile([7.0], 99) == 7


def test_micro_batches_count_from_the_second_on() -> None:
    """The first batch starts processes; empty ones bring nothing; pauses between batches count."""
    batches = [
        MicroBatch(0, 10, 100),
        MicroBatch(10, 1, 200),
        MicroBatch(12, 2, 200),
        MicroBatch(14, 5, 0),
    ]

    assert micro_batch_rate(batches, rows=500) == pytest.approx(400 / 4)


def test_micro_batches_must_bring_every_row_once() -> None:
    """A query that lost or repeated rows has no rate."""
    with pytest.raises(Halt, match="300 rows, the log holds 299"):
        micro_batch_rate([MicroBatch(0, 1, 100), MicroBatch(1, 1, 200)], rows=299)


def test_one_micro_batch_tells_no_rate() -> None:
    """With the first batch left out, nothing would be measured."""
    with pytest.raises(Halt, match="smaller"):
        micro_batch_rate([MicroBatch(0, 1, 100)], rows=100)
