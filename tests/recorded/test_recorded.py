"""What version 1 of each format has written is read by every later 1.x."""

import json
from collections.abc import Callable

import pytest

from event_token import EventToken, StreamPosition
from event_token.errors import Halt, ShardstreamError
from spark_consumers.source.stream_offset import StreamOffset
from tests.recorded.stored import RECORDED, schemas
from tests.recorded.written import (
    ACT,
    COPIES,
    EVENTS,
    JOURNAL,
    OFFSET,
    POSITION,
    PROGRESS,
    SKIP,
    SKIPPED,
    TOKEN,
    TOPOLOGY,
)
from tests.topics.records.events import SHARD
from topics.errors import UnknownEnvelope
from topics.keyspace.audit import decode_act
from topics.keyspace.topology import topology_from_json
from topics.progress.codec import decode_progress
from topics.progress.copy_topic import decode
from topics.records.envelope_table import newest_version
from topics.records.event_decoder import EventDecoder
from topics.records.skip_record import Skip


def test_records_of_a_shard_log() -> None:
    """Rows with columns of every kind, statements, progress of copies, a mark and a skip."""
    decoder = EventDecoder(schemas())
    expected = (*EVENTS, JOURNAL, SKIPPED)

    found = [
        decoder.decode(bytes.fromhex(record), SHARD, event.offset)
        for record, event in zip(RECORDED["records"], expected, strict=True)
    ]

    assert tuple(found) == expected
    assert Skip.of(found[-1]) == SKIP


def test_progress_records() -> None:
    """A heartbeat, and a record with a mark, a skip and notes in its headers."""
    ids = schemas()

    found = tuple(
        decode_progress(
            bytes.fromhex(each["value"]),
            ids,
            headers=[(name, bytes.fromhex(value)) for name, value in each["headers"]],
        )
        for each in RECORDED["progress"]
    )

    assert found == PROGRESS


def test_documents_and_opaque_strings() -> None:
    """Token, position, topology, records of copy and audit topic, the offset of a Spark query."""
    copies = tuple(decode(key.encode(), value.encode(), "") for key, value in RECORDED["copies"])

    assert EventToken.from_string(RECORDED["token"]) == TOKEN
    assert StreamPosition.from_string(RECORDED["position"]) == POSITION
    assert topology_from_json(RECORDED["topology"].encode(), "commerce", "") == TOPOLOGY
    assert copies == COPIES
    assert StreamOffset.from_document(RECORDED["offset"]) == OFFSET
    assert decode_act(RECORDED["audit"].encode(), "") == ACT


def _record() -> object:
    ids = schemas()
    newer = f'"envelope":{newest_version() + 1}'
    ids.texts = [text.replace('"envelope":1', newer) for text in ids.texts]
    return EventDecoder(ids).decode(bytes.fromhex(RECORDED["records"][0]), SHARD, 0)


def _progress() -> object:
    ids = schemas()
    ids.texts = [text.replace('"progress":1', '"progress":2') for text in ids.texts]
    return decode_progress(bytes.fromhex(RECORDED["progress"][0]["value"]), ids)


def _topology() -> object:
    document = {**json.loads(RECORDED["topology"]), "version": 2}
    return topology_from_json(json.dumps(document).encode(), "commerce", "")


def _copy() -> object:
    key, value = RECORDED["copies"][0]
    document = {**json.loads(value), "layout": 2}
    return decode(key.encode(), json.dumps(document).encode(), "")


def _act() -> object:
    document = {**json.loads(RECORDED["audit"]), "layout": 2}
    return decode_act(json.dumps(document).encode(), "")


def _offset() -> object:
    position = {**RECORDED["offset"]["position"], "version": 2}
    return StreamOffset.from_document({**RECORDED["offset"], "position": position})


@pytest.mark.parametrize(
    ("read", "error", "says"),
    [
        (_record, UnknownEnvelope, f"version {newest_version() + 1}"),
        (_progress, Halt, "not a progress record that this release knows"),
        (_topology, Halt, "layout 2"),
        (_copy, Halt, "layout 2"),
        (_act, Halt, "layout 2"),
        (_offset, Halt, "version 2"),
    ],
)
def test_another_version_is_refused_by_name(
    read: Callable[[], object], error: type[ShardstreamError], says: str
) -> None:
    """A reader stops at a version that it does not know, and names it."""
    with pytest.raises(error, match=says):
        read()
