"""The target of a comparison: its tables, and how far its position is."""

import hashlib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from sqlalchemy import Connection

from event_token import GtidSet, KeyRange
from event_token.errors import Retry, UsageError
from spark_consumers.decoding.key_scope import KeyScope
from spark_consumers.second_database.catalog import LEFT, LOADING, Catalog, KnownTarget
from spark_consumers.second_database.urls import dialect_of
from spark_consumers.second_database.verify.compared_table import ComparedTable
from spark_consumers.second_database.verify.sources import Name, ShardSource
from spark_consumers.sink_query.resume import TargetState
from topics.kafka.deadline import Deadline

# A query applies a batch every second or two. However far it has to go, it is waited for as long as
# it moves: this is how long it may stand still, and how long a log may be behind.
WAIT_S_MAX = 120.0
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class VerifyTarget:
    """A second database. `replaces_nul`: as its query was told; `key_range`: what it follows."""

    url: str
    follower: str
    replaces_nul: bool = False
    key_range: KeyRange = field(default_factory=lambda: KeyRange.parse("-"))
    wait_s: float = WAIT_S_MAX


class TargetSession:
    """The target, and what of it all tables share."""

    def __init__(self, target: VerifyTarget) -> None:
        """Nothing is connected yet. UsageError: the URL is wrong."""
        self._target = target
        self._dialect = dialect_of(target.url, replaces_nul=target.replaces_nul)
        self._catalog = Catalog(self._dialect, target.follower)
        self._engine = self._dialect.open_engine()
        digest = hashlib.sha256(target.follower.encode()).hexdigest()[:16]
        self._prefix = f"verify_{digest}_"
        self._soft = False

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """One transaction; a ShardstreamError tells what the database refuses."""
        with self._dialect.errors(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """One comparison at a time; it drops what one that was killed has left."""
        try:
            with self._dialect.errors(), self._engine.connect() as connection:
                if not self._dialect.claim(connection, f"verify {self._target.follower}"):
                    raise Retry(
                        f"{self._catalog.where}: another verify runs; wait until it has ended"
                    )
                connection.commit()
                self._drop_leftovers()
                yield
                self._drop_leftovers()
        finally:
            self._engine.dispose()

    def _drop_leftovers(self) -> None:
        with self.transaction() as connection:
            for name in self._dialect.stages(connection, self._prefix):
                self._dialect.drop_stage(connection, name)

    def chosen(self, tables: Sequence[Name]) -> dict[Name, KnownTarget]:
        """Return the follower's tables, or some. UsageError, and Retry while a copy runs."""
        with self.transaction() as connection:
            options = self._catalog.options(connection)
            if options is None:
                raise UsageError(f"{self._catalog.where} has not been begun: nothing to verify")
            if options.get("key_scope", KeyScope.KEYSPACE) != KeyScope.KEYSPACE:
                raise UsageError(
                    f"{self._catalog.where} was begun with --key-scope {options['key_scope']}: "
                    f"verify compares tables whose keys are those of the sources"
                )
            self._soft = options["deletes"] == "soft"
            known = self._catalog.tables(connection)
        missing = sorted(set(tables) - known.keys())
        if missing:
            raise UsageError(
                f"{self._catalog.where} has no table {'.'.join(missing[0])}: it follows "
                f"{', '.join(sorted('.'.join(name) for name in known)) or 'none yet'}"
            )
        left = {name for name, each in known.items() if each.state == LEFT}
        found = {name: known[name] for name in tables or known.keys() - left}
        if left & found.keys():
            raise UsageError(
                f"{self._catalog.where} does not follow {'.'.join(min(left & found.keys()))} any "
                f"more (--table of its query): verify the others"
            )
        loading = sorted(".".join(name) for name, each in found.items() if each.state == LOADING)
        if loading:
            raise Retry(
                f"{self._catalog.where}: the copy of {', '.join(loading)} is under way, so rows "
                f"are missing: verify when state is 'complete' in _shardstream.tables, or leave "
                f"the table out with --table"
            )
        return found

    def compared(self, name: Name, known: KnownTarget) -> ComparedTable:
        """Return a table that `chosen` has found."""
        return ComparedTable(
            *(self._dialect, name, known),
            prefix=self._prefix,
            soft=self._soft,
            key_range=self._target.key_range,
        )

    def refresh(self, connection: Connection, table: ComparedTable) -> None:
        """Let a table know the columns that the target has in this transaction."""
        table.now(self._catalog.tables(connection)[table.name])

    def frontier_us(self) -> int:
        """Return the time up to which all tables are complete, 0 before the first batch."""
        with self.transaction() as connection:
            return self._catalog.applied(connection)[1] or 0

    def wait_for(self, executed: dict[ShardSource, GtidSet]) -> None:
        """Wait until the position contains what these shards had executed.

        Retry: a log does not reach it in time, or the position stands still for as long.
        """
        for source, gtids in executed.items():
            deadline = Deadline(self._target.wait_s)
            while (seq := source.logged_seq(gtids)) is None:
                if deadline.passed:
                    raise Retry(
                        f"shard {source.shard}: its log has not reached {gtids} within "
                        f"{deadline.seconds:g} s: is its producer running?"
                    )
                time.sleep(_POLL_S)
            self._wait_for_seq(source.shard, seq)

    def _wait_for_seq(self, shard: str, seq: int) -> None:
        """Wait for as long as the target comes nearer, however far it is behind."""
        held, deadline = self._held(), Deadline(self._target.wait_s)
        while (at := _seq_of(held, shard)) < seq:
            time.sleep(_POLL_S)
            before, held = held, self._held()
            if held != before:
                deadline = Deadline(self._target.wait_s)
            elif deadline.passed:
                raise Retry(
                    f"{self._catalog.where} has stood still for {deadline.seconds:g} s at seq {at} "
                    f"of shard {shard}, before seq {seq}: is `shardstream database` running?"
                )

    def _held(self) -> TargetState | None:
        with self.transaction() as connection:
            return self._catalog.held(connection)


def _seq_of(held: TargetState | None, shard: str) -> int:
    there = None if held is None else held.position.shards.get(shard)
    return -1 if there is None else there.seq
