"""What the commands of sinks say while they run."""

import pytest

from shardstream.commands.sinks.progress_lines import progress_text
from spark_consumers.sink_query.run import SinkProgress


@pytest.mark.parametrize(
    ("frontier_us", "waiting", "text"),
    [
        (None, "", "1,200 rows, complete up to -"),
        (0, "", "1,200 rows, complete up to -"),
        (1_500_000, "", "1,200 rows, complete up to 1970-01-01T00:00:01.500+00:00"),
        (0, "80-", "1,200 rows, complete up to -; waiting: 80-"),
    ],
)
def test_progress_names_no_time_before_the_stream_has_begun(
    frontier_us: int | None, waiting: str, text: str
) -> None:
    """A line shows rows, the frontier if there is one, and who is waited for."""
    assert progress_text(SinkProgress(1200, frontier_us, 3, waiting)) == text


def test_progress_counts_rejected_rows() -> None:
    """Rows that were put aside are in every line."""
    progress = SinkProgress(1200, 0, 3, "", rejected=2)

    assert progress_text(progress) == "1,200 rows, 2 rejected, complete up to -"
