"""What the demo does with a cache, whichever one it is."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Origin = Literal["cache", "replica", "primary"]


@dataclass(frozen=True, slots=True)
class Answer:
    """A page as a visitor got it, and where it came from."""

    page: Any
    origin: Origin


@dataclass(frozen=True, slots=True)
class Counts:
    """Page views so far: from the cache, and from the database; `refused`: loads not cached."""

    hits: int
    loads: int
    refused: int


class ShopCache(Protocol):
    """Pages by key, from Redis or from the database. Safe to use from several threads."""

    @property
    def name(self) -> str:
        """What kind of cache this is."""

    def get(self, key: str, cookie: str = "") -> Answer:
        """Return a page, as a visitor with this cookie gets it."""

    def wrote(self, keys: Iterable[str]) -> None:
        """Do what the application does for these pages right after a commit."""

    def cookie_after(self, shard: str, connection: Any) -> str:
        """Return the cookie of a visitor whose write this connection has just committed."""

    def stored(self, keys: Sequence[str]) -> Mapping[str, bytes]:
        """Return the entries that the cache would answer with now, as they are stored."""

    def entries(self, keys: Sequence[str]) -> Mapping[str, Any]:
        """Return their pages."""

    def counts(self) -> Counts:
        """Return what was counted so far."""

    def serve(self, shards: Sequence[str]) -> None:
        """Read from these shards from now on, after a reshard."""

    def close(self) -> None:
        """Disconnect."""
