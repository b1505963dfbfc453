"""A model of a keyspace whose rows are cached: servers that lag, and an invalidator in steps."""

import json
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from caching.client.cache import CacheClient
from caching.client.options import CacheOptions
from caching.client.reads import Read
from caching.protocol import Floor, Hit, decide_hit
from caching.protocol.freshness import Tokens, holds
from caching.reading.reader import FreshRows, ServerRole
from caching.stores.store import KeyChange
from event_token import EventToken
from tests.caching.protocol.database import Change, Database, Shard
from tests.caching.protocol.tokens import TRUSTED
from tests.caching.stores.opened import RANGE, Opened

# The composite `pair` has a row of each of two shards.
ROWS = {"r20": ("r20",), "r60": ("r60",), "ra0": ("ra0",), "pair": ("r20", "ra0")}


class OwnWriteMissing(Exception):  # noqa: N818 - stands for Stale
    """No server has the write that was asked for."""


@dataclass
class ModelReader:
    """Reads one shard: the replica, unless the primary is named or alone has what is asked for.

    The SQL is the name of a row; the rows are its version.
    """

    shard: Shard
    queries: list[str] = field(default_factory=list)
    preferred: list[str | None] = field(default_factory=list)
    has_tokens: bool = True

    def execute(
        self,
        sql: str,
        args: Sequence[Any] = (),  # noqa: ARG002 - names of rows take none
        *,
        at_least: Iterable[EventToken] | None = None,
        server: ServerRole = "any",
        prefer: str | None = None,
    ) -> FreshRows:
        self.preferred.append(prefer)
        asked = [self.shard.primary] if server == "primary" else [self.shard.replica]
        for each in (*asked, self.shard.primary):
            token = each.token()
            here = [write for write in at_least or () if write.shard == token.shard]
            if all(holds({token.shard: token}, write, TRUSTED) for write in here):
                kind = "primary" if each is self.shard.primary else "replica"
                self.queries.append(f"{sql} {kind}")
                found = token if self.has_tokens else None
                return FreshRows([each.version(sql)], found, None, kind, kind == "primary")
        raise OwnWriteMissing


@dataclass
class Model:
    """A database, a store with floors, and the invalidator's place in each log."""

    opened: Opened
    options: CacheOptions = field(default_factory=lambda: CacheOptions(lease_ms=0))
    database: Database = field(default_factory=Database)
    applied: dict[str, int] = field(default_factory=dict)
    readers: dict[str, ModelReader] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Start with replicas that have everything, and with all floors."""
        for name, shard in self.database.shards.items():
            self.readers[name] = ModelReader(shard)
        self.catch_up()
        self.opened.floors.resume(RANGE)
        self.opened.store.want_floors(range(self.opened.layout.buckets))
        self.make_floors()

    def cache(self, **choices: Any) -> CacheClient:
        """A client of one process."""
        return CacheClient(self.opened.raw, self.readers, self.options, **choices)

    def load(self, read: Read, key: str) -> dict[str, int]:
        """The loader of every key: the versions of its rows."""
        return {row: read(row, shard=self.database.serving(row).name)[0] for row in ROWS[key]}

    def get(self, cache: CacheClient, key: str, *newer_than: EventToken) -> Any:
        """Get a key."""
        return cache.get_or_load(key, lambda read: self.load(read, key), newer_than=newer_than)

    def queries(self) -> int:
        """How many queries were run on all shards."""
        return sum(len(reader.queries) for reader in self.readers.values())

    def write(self, row: str) -> EventToken:
        """Change a row on its primary."""
        token = self.database.write(row)
        assert token is not None
        return token

    def catch_up(self) -> None:
        """Let all replicas apply everything."""
        for shard in self.database.shards.values():
            self.database.catch_up(shard, len(shard.log))

    def pending(self) -> list[tuple[str, Change]]:
        """The changes that are not applied yet, shard by shard."""
        return [
            (name, change)
            for name, shard in self.database.shards.items()
            for change in shard.log[self.applied.get(name, 0) :]
        ]

    def apply(self) -> None:
        """Apply all changes of all logs, as the invalidator does."""
        for name, change in self.pending():
            self.apply_change(change)
            self.applied[name] = self.applied.get(name, 0) + 1

    def apply_change(self, change: Change) -> None:
        """Apply one transaction."""
        keys = [key for key, rows in ROWS.items() if set(rows) & set(change.rows)]
        self.opened.floors.invalidate([KeyChange(key, change.token) for key in keys])

    def ends(self) -> Tokens:
        """The end of each log."""
        return {name: shard.end() for name, shard in self.database.shards.items()}

    def make_floors(self) -> None:
        """Make the floors that clients asked for, at the end of each log."""
        claim = self.opened.floors.claim(self.opened.floors.wanted())
        ends = self.ends()
        self.opened.floors.make_floors(claim, lambda: Floor(secrets.token_bytes(16), ends))

    def renew(self, *changes: EventToken) -> None:
        """Give all floors new generations at these changes: DDL, SKIP, or a gap in the logs."""

        def renewed(floor: Floor) -> Floor:
            for change in changes:
                floor = floor.renewed(secrets.token_bytes(16), change)
            return floor

        self.opened.floors.change_floors(self.opened.store.nodes, renewed)

    def begin(self, shard: str) -> None:
        """Switch to a target: its BEGIN is a change of every bucket in its range (rule 12)."""
        self.database.begin(shard)
        token = self.database.shards[shard].end()
        self.opened.floors.change_floors(self.opened.store.nodes, lambda floor: floor.raised(token))
        self.readers.pop("-80", None)
        self.readers[shard] = ModelReader(self.database.shards[shard])

    def cached(self, key: str) -> Any:
        """What a hit of a key returns; None for a miss."""
        [pair] = self.opened.store.read([key])
        found = decide_hit(pair.floor, pair.slot, TRUSTED)
        return json.loads(found.value or b"null") if isinstance(found, Hit) else None

    def fills_again(self, key: str) -> Any:
        """Let the replicas catch up; the value that is cached then, which has to be a hit."""
        self.catch_up()
        cache = self.cache()
        self.get(cache, key)
        assert self.cached(key) is not None
        return self.get(cache, key)
