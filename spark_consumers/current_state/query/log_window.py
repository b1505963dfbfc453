"""What a change log has between the end of a batch and a time. Needs no Spark."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.dataset as ds

from event_token.errors import UsageError
from event_token.position import StreamPosition
from spark_consumers.applying.batch_statements import BatchStatements
from spark_consumers.applying.homes import Version
from spark_consumers.applying.tables import (
    CHANGE_COLUMNS,
    STATEMENT_COLUMNS,
    STATEMENT_TYPES,
    Change,
    Statements,
    check_whole,
    of_present_rows,
    versions_of,
)
from spark_consumers.change_log.delta_commit import (
    end_position,
    hopped_mark,
    partial_mark,
    shard_mark,
)
from spark_consumers.change_log.delta_files import file_bounds, open_changelog, read_batches
from spark_consumers.current_state.query.frontiers import Frontier
from spark_consumers.decoding.key_scope import KeyScope
from spark_consumers.decoding.scoped_rows import scoped_change
from spark_consumers.sink_query.origin import key_scope_of, streams_differ


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
        kept_origin: Mapping[str, str],
    ) -> None:
        """Open the change log; UsageError if it is of another stream, or not of all tables.

        `kept_origin`: what the current state keeps of its stream.
        """
        self._key_scope = key_scope_of(kept_origin)
        self._table = open_changelog(target, storage)
        _check_origin(target, self._table.metadata().configuration, kept_origin)
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

    def statements(self, accept_skip: Collection[str]) -> BatchStatements:
        """Return the statements. CannotApply: see `replay_changelog`."""
        found = BatchStatements(Statements(accept_skip))
        only = self._only(ds.field("type").isin(STATEMENT_TYPES))
        for batch in self._read(STATEMENT_COLUMNS, only):
            for record in batch.to_pylist():
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
        for batch in self._read((*CHANGE_COLUMNS, "off_calendar"), only):
            for change in batch.to_pylist():
                for key, version in self._versions(change):
                    found.setdefault(key, []).append(version)
        return found

    def _versions(self, change: Change) -> list[tuple[str, Version]]:
        present = of_present_rows(change)
        if present is None or present["key"] is None:
            return []
        change = present
        if self._key_scope is KeyScope.SHARD:
            check_whole(change)
            change = scoped_change(change)
        return _versions(change)

    def _read(self, columns: Sequence[str], only: ds.Expression) -> Iterator[pa.RecordBatch]:
        return read_batches(self._table, self._storage, columns, only, self._files())

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
        """Return the first seq after the frontier's position, of each shard that it names.

        Most files have one shard; the log's statistics tell what is in those after the position.
        """
        begin = {shard: at.seq for shard, at in self._frontier.position.shards.items()}
        found: dict[str, int] = {}
        unread: list[str] = []
        for file in file_bounds(self._table, ("shard", "seq")):
            shard, first, last = file["min.shard"], file["min.seq"], file["max.seq"]
            if None in {shard, first, last} or shard != file["max.shard"]:
                unread.append(file["path"])
            elif shard in begin and first > begin[shard]:
                found[shard] = min(first, found.get(shard, first))
            elif shard in begin and last > begin[shard]:
                unread.append(file["path"])
        columns = ("shard", "seq")
        for batch in read_batches(self._table, self._storage, columns, self._after, unread):
            firsts = pa.Table.from_batches([batch]).group_by("shard").aggregate([("seq", "min")])
            for row in firsts.to_pylist():
                found[row["shard"]] = min(row["seq_min"], found.get(row["shard"], row["seq_min"]))
        return found

    def _files(self) -> list[str]:
        """Return the files that may have records from before the time."""
        bounds = file_bounds(self._table, ("timestamp_us",))
        firsts = ((file["path"], file["min.timestamp_us"]) for file in bounds)
        return [path for path, first in firsts if first is None or first < self._timestamp_us]

    def _may_have_holes(self, shard: str) -> bool:
        marks = (hopped_mark(shard), partial_mark(shard))
        return any(self._table.transaction_version(mark) is not None for mark in marks)


def _check_origin(target: str, logged: Mapping[str, str], kept: Mapping[str, str]) -> None:
    """Refuse a log of another keyspace or key range; one of 0.1.0 does not tell its own."""
    differs = streams_differ(logged, kept)
    if differs is not None:
        raise UsageError(
            f"{target}: the change log is of {differs} as the current state: name a log of the "
            f"same keyspace and key range"
        )
    if key_scope_of(logged) is KeyScope.SHARD:
        raise UsageError(
            f"{target}: the keys of this change log have keyspace ids (keyScope shard): name a "
            f"log that was written without"
        )


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
