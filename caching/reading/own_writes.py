"""A session's own writes: which changes its next reads have to hold."""

from collections.abc import Iterable, Iterator
from typing import Final, Self

from caching.protocol.freshness import joined
from caching.protocol.stored_forms import read_tokens, write_tokens
from event_token import EventToken, ShardName, UsageError
from event_token.opaque import FieldReader, FieldWriter, OpaqueError, seal, unseal

# Browsers keep 4,096 bytes of a cookie with its name and attributes. A write takes some 90.
COOKIE_CHARS_MAX: Final = 3_500
# The first byte, which tokens and positions do not have.
_COOKIE_VERSION: Final = 0x57


class ReadYourWrites:
    """The newest write per shard of one session; it travels in a cookie.

    Pass it as `at_least` to a FreshReader or as `newer_than` to a cache. Several writes of a shard
    are joined; those of a split shard are dropped once newer ones cover its key range. Not to be
    shared by threads.
    """

    def __init__(self, writes: Iterable[EventToken] = ()) -> None:
        """Begin with these writes."""
        self._writes: dict[str, EventToken] = {}
        for token in writes:
            self.wrote(token)

    @classmethod
    def from_cookie(cls, text: str | None) -> Self:
        """The session of a cookie; a new one for none. UsageError on anything else."""
        session = cls()
        if not text:
            return session
        try:
            if len(text) > COOKIE_CHARS_MAX:
                raise OpaqueError(f"it has {len(text)} characters, over {COOKIE_CHARS_MAX}")
            reader = FieldReader(unseal(_COOKIE_VERSION, text))
            writes = read_tokens(reader)
            reader.finish()
            for shard in writes:
                ShardName.parse(shard)
        except UsageError as error:
            raise UsageError(f"not a cookie of ReadYourWrites: {error}") from error
        session._writes = writes
        return session

    def to_cookie(self) -> str:
        """The session as text for a cookie; UsageError beyond COOKIE_CHARS_MAX."""
        writer = FieldWriter()
        write_tokens(writer, self._writes)
        text = seal(_COOKIE_VERSION, writer.getvalue())
        if len(text) > COOKIE_CHARS_MAX:
            raise UsageError(
                f"the writes of a session on {len(self._writes)} shards take {len(text)} "
                f"characters of {COOKIE_CHARS_MAX}: keep the text on the server, or begin a new "
                "session once the replicas have caught up"
            )
        return text

    @property
    def tokens(self) -> tuple[EventToken, ...]:
        """The newest write per shard, sorted by shard."""
        return tuple(self._writes[shard] for shard in sorted(self._writes))

    def __iter__(self) -> Iterator[EventToken]:
        return iter(self.tokens)

    def wrote(self, token: EventToken) -> None:
        """Add a write, as `FreshReader.committed` returns it."""
        ShardName.parse(token.shard)
        self._writes = joined(self._writes, token)

    def forget(self, token: EventToken) -> None:
        """Read without the writes of a shard: those that a failover lost (`Stale.wanted`)."""
        self._writes.pop(token.shard, None)
