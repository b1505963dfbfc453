"""What a change log has between the end of a batch and a time. Needs no Spark."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.dataset as ds

from event_token.errors import UsageError
from event_token.position import StreamPosition
from spark_consumers.applying.homes import Version
from spark_consumers.applying.shadow_tables import is_swap
from spark_consumers.applying.tables import (
    CHANGE_COLUMNS,
    STATEMENT_COLUMNS,
    STATEMENT_TYPES,
    Change,
    Statements,
    check_whole,
    versions_of,
)
from spark_consumers.change_log.delta_commit import (
    end_position,
    hopped_mark,
    partial_mark,
    shard_mark,
)
from spark_consumers.change_log.delta_files import open_changelog, read_batches
from spark_consumers.current_state.query.frontiers import Frontier
from spark_consumers.decoding.key_scope import KeyScope
from spark_consumers.decoding.scoped_rows import scoped_change


@dataclass(frozen=True, slots=True)
class LoggedImage:
    """A row as a change log has it: JSON text, and the texts of its invalid dates."""

    text: str
    invalid_dates: str | None


class LogWindow:
    """The part of a change log that a current state lacks as of a time.

    It has the records from before `timestamp_us` that come after the position of `frontier`.
    """

    def __init__(
        self,
        target: str,
        storage: Mapping[str, str],
        frontier: Frontier,
        timestamp_us: int,
        key_scope: KeyScope = KeyScope.KEYSPACE,
    ) -> None:
        """Open the change log; UsageError if it does not have the rows of all tables.

        `key_scope`: that of the current state.
        """
        self._key_scope = key_scope
        self._table = open_changelog(target, storage)
        self._storage = dict(storage)
        self._frontier = frontier
        self._timestamp_us = timestamp_us
        self._after = _after(frontier)
        schema = pa.schema(self._table.schema().to_arrow())
        if pa.types.is_struct(schema.field("after").type):
            raise UsageError(f"{target} has the rows of one table only: name a log of all tables")

    @property
    def begin(self) -> StreamPosition:
        """The position that the window comes after."""
        return self._frontier.position

    def check(self, later: Frontier | None) -> None:
        """Raise UsageError unless the log has all of the window.

        `later`: a frontier of the current state at or after the time. If nothing changes, the end
        of a log does not move, and that frontier tells that there was nothing to come.
        """
        if self._timestamp_us == self._frontier.frontier_us:
            return
        found = end_position(self._table)
        end = StreamPosition(0, 0) if found is None else StreamPosition.from_string(found)
        if end.frontier_us < self._timestamp_us and not self._has(later):
            raise UsageError(
                f"{self._table.table_uri}: the change log reaches {_text(end.frontier_us)} only: "
                f"ask for an earlier time, or again once `shardstream changelog` has read further"
            )
        begins = self._first_seqs()
        for shard, at in self._frontier.position.shards.items():
            ended = end.shards.get(shard)
            if found is not None and ended is None and not self._has_read(shard):
                raise UsageError(
                    f"{self._table.table_uri}: the change log has nothing of shard {shard}, which "
                    f"the current state follows: name a log of the same keyspace and key range"
                )
            first = begins.get(shard, at.seq + 1 if ended is None else ended.seq + 1)
            if first > at.seq + 1 and not self._may_have_holes(shard):
                raise UsageError(
                    f"{self._table.table_uri}: the change log begins too late: it has shard "
                    f"{shard} from seq {first} on, and the current state as of "
                    f"{_text(self._frontier.frontier_us)} has it up to seq {at.seq}. Ask for a "
                    f"later time, or name a change log that begins earlier"
                )

    def statements(self, accept_skip: Collection[str]) -> Statements:
        """Return the statements. CannotApply: see `replay_changelog`."""
        found = Statements(accept_skip)
        only = self._only(ds.field("type").isin(STATEMENT_TYPES))
        for batch in read_batches(self._table, self._storage, STATEMENT_COLUMNS, only):
            for record in batch.to_pylist():
                if record["type"] != "DDL" or not is_swap(record["statement"], record["database"]):
                    found.add(record)
        return found

    def versions(self, database: str, table: str) -> dict[str, list[Version]]:
        """Return what changes of a table left, by key; rows are `LoggedImage`. CannotApply."""
        only = self._only(
            (ds.field("type") == "ROW")
            & (ds.field("database") == database)
            & (ds.field("table") == table)
        )
        found: dict[str, list[Version]] = {}
        columns = (*CHANGE_COLUMNS, "off_calendar")
        for batch in read_batches(self._table, self._storage, columns, only):
            for change in batch.to_pylist():
                for key, version in self._versions(change):
                    found.setdefault(key, []).append(version)
        return found

    def _versions(self, change: Change) -> list[tuple[str, Version]]:
        if change["key"] is None:
            return []
        if self._key_scope is KeyScope.SHARD:
            check_whole(change)
            change = scoped_change(change)
        return _versions(change)

    def _only(self, what: ds.Expression) -> ds.Expression:
        return (ds.field("timestamp_us") < self._timestamp_us) & self._after & what

    def _has(self, later: Frontier | None) -> bool:
        """Tell whether the log has each shard up to a frontier."""
        if later is None:
            return False
        begin = self._frontier.position.shards
        for shard, at in later.position.shards.items():
            last = self._table.transaction_version(shard_mark(shard)) or 0
            if shard in begin:
                last = max(last, begin[shard].seq)
            if last < at.seq:
                return False
        return True

    def _has_read(self, shard: str) -> bool:
        """Tell whether the log has records of a shard, also of one that has ended since."""
        return self._table.transaction_version(shard_mark(shard)) is not None

    def _first_seqs(self) -> dict[str, int]:
        """Return the first seq of each shard after the frontier's position."""
        found: dict[str, int] = {}
        for batch in read_batches(self._table, self._storage, ("shard", "seq"), self._after):
            firsts = pa.Table.from_batches([batch]).group_by("shard").aggregate([("seq", "min")])
            for row in firsts.to_pylist():
                found[row["shard"]] = min(row["seq_min"], found.get(row["shard"], row["seq_min"]))
        return found

    def _may_have_holes(self, shard: str) -> bool:
        marks = (hopped_mark(shard), partial_mark(shard))
        return any(self._table.transaction_version(mark) is not None for mark in marks)


def _after(frontier: Frontier) -> ds.Expression:
    """Return what chooses the records after a frontier.

    Shards that its position does not name were left by a hop before it, or are met after it.
    """
    shards = frontier.position.shards
    found = ~ds.field("shard").isin(pa.array([*shards], pa.string())) & (
        ds.field("timestamp_us") >= frontier.frontier_us
    )
    for shard, at in shards.items():
        found |= (ds.field("shard") == shard) & (ds.field("seq") > at.seq)
    return found


def _versions(change: Change) -> list[tuple[str, Version]]:
    return [
        (key, version if version.row is None else replace(version, row=_image(version, change)))
        for key, version in versions_of(change)
    ]


def _image(version: Version, change: Change) -> LoggedImage:
    dates = change.get("off_calendar")
    return LoggedImage(str(version.row), None if dates is None else str(dates))


def _text(time_us: int) -> str:
    return datetime.fromtimestamp(time_us / 1e6, tz=UTC).isoformat(timespec="microseconds")
