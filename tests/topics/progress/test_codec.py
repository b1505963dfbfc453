import json
from dataclasses import asdict, replace
from io import SEEK_END, BytesIO

import pytest
from fastavro import parse_schema, schemaless_writer
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
from topics.progress.record import LastTransaction, Mark, MarkKind, Progress, Skipped, Tick
from topics.records.table_shape import fingerprint, schema_text
from topics.records.wire import wire_header

# The schema of the records in existing logs.
LAYOUT_1 = "5f5caeb1f5eaf81b50cc618a6830093a4e284c89e429fadbf95708602de958b2"
LAYOUT_2 = "162464dbc494c9a59d35d51959c4e00dffefa4d4fa22fa36cd707880ec8cade4"

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
    last=st.none() | st.builds(LastTransaction, TEXTS, INT64, TEXTS, TEXTS, INT64),
    identity=TEXTS,
    skipped=st.none() | st.builds(Skipped, INT64, INT64),
)


@given(PROGRESSES)
def test_decode_gives_back_what_encode_got(progress: Progress) -> None:
    """Any progress record survives a round trip."""
    ids = MemorySchemaIds()

    assert decode_progress(encode_progress(progress, ids), ids) == progress


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
    ids.register(PROGRESS_SCHEMA_TEXT.replace('"progress":2', '"progress":9'))

    with pytest.raises(Halt, match="release"):
        decode_progress(wire_header(0), ids)


def test_records_of_the_first_layout_are_read() -> None:
    """A1: progress that was written before it had the last transaction is read without one."""
    ids = MemorySchemaIds()
    schema = json.loads(PROGRESS_SCHEMA_TEXT)
    schema["progress"] = 1
    added = {"last", "identity"}
    schema["fields"] = [field for field in schema["fields"] if field["name"] not in added]
    assert fingerprint(schema_text(schema)) == LAYOUT_1
    written = Progress(1, 0, 0, "mysql", "", 5, (), None, "s", 5, 0)
    out = BytesIO(wire_header(ids.register(json.dumps(schema))))
    out.seek(0, SEEK_END)
    schemaless_writer(out, parse_schema(schema), asdict(written))

    assert decode_progress(out.getvalue(), ids) == written


def test_a_log_without_skips_is_written_in_the_second_layout() -> None:
    """B3: only a skip, whose record they refuse anyway, changes what readers of it must know."""
    ids = MemorySchemaIds()
    progress = Progress(1, 0, 0, "mysql", "", 5, (), None, "s", 5, 0)
    encode_progress(progress, ids)
    encode_progress(replace(progress, skipped=Skipped(1, 5)), ids)

    assert fingerprint(ids.texts[0]) == LAYOUT_2
    assert json.loads(ids.texts[1])["progress"] == 3


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
