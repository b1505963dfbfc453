"""The Confluent wire format, and the fields of the envelope that are read without a schema."""

from typing import Final

from topics.records.cursor import Cursor
from topics.records.vevent import CorruptRecord

WIRE_HEADER_BYTES: Final = 5
_MAGIC: Final = 0

# Ids are signed 32-bit numbers in the registry's own interface.
SCHEMA_ID_MAX: Final = 2**31 - 1

# (index of the event type, seq, timestamp_us, whether it is the last of its transaction)
Envelope = tuple[int, int, int, bool]


def wire_header(schema_id: int) -> bytes:
    """Return the five bytes that stand before an Avro body."""
    return schema_id.to_bytes(WIRE_HEADER_BYTES, "big")


def schema_id_of(value: bytes | None, topic: str, offset: int | None = None) -> int:
    """Return the schema id of a record value; CorruptRecord, naming its place, without one."""
    if value is None or len(value) < WIRE_HEADER_BYTES or value[0] != _MAGIC:
        start = None if value is None else value[:WIRE_HEADER_BYTES].hex()
        where = _place(topic, offset)
        raise CorruptRecord(f"{where}: not in the Confluent wire format (begins with {start})")
    return int.from_bytes(value[1:WIRE_HEADER_BYTES], "big")


def read_seq(value: bytes, topic: str = "a shard log", offset: int | None = None) -> int:
    """Return the seq of a shard log's record, which comes second in its envelope.

    Reads nothing else. CorruptRecord, naming topic and offset, when there is none.
    """
    cursor = _body(value, topic, offset)
    try:
        cursor.take_long()
        return cursor.take_long()
    except (IndexError, ValueError) as error:
        raise _broken(topic, offset) from error


def read_envelope(value: bytes, topic: str = "a shard log", offset: int | None = None) -> Envelope:
    """Return (type index, seq, timestamp_us, last) of a shard log's record.

    Holds for every schema of a shard log, as the envelope comes first and in a fixed order; the
    codec checks for each schema id that it does. CorruptRecord, naming topic and offset, when
    truncated.
    """
    cursor = _body(value, topic, offset)
    try:
        type_index = cursor.take_long()
        seq = cursor.take_long()
        timestamp_us = cursor.take_long()
        cursor.skip_bytes()  # shard
        cursor.skip_bytes()  # position
        if cursor.take_present():
            cursor.take_long()
            cursor.skip_bytes()
            cursor.skip_bytes()
        cursor.take_long()  # commit_us
        cursor.skip_bytes()  # gtid
        cursor.take_long()  # row_index
        last = cursor.take_flag()
    except (IndexError, ValueError) as error:
        raise _broken(topic, offset) from error
    return type_index, seq, timestamp_us, last


def _body(value: bytes, topic: str, offset: int | None) -> Cursor:
    """Stand behind the header."""
    schema_id_of(value, topic, offset)
    cursor = Cursor()
    cursor.open(value, WIRE_HEADER_BYTES)
    return cursor


def _broken(topic: str, offset: int | None) -> CorruptRecord:
    return CorruptRecord(f"{_place(topic, offset)}: the envelope is truncated or broken")


def _place(topic: str, offset: int | None) -> str:
    """Where a record lies, put into words for an error alone: they cost more than the check."""
    return topic if offset is None else f"{topic}, offset {offset}"
