"""Marks at the end of a shard log, with rows of other databases behind them."""

from dataclasses import replace

import pytest

from tests.topics.shard_writer import Writers
from tests.topics.splits import SPLIT
from topics.progress.record import MarkKind
from topics.records.record_decoder import RecordDecoder
from topics.records.vevent import EventType, VEvent
from topics.stream.log_marks import marks_at_end

# More than the first windows hold.
ROWS_BEHIND = 400


def test_rows_of_other_databases_are_passed_over_undecoded(
    writers: Writers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B19: a monitor that writes after END for days does not make each look at the log slow."""
    [writer] = writers("-")
    writer.mark(0, MarkKind.END, replace(SPLIT, reshard_id="before the last row"))
    writer.commit((1_000, 3))
    writer.mark(2_000, MarkKind.END, SPLIT)
    rows = [writer.row(3_000 + i) for i in range(ROWS_BEHIND)]
    writer.commit_events([replace(row, database="monitoring") for row in rows])
    decoded: list[VEvent] = []
    decode = RecordDecoder.decode

    def counted(codec: RecordDecoder, value: bytes | None, shard: str, offset: int) -> VEvent:
        decoded.append(decode(codec, value, shard, offset))
        return decoded[-1]

    monkeypatch.setattr(RecordDecoder, "decode", counted)
    marks = marks_at_end(
        writer.config, writer.topics, writer.schema_ids, lambda name: name != "monitoring"
    )

    assert {name: mark.kind for name, mark in marks.items()} == {SPLIT.reshard_id: "END"}
    assert {event.type for event in decoded} == {EventType.JOURNAL}
    assert marks[SPLIT.reshard_id].seq == decoded[-1].seq
