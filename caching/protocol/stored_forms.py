"""The stored bytes of the protocol: floors, and the contents of slots: entries and placeholders.

Tokens in them are a count, then each token as `event_token` writes it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from caching.protocol.freshness import Tokens, joined
from event_token import EventToken, Order, UsageError, compare
from event_token.opaque import FieldReader, FieldWriter, OpaqueError
from event_token.token import read_token, write_token

# Tokens whose stored form is kept: those of the other shards of a floor, and of a transaction.
_TOKENS_CACHED = 1_024


def write_tokens(writer: FieldWriter, tokens: Tokens) -> None:
    """Append the tokens, sorted by shard, so that equal sets are equal bytes."""
    writer.unsigned(len(tokens))
    for shard in sorted(tokens):
        writer.raw(_written(tokens[shard]))


@lru_cache(_TOKENS_CACHED)
def _written(token: EventToken) -> bytes:
    writer = FieldWriter()
    write_token(writer, token)
    return writer.getvalue()


def read_tokens(reader: FieldReader) -> dict[str, EventToken]:
    """Read them back, by shard; a UsageError if they are broken."""
    tokens: dict[str, EventToken] = {}
    for _ in range(reader.unsigned()):
        token = read_token(reader)
        if token.shard in tokens:
            raise OpaqueError(f"shard {token.shard} occurs twice")
        tokens[token.shard] = token
    return tokens


FLOOR_BYTE = 0x46
GENERATION_BYTES = 16


@dataclass(frozen=True, slots=True)
class Floor:
    """A floor: its random generation (16 bytes), and one token per shard.

    Values are hits only under the generation that they were filled under, so a floor that was
    lost and recreated closes everything that was cached before.
    """

    generation: bytes
    tokens: Mapping[str, EventToken]

    def raised(self, change: EventToken) -> "Floor":
        """Return the floor with a change joined; the same floor if it says nothing new."""
        tokens = joined(self.tokens, change)
        return self if tokens == self.tokens else Floor(self.generation, tokens)

    def renewed(self, generation: bytes, change: EventToken) -> "Floor":
        """Return the floor raised by a change of which the keys are not known (DDL, SKIP).

        The new generation takes every cached value of the bucket out of use. The change replaces a
        token of its shard that it is not ordered with: after a failover that lost transactions
        nobody can read these again, and their union would close the bucket for good.
        """
        present = self.tokens.get(change.shard)
        tokens = dict(self.tokens)
        if present is not None and compare(change, present) is Order.UNKNOWN:
            del tokens[change.shard]
        return Floor(generation, joined(tokens, change))

    def to_bytes(self) -> bytes:
        """Return the stored form: 0x46, generation, count, tokens."""
        writer = FieldWriter()
        write_tokens(writer, self.tokens)
        return bytes([FLOOR_BYTE]) + self.generation + writer.getvalue()

    @classmethod
    def parse(cls, stored: bytes | None) -> "Floor | None":
        """Read the stored form; None for none and for bytes that are not a floor."""
        if stored is None or len(stored) <= GENERATION_BYTES or stored[0] != FLOOR_BYTE:
            return None
        reader = FieldReader(stored[1 + GENERATION_BYTES :])
        try:
            tokens = read_tokens(reader)
            reader.finish()
        except UsageError:
            return None
        return cls(stored[1 : 1 + GENERATION_BYTES], tokens)


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
class CacheEntry:
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
    """The mark of one fill under way; `nonce` (16 random bytes) makes it unique."""

    nonce: bytes

    def to_bytes(self) -> bytes:
        """Return the stored form: 0x50, nonce."""
        return bytes([PLACEHOLDER_BYTE]) + self.nonce


Slot = CacheEntry | Placeholder


def is_entry(stored: bytes) -> bool:
    """Return whether a slot holds an entry, by its first byte."""
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


def _parse_entry(stored: bytes) -> CacheEntry | None:
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
    return CacheEntry(generation, stored[1 + GENERATION_BYTES : _FLAGS_AT], tokens, *found)
