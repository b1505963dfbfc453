"""What reads one shard: its interface, the rows that it returns, and the role of a server."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol, runtime_checkable

from caching.errors import CacheFindings
from event_token import EventToken

# Which servers of a shard may answer.
ServerRole = Literal["any", "replica", "primary"]


@dataclass(frozen=True, slots=True)
class FreshRows:
    """Rows as the driver returns them, and the token that they are proven to hold.

    `token`: every change up to it is in the rows; None if it was not asked for or is unknown.
    `fresher`: whether they hold at least what the compared token does; None if that is unknown.
    `server`: the host name and port of the server that answered, as it gives them, `is_primary` its
    role. `has_waited`: a server was given time to catch up. `age_ms`: the rows hold everything that
    was committed this long before the read began, `complete_to`: all that was committed up to this
    time; the clocks' uncertainty is included, and both are None if nothing proves them.
    """

    rows: list[Any]
    token: EventToken | None
    fresher: bool | None
    server: str
    is_primary: bool = False
    has_waited: bool = False
    age_ms: float | None = None
    complete_to: datetime | None = None


class Reader(Protocol):
    """Reads one shard, as `FreshReader` does. Safe to use from several threads."""

    def execute(
        self,
        sql: str,
        args: Sequence[Any] = (),
        *,
        at_least: Iterable[EventToken] | None = None,
        server: ServerRole = "any",
        prefer: str | None = None,
    ) -> FreshRows:
        """Run a query on a server that holds those of the writes that overlap its shard.

        `prefer` is asked before others of its role. Stale if no server holds them.
        """


class RoutedReader(Protocol):
    """Reads the shard that has a row, as `KeyspaceReader` does. Threads may share one."""

    def execute(
        self,
        sql: str,
        args: Sequence[Any] = (),
        *,
        on: Any,
        table: str | None = None,
        at_least: Iterable[EventToken] | None = None,
        server: ServerRole = "any",
        prefer: Mapping[str, str] = ...,
    ) -> FreshRows:
        """Run a query on the shard that has a value of the sharding column; else as `Reader`."""

    def check(self) -> CacheFindings:
        """Ask the servers of all shards."""


@runtime_checkable
class Checkable(Protocol):
    """A reader that knows whether its servers are as it needs them, as `FreshReader` does."""

    def check(self) -> CacheFindings:
        """Ask the servers."""
