"""The Confluent wire format: a zero byte and a schema id before the Avro body."""

from typing import Final

from topics.errors import CorruptRecord

WIRE_HEADER_BYTES: Final = 5
_MAGIC: Final = 0

# The registry's own interface has signed 32-bit ids.
SCHEMA_ID_MAX: Final = 2**31 - 1


def wire_header(schema_id: int) -> bytes:
    """Return the five bytes that precede an Avro body."""
    return schema_id.to_bytes(WIRE_HEADER_BYTES, "big")


def schema_id_of(value: bytes | None, topic: str, offset: int | None = None) -> int:
    """Return the schema id of a record value; CorruptRecord, naming its place, without one."""
    if value is None or len(value) < WIRE_HEADER_BYTES or value[0] != _MAGIC:
        start = None if value is None else value[:WIRE_HEADER_BYTES].hex()
        where = place(topic, offset)
        raise CorruptRecord(f"{where}: not in the Confluent wire format (begins with {start})")
    return int.from_bytes(value[1:WIRE_HEADER_BYTES], "big")


def place(topic: str, offset: int | None) -> str:
    """Return the place of a record in words; only for errors, as it costs more than the check."""
    return topic if offset is None else f"{topic}, offset {offset}"
