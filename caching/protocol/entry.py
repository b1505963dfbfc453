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
_TAIL_BYTES = 2  # flags and codec


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
        """Return the stored form: 0x56, generation, nonce, tokens, flags, codec, value."""
        writer = FieldWriter()
        write_tokens(writer, self.tokens)
        flags = _NEGATIVE if self.value is None else 0
        head = bytes([ENTRY_BYTE]) + self.generation + self.nonce + writer.getvalue()
        return head + bytes([flags, self.codec]) + (self.value or b"")


@dataclass(frozen=True, slots=True)
class Placeholder:
    """The mark of one fill under way; `nonce` (16 random bytes) tells it from every other."""

    nonce: bytes

    def to_bytes(self) -> bytes:
        """Return the stored form: 0x50, nonce."""
        return bytes([PLACEHOLDER_BYTE]) + self.nonce


Slot = Entry | Placeholder


def parse_slot(stored: bytes | None) -> Slot | None:
    """Read the slot of a key; None for an empty one and for bytes of another layout."""
    if not stored:
        return None
    if stored[0] == PLACEHOLDER_BYTE and len(stored) == 1 + PLACEHOLDER_NONCE_BYTES:
        return Placeholder(stored[1:])
    if stored[0] == ENTRY_BYTE:
        return _parse_entry(stored)
    return None


def _parse_entry(stored: bytes) -> Entry | None:
    tokens_at = 1 + GENERATION_BYTES + ENTRY_NONCE_BYTES
    reader = FieldReader(stored[tokens_at:])
    try:
        tokens = read_tokens(reader)
    except UsageError:
        return None
    tail = reader.rest()
    if len(tail) < _TAIL_BYTES or tail[0] & ~_NEGATIVE or (tail[0] and len(tail) > _TAIL_BYTES):
        return None
    value = None if tail[0] & _NEGATIVE else tail[_TAIL_BYTES:]
    generation, nonce = stored[1 : 1 + GENERATION_BYTES], stored[1 + GENERATION_BYTES : tokens_at]
    return Entry(generation, nonce, tokens, tail[1], value)
