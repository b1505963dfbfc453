"""What lies in the slot of a cache key: an entry, or the placeholder of a fill under way."""

from collections.abc import Mapping
from dataclasses import dataclass

from caching.protocol.floor import GENERATION_BYTES
from caching.protocol.wire import read_tokens, write_tokens
from event_token import EventToken, UsageError
from event_token.opaque import FieldReader, FieldWriter

ENTRY_BYTE = 0x56
PLACEHOLDER_BYTE = 0x50
ENTRY_NONCE_BYTES = 8
PLACEHOLDER_NONCE_BYTES = 16

_NEGATIVE = 1
_FLAGS_AT = 1 + GENERATION_BYTES + ENTRY_NONCE_BYTES
_CODEC_AT = _FLAGS_AT + 1
_LENGTH_AT = _CODEC_AT + 1
_TOKENS_AT = _LENGTH_AT + 4


@dataclass(frozen=True, slots=True)
class Entry:
    """A cached value with the tokens of the reads that it was made of.

    `generation` is the floor's at the fill; `nonce` (8 random bytes) makes two fills of one value
    different bytes. `value` is None for a negative entry: there is no such row. `codec` says how
    the value was encoded (0..255).
    """

    generation: bytes
    nonce: bytes
    tokens: Mapping[str, EventToken]
    codec: int
    value: bytes | None

    def to_bytes(self) -> bytes:
        """Return the stored form.

        0x56, generation, nonce, flags, codec, length of the tokens (4 bytes, little-endian),
        tokens, value: a hit finds its value without reading the tokens.
        """
        writer = FieldWriter()
        write_tokens(writer, self.tokens)
        tokens = writer.getvalue()
        head = bytes([ENTRY_BYTE]) + self.generation + self.nonce
        head += bytes([_NEGATIVE if self.value is None else 0, self.codec])
        return head + len(tokens).to_bytes(4, "little") + tokens + (self.value or b"")


@dataclass(frozen=True, slots=True)
class Placeholder:
    """The mark of one fill under way; `nonce` (16 random bytes) tells it from every other."""

    nonce: bytes

    def to_bytes(self) -> bytes:
        """Return the stored form: 0x50, nonce."""
        return bytes([PLACEHOLDER_BYTE]) + self.nonce


Slot = Entry | Placeholder


def is_entry(stored: bytes) -> bool:
    """Tell whether a slot holds an entry, by its first byte."""
    return stored[:1] == bytes([ENTRY_BYTE])


def parse_slot(stored: bytes | None) -> Slot | None:
    """Read the slot of a key; None for an empty one and for bytes of another layout."""
    if not stored:
        return None
    if stored[0] == PLACEHOLDER_BYTE and len(stored) == 1 + PLACEHOLDER_NONCE_BYTES:
        return Placeholder(stored[1:])
    if stored[0] == ENTRY_BYTE:
        return _parse_entry(stored)
    return None


def read_value(stored: bytes) -> tuple[int, bytes | None] | None:
    """Return codec and value of a stored entry, None for a negative one; its tokens are not read.

    None for bytes of another layout.
    """
    value_at = _value_at(stored)
    if value_at is None:
        return None
    value = None if stored[_FLAGS_AT] & _NEGATIVE else stored[value_at:]
    return stored[_CODEC_AT], value


def _value_at(stored: bytes) -> int | None:
    if len(stored) < _TOKENS_AT or stored[0] != ENTRY_BYTE:
        return None
    value_at = _TOKENS_AT + int.from_bytes(stored[_LENGTH_AT:_TOKENS_AT], "little")
    flags, size = stored[_FLAGS_AT], len(stored)
    is_valid = not flags & ~_NEGATIVE and value_at <= size and (not flags or value_at == size)
    return value_at if is_valid else None


def _parse_entry(stored: bytes) -> Entry | None:
    found, value_at = read_value(stored), _value_at(stored)
    if found is None or value_at is None:
        return None
    reader = FieldReader(stored[_TOKENS_AT:value_at])
    try:
        tokens = read_tokens(reader)
        reader.finish()
    except UsageError:
        return None
    generation = stored[1 : 1 + GENERATION_BYTES]
    return Entry(generation, stored[1 + GENERATION_BYTES : _FLAGS_AT], tokens, *found)
