"""Notes in the headers of progress records."""

from dataclasses import replace

import pytest

from tests.topics.schemas.memory_schema_ids import MemorySchemaIds
from topics.progress.codec import decode_progress, encode_progress, note_headers
from topics.progress.record import BinlogReach, LastDdl, Progress, StopReason

PLAIN = Progress(1, 0, 0, "mysql", "", 5, (), None, "db-a:3306", 5, 0)


def decoded(headers: list[tuple[str, bytes]]) -> Progress:
    """What a reader makes of a record with these headers."""
    ids = MemorySchemaIds()
    return decode_progress(encode_progress(PLAIN, ids), ids, "the test", headers)


def test_notes_come_back() -> None:
    """Headers tell what the value does not."""
    noted = replace(
        PLAIN,
        ddl=LastDdl(7, "ALTER TABLE", "shop.orders"),
        stopped=StopReason(8, "BinlogPurged", "binlogs are gone"),
        binlogs=BinlogReach(6, 604_800),
    )
    headers = [(name, value) for name, value in note_headers(noted) if isinstance(value, bytes)]

    assert decoded(headers) == noted
    assert note_headers(PLAIN) == []


@pytest.mark.parametrize("value", [b"", b"\xff", b"[]", b"7", b'{"at_us": "x"}'])
def test_what_is_not_understood_is_no_note(value: bytes) -> None:
    """A note of a later release, or of somebody else, never stops a reader."""
    notes = ("ddl", "stopped", "binlogs")
    headers = [
        (name, value) for name in (*(f"shardstream.{note}" for note in notes), "traceparent")
    ]

    assert decoded(headers) == PLAIN


def test_a_later_release_may_say_more() -> None:
    """Fields that are not known here are left out."""
    noted = decoded([("shardstream.ddl", b'{"at_us": 7, "kind": "DROP TABLE", "by": "x"}')])

    assert noted.ddl == LastDdl(7, "DROP TABLE", "")
