"""The servers that a loader reads, by shard."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from caching.client.steps import ServerChoice
from caching.findings import Findings
from event_token import EventToken, ShardName
from event_token.errors import UsageError
from topics.keyspace.vindexes import vindex_named


class Rows(Protocol):
    """What a query returned, as `FreshRows` has it."""

    @property
    def rows(self) -> Sequence[Any]:
        """The rows, as the driver gives them."""

    @property
    def token(self) -> EventToken | None:
        """What the rows are proven to hold; None if that could not be found out."""

    @property
    def server(self) -> str:
        """The server that answered."""

    @property
    def is_primary(self) -> bool:
        """Whether it is the primary."""

    @property
    def has_waited(self) -> bool:
        """Whether a server was given time to catch up."""


class Reader(Protocol):
    """Reads one shard, as `FreshReader` does. Safe to use from several threads."""

    def execute(
        self,
        sql: str,
        args: Sequence[Any] = (),
        *,
        at_least: Iterable[EventToken] | None = None,
        server: ServerChoice = "any",
        prefer: str | None = None,
    ) -> Rows:
        """Run a query on a server that holds those of the writes that overlap its shard.

        `prefer` is asked before others of its role. Stale if no server holds them.
        """


@runtime_checkable
class Checkable(Protocol):
    """A reader that knows whether its servers are as it needs them, as `FreshReader` does."""

    def check(self) -> Findings:
        """Ask the servers."""


class Readers:
    """The readers of a keyspace, by shard name; their key ranges do not overlap.

    `vindex` is the function that places rows, for queries that name a value (`on=`).
    """

    def __init__(self, readers: Mapping[str, Reader], vindex: str) -> None:
        """Check them; UsageError if two overlap or there is none."""
        if not readers:
            raise UsageError("a cache needs the reader of at least one shard")
        self._readers = dict(readers)
        self._ranges = {shard: ShardName.parse(shard).key_range for shard in readers}
        self._vindex = vindex_named(vindex)
        for shard, key_range in self._ranges.items():
            for other, other_range in self._ranges.items():
                if shard < other and key_range.overlaps(other_range):
                    raise UsageError(
                        f"the readers of shards {shard} and {other} overlap: name those that serve"
                    )

    def shard_of(self, on: object, shard: str | None) -> str:
        """Return the shard that was named, or the one that has a value's keyspace id.

        UsageError if there is no reader of it, or neither was given and there are several shards.
        """
        if shard is not None:
            if shard not in self._readers:
                raise UsageError(f"no reader of shard {shard}: {self._names()}")
            return shard
        if on is None:
            if len(self._readers) > 1:
                raise UsageError(
                    f"a read of one of several shards ({self._names()}) takes on=, the value of "
                    "the sharding column, or shard=, a name"
                )
            return next(iter(self._readers))
        keyspace_id = self._vindex.keyspace_id(on)  # type: ignore[arg-type]  # it checks the type
        for name, key_range in self._ranges.items():
            if key_range.contains(keyspace_id):
                return name
        raise UsageError(
            f"no reader of the shard with keyspace id {keyspace_id.hex()}: {self._names()}"
        )

    def reader(self, shard: str) -> Reader:
        """Return the reader of a shard."""
        return self._readers[shard]

    def check(self) -> Findings:
        """Return what the servers of all readers tell a preflight, of those that can be asked."""
        found = Findings()
        for reader in self._readers.values():
            if isinstance(reader, Checkable):
                found.add(reader.check())
        return found

    def _names(self) -> str:
        return "the readers are of " + ", ".join(sorted(self._readers))
