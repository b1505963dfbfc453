"""Marks at the end of a shard log, with rows of other databases behind them."""

from dataclasses import replace

import pytest

from tests.topics.shard_writer import Writers
from tests.topics.splits import SPLIT
from topics.errors import UnknownEnvelope
from topics.progress.record import MarkKind
from topics.records.event_decoder import EventDecoder
from topics.records.vevent import EventType, Op, VEvent
from topics.stream.target_marks import marks_at_end

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
    decode = EventDecoder.decode

    def counted(codec: EventDecoder, value: bytes | None, shard: str, offset: int) -> VEvent:
        decoded.append(decode(codec, value, shard, offset))
        return decoded[-1]

    monkeypatch.setattr(EventDecoder, "decode", counted)
    marks = marks_at_end(
        writer.config, writer.topics, writer.schema_ids, lambda name: name != "monitoring"
    )

    assert {name: mark.kind for name, mark in marks.items()} == {SPLIT.reshard_id: "END"}
    assert {event.type for event in decoded} == {EventType.JOURNAL}
    assert marks[SPLIT.reshard_id].seq == decoded[-1].seq


def test_a_mark_of_a_newer_release_is_refused(writers: Writers) -> None:
    """A kind of mark that this release does not know stops it by name."""
    [writer] = writers("-")
    mark = '{"reshard_id": "r9", "kind": "LATER"}'
    row = replace(writer.row(0), type=EventType.JOURNAL, op=Op.NONE, after=None, shape=None)
    writer.commit_events([replace(row, statement=mark)])
    writer.commit((1_000, 1))  # which waits until the mark can be read

    with pytest.raises(UnknownEnvelope, match="offset 0: a mark of the kind 'LATER': upgrade"):
        marks_at_end(writer.config, writer.topics, writer.schema_ids, lambda _: True)
