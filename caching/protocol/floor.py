"""The floor of a bucket: the newest invalidated change of any of its keys, per shard."""

from collections.abc import Mapping
from dataclasses import dataclass

from caching.protocol.freshness import joined
from caching.protocol.wire import read_tokens, write_tokens
from event_token import EventToken, Order, UsageError, compare
from event_token.opaque import FieldReader, FieldWriter

FLOOR_BYTE = 0x46
GENERATION_BYTES = 16


@dataclass(frozen=True, slots=True)
class Floor:
    """A floor: its random generation (16 bytes), and one token per shard.

    Values are hits only under the generation that they were filled under, so a floor that was
    lost and made again closes everything that was cached before.
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
