"""Short ways to write tokens in tests of the protocol."""

from collections.abc import Iterable
from uuid import UUID

from event_token import ClockUncertainty, EventToken, MysqlGtidSet

SERVER = UUID(int=1)
OTHER_SERVER = UUID(int=2)
# Clocks that are never off.
TRUSTED = ClockUncertainty()


def token(
    shard: str, count: int, timestamp_us: int | None = 10, *, sid: UUID = SERVER
) -> EventToken:
    """The token of a shard's first `count` transactions."""
    position = MysqlGtidSet.parse(f"{sid}:1-{count}")
    return EventToken(timestamp_us, shard, position)


def by_shard(tokens: Iterable[EventToken]) -> dict[str, EventToken]:
    """The tokens by their shards."""
    return {each.shard: each for each in tokens}
