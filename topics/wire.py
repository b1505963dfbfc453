"""The Confluent wire format, and the fields of the envelope that are read without a schema."""

from typing import Final

from topics.vevent import CorruptRecord

WIRE_HEADER_BYTES: Final = 5
_MAGIC: Final = 0

# Ids are signed 32-bit numbers in the registry's own interface.
SCHEMA_ID_MAX: Final = 2**31 - 1

# A 64-bit number takes at most ten bytes.
_VARINT_SHIFT_MAX: Final = 63

# (index of the event type, seq, timestamp_us, whether it is the last of its transaction)
Envelope = tuple[int, int, int, bool]


def wire_header(schema_id: int) -> bytes:
    """Return the five bytes that stand before an Avro body."""
    return schema_id.to_bytes(WIRE_HEADER_BYTES, "big")


def schema_id_of(value: bytes | None, where: str) -> int:
    """Return the schema id of a record value; CorruptRecord, naming `where`, if there is none."""
    if value is None or len(value) < WIRE_HEADER_BYTES or value[0] != _MAGIC:
        start = None if value is None else value[:WIRE_HEADER_BYTES].hex()
        raise CorruptRecord(f"{where}: not in the Confluent wire format (begins with {start})")
    return int.from_bytes(value[1:WIRE_HEADER_BYTES], "big")


def read_seq(value: bytes, where: str = "a shard log") -> int:
    """Return the seq of a shard log's record without decoding the rest."""
    return read_envelope(value, where)[1]


def read_envelope(value: bytes, where: str = "a shard log") -> Envelope:
    """Return (type index, seq, timestamp_us, last) of a shard log's record.

    Holds for every schema of a shard log, as the envelope comes first and in a fixed order; the
    codec checks for each schema id that it does. CorruptRecord, naming `where`, when truncated.
    """
    schema_id_of(value, where)
    try:
        type_index, at = _varint(value, WIRE_HEADER_BYTES)
        seq, at = _varint(value, at)
        timestamp_us, at = _varint(value, at)
        at = _skip_text(value, _skip_text(value, at))  # shard, position
        has_origin, at = _varint(value, at)
        if has_origin:
            _, at = _varint(value, at)
            at = _skip_text(value, _skip_text(value, at))
        _, at = _varint(value, at)  # commit_us
        at = _skip_text(value, at)  # gtid
        _, at = _varint(value, at)  # row_index
        last = value[at]
    except (IndexError, OverflowError) as error:
        raise CorruptRecord(f"{where}: the envelope is truncated or broken") from error
    if last > 1 or has_origin not in {0, 1}:
        raise CorruptRecord(f"{where}: the envelope is broken")
    return type_index, seq, timestamp_us, last == 1


def _varint(value: bytes, at: int) -> tuple[int, int]:
    """Return the zigzag number at `at` and where it ends; IndexError at the end of the bytes."""
    byte = value[at]
    at += 1
    number = byte & 0x7F
    shift = 7
    while byte & 0x80:
        if shift > _VARINT_SHIFT_MAX:
            raise OverflowError
        byte = value[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
    return number >> 1 ^ -(number & 1), at


def _skip_text(value: bytes, at: int) -> int:
    length, at = _varint(value, at)
    if length < 0:
        raise OverflowError
    return at + length
