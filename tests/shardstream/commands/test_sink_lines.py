"""What the commands of sinks say while they run."""

import io
import json

import pytest

from shardstream.commands.sinks.progress import CopyWatch, ProgressPrinter, progress_text
from shardstream.commands.status_lines import StatusLines
from spark_consumers.sink_query import SinkProgress
from topics.kafka.client import ClientConfig


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


@pytest.mark.parametrize("as_json", [False, True])
def test_tables_that_are_left_out_are_named_once(*, as_json: bool) -> None:
    """At once, and only in the first line after their first row; JSON has all in each line."""
    out = io.StringIO()
    lines = StatusLines(as_json=as_json, every_s=3600, out=out)
    watch = CopyWatch(ClientConfig({"bootstrap.servers": "127.0.0.1:1"}), "commerce", ())
    printer = ProgressPrinter("commerce", lines, watch, None)
    first, both = ("shop._a_gho",), ("shop._a_gho", "shop._b_new")

    for batch_id, (waiting, left_out) in enumerate(
        [("", ()), ("", first), ("", first), ("80-", first), ("80-", both)]
    ):
        printer(SinkProgress(10, 0, batch_id, waiting, left_out=left_out))

    printed = out.getvalue().splitlines()
    words = "; left out as tables of an online schema change: "
    texts = [json.loads(line)["event"] for line in printed] if as_json else printed
    assert [text.partition(words)[2] for text in texts] == ["", *first, "", both[1]]
    if as_json:
        named = [json.loads(line)["left_out"] for line in printed]
        assert named == [[], [*first], [*first], [*both]]
