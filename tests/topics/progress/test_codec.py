import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from event_token.errors import Halt
from tests.generated import examples
from tests.topics.records.events import INT64, TEXTS
from tests.topics.schemas.memory_schema_ids import MemorySchemaIds
from topics.errors import CorruptRecord
from topics.progress.codec import (
    PROGRESS_KEY,
    PROGRESS_SCHEMA_TEXT,
    decode_progress,
    encode_progress,
)
from topics.progress.record import (
    InParts,
    LastTransaction,
    Mark,
    MarkKind,
    Progress,
    Skipped,
    Tick,
    cut_at,
    first_offset_of,
)
from topics.records.table_shape import wire_header

NAMES = st.lists(TEXTS, max_size=3).map(tuple)
PROGRESSES = st.builds(
    Progress,
    first_seq=INT64,
    last_seq=INT64,
    end_offset=INT64,
    flavor=st.sampled_from(["mysql", "mariadb"]),
    position=TEXTS,
    head_us=INT64,
    ticks=st.lists(st.builds(Tick, INT64, INT64), max_size=5).map(tuple),
    mark=st.none()
    | st.builds(
        Mark,
        st.sampled_from(MarkKind),
        INT64,
        TEXTS,
        NAMES,
        NAMES,
        st.none() | INT64,
    ),
    server=TEXTS,
    server_time_us=INT64,
    lag_ms=INT64,
    lasts=st.lists(st.builds(LastTransaction, TEXTS, INT64, TEXTS, TEXTS, INT64), max_size=2).map(
        tuple
    ),
    identity=TEXTS,
    skipped=st.none() | st.builds(Skipped, INT64, INT64),
    in_parts=st.lists(st.builds(InParts, INT64, INT64), max_size=3).map(tuple),
)


@given(PROGRESSES)
def test_decode_gives_back_what_encode_got(progress: Progress) -> None:
    """Any progress record survives a round trip."""
    ids = MemorySchemaIds()

    assert decode_progress(encode_progress(progress, ids), ids) == progress


@given(
    PROGRESSES,
    st.lists(st.just(1) | st.integers(2, 9), min_size=1, max_size=12),
    st.integers(1, 2**40),
    st.integers(0, 2**40),
)
def test_cuts_lie_before_records_that_take_several_offsets(
    progress: Progress, parts: list[int], first_seq: int, first_offset: int
) -> None:
    """Each record's first offset gives its seq, whatever lies before it."""
    large = [InParts(first_seq + i, count) for i, count in enumerate(parts) if count > 1]
    progress = replace(
        progress,
        first_seq=first_seq,
        last_seq=first_seq + len(parts) - 1,
        end_offset=first_offset + sum(parts),
        in_parts=tuple(large),
    )

    assert first_offset_of(progress) == first_offset
    for i in range(len(parts)):
        offset = first_offset + sum(parts[:i])
        assert cut_at(progress, Tick(0, offset)) == (offset, first_seq + i - 1)


@given(PROGRESSES, st.data())
def test_truncated_bytes_are_corrupt(progress: Progress, data: st.DataObject) -> None:
    """A record truncated anywhere is refused with its position."""
    ids = MemorySchemaIds()
    value = encode_progress(progress, ids)
    cut = data.draw(st.integers(0, len(value) - 1))

    with pytest.raises(CorruptRecord, match=r"ks\.-80\.progress, offset 4"):
        decode_progress(value[:cut], ids, "ks.-80.progress, offset 4")


@given(PROGRESSES)
@settings(max_examples=examples(20))
def test_bytes_after_the_record_are_corrupt(progress: Progress) -> None:
    """A record followed by more bytes is refused."""
    ids = MemorySchemaIds()

    with pytest.raises(CorruptRecord, match="bytes are left"):
        decode_progress(encode_progress(progress, ids) + b"\0", ids)


def test_a_tombstone_is_corrupt() -> None:
    """A tombstone is refused, because nobody deletes progress."""
    with pytest.raises(CorruptRecord):
        decode_progress(None, MemorySchemaIds())


def test_schema_of_another_release_halts() -> None:
    """A layout that is not the known one is refused, not guessed at."""
    ids = MemorySchemaIds()
    ids.register(PROGRESS_SCHEMA_TEXT.replace('"progress":1', '"progress":9'))

    with pytest.raises(Halt, match="release"):
        decode_progress(wire_header(0), ids)


def test_schema_with_other_white_space_is_the_same() -> None:
    """A registry may print the schema in its own way."""
    ids = MemorySchemaIds()
    progress = Progress(1, 0, 0, "mysql", "", 5, (), None, "s", 5, 0)
    value = encode_progress(progress, ids)
    ids.texts[0] = json.dumps(json.loads(ids.texts[0]), indent=1)

    assert decode_progress(value, ids) == progress


def test_the_key_never_changes() -> None:
    """Compaction keeps the last record only if all have one key."""
    assert PROGRESS_KEY == b"progress"
