"""Rows of the product's own tables, in the database `_shardstream`: never logged as rows.

A journal row becomes a JOURNAL record and a mark, a checkpoint row the origin of what follows in
its transaction, a heartbeat row a time. Other tables there (roles, results of verify) mean nothing
to the decoder.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from librt.strings import BytesWriter
from librt.vecs import vec
from mypy_extensions import i64, u8

from databases.internal_tables import INTERNAL_DATABASE
from event_token import EventToken, UsageError
from producers.decoder.errors import UnsupportedEvent, WriteAfterEnd
from producers.decoder.rows.images import NO_VALUE, find_values
from producers.decoder.rows.record_writer import RecordWriter
from producers.decoder.rows.value_writer import RowValueReader
from producers.decoder.stream.table_versions import statement_header
from producers.decoder.tables.plan import (
    CHECKPOINT,
    JOURNAL,
    ColumnPlan,
    RowsPlan,
    TablePlan,
)
from producers.decoder.tables.rows_plans import DELETE
from producers.decoder.values import operations as ops
from producers.decoder.values.wire import encode_string, write_long, write_string
from topics.progress.record import MARK_KINDS, JournalKind, Mark, MarkKind

MARK_NOT_ALONE: Final = (
    "a row of _shardstream.journal together with other changes: "
    "a mark needs a transaction of its own"
)
# The null branch of a token's origin.
NO_ORIGIN: Final = b"\0"

InternalRow = dict[str, int | str | None]


class InternalTables:
    """What the rows of `_shardstream` on this stream have said so far."""

    def __init__(
        self,
        keyspace: str,
        shard: str,
        ended_by: list[str],
        is_sharded: Callable[[str], bool],
        is_cancelled: Callable[[str], bool],
    ) -> None:
        """`ended_by`, `is_sharded`, `is_cancelled`: see DecoderOptions."""
        self._keyspace: str = keyspace
        self._shard: str = shard
        self._is_sharded: Callable[[str], bool] = is_sharded
        self._other_databases: set[str] = set()  # that are known not to be sharded
        self.ended_by: list[str] = ended_by
        self._is_cancelled: Callable[[str], bool] = is_cancelled
        self.refuses_rows: bool = len(ended_by) > 0
        # The mark under way or just complete. Its offset is the seq of its record.
        self.mark: Mark | None = None
        self.heartbeat_us: int = 0
        # The origin of the records that follow in this transaction, after its null branch.
        self.origin: bytes = NO_ORIGIN

    def check_left_out(self, table: TablePlan) -> None:
        """Check rows of a table that the filter rules leave out, which are never decoded."""
        if self.refuses_rows:
            self.refuse(table.database, table.table)

    def refuse(self, database: str, table: str) -> None:
        """Raise WriteAfterEnd on a row after END in a sharded database.

        Others stay on the server, and may be written at any time: by a heartbeat, by the server.
        """
        if database in self._other_databases:
            return
        if not self._is_sharded(database):
            self._other_databases.add(database)
            return
        self.ended_by = [name for name in self.ended_by if not self._is_cancelled(name)]
        self.refuses_rows = len(self.ended_by) > 0
        if not self.refuses_rows:
            return
        ids = ", ".join(self.ended_by)
        raise WriteAfterEnd(
            f"a row of {database}.{table} was changed after the END of reshard {ids}: "
            f"writes had not stopped, and the change is on no target. Find what still writes here "
            f"and stop it; then cancel the reshard (shardstream reshard cancel) and start this "
            f"producer again, which logs the row. If cancel answers that the reshard is decided, "
            f"run shardstream reshard switch and repeat the change on the target"
        )

    def takes(self, table: TablePlan, rows: RowsPlan, op: i64, images: bytes) -> bool:
        """Take a row event of an internal table; False if its rows are to be logged after all."""
        if not table.internal:
            self.refuse(table.database, table.table)
            return False  # of a database that is not sharded, or the reshard is cancelled
        if op == DELETE:
            return True
        for row in _read_rows(table, rows, images):
            if table.internal == JOURNAL:
                self._take_mark(row)
            elif table.internal == CHECKPOINT:
                self._take_checkpoint(row)
            else:
                self._take_heartbeat(row)
        return True

    def _take_mark(self, row: InternalRow) -> None:
        """Take a journal row, unless it is a mark of another keyspace on the same server."""
        if _text(row, "journal", "keyspace") != self._keyspace:
            return
        if self.mark is not None:
            raise UnsupportedEvent(MARK_NOT_ALONE)
        kind = _text(row, "journal", "kind")
        if kind not in MARK_KINDS:
            raise UnsupportedEvent(f"a row of {INTERNAL_DATABASE}.journal of the kind {kind!r}")
        hop_time_us = row.get("hop_time_us")
        mark = Mark(
            MARK_KINDS[JournalKind(kind)],
            -1,
            _text(row, "journal", "reshard_id"),
            _names(row, "sources"),
            _names(row, "targets"),
            hop_time_us if isinstance(hop_time_us, int) else None,
        )
        self._check_mark(mark, kind)
        match mark.kind:
            case MarkKind.END:
                self.ended_by.append(mark.reshard_id)
            case MarkKind.BEGIN | MarkKind.CANCEL:
                self.ended_by = [name for name in self.ended_by if name != mark.reshard_id]
        self.refuses_rows = len(self.ended_by) > 0
        self.mark = mark

    def add_mark(self, record: RecordWriter, prefix: bytes) -> None:
        """Add the JOURNAL record of the mark just taken; `prefix`: of JOURNAL records."""
        if self.mark is None:
            return
        self.mark = replace(self.mark, offset=record.next_seq)
        record.add_statement(
            prefix,
            statement_header(INTERNAL_DATABASE.encode("ascii")),
            encode_string(INTERNAL_DATABASE) + encode_string(""),
            self.mark.journal_text().encode("utf-8"),
        )

    def _check_mark(self, mark: Mark, kind: str) -> None:
        if self._shard not in _shards_of(mark):
            raise UnsupportedEvent(
                f"{kind} of reshard {mark.reshard_id} is not for this shard: its sources are "
                f"{', '.join(mark.sources)}, its targets {', '.join(mark.targets)}"
            )
        if (mark.kind == MarkKind.BEGIN) != (mark.hop_time_us is not None):
            raise UnsupportedEvent(
                f"{kind} of reshard {mark.reshard_id} has the hop time {mark.hop_time_us}: BEGIN "
                f"has one, the others have none"
            )

    def end_transaction(self, next_seq: int) -> None:
        """Check that a mark is alone in its transaction, and forget the origin."""
        if self.mark is not None and self.mark.offset != next_seq - 1:
            raise UnsupportedEvent(MARK_NOT_ALONE)
        self.origin = NO_ORIGIN

    def _take_checkpoint(self, row: InternalRow) -> None:
        """Take a checkpoint row, whose token is the origin of what follows."""
        text = _text(row, "checkpoint", "token")
        if not text:  # the first row of a reshard, before any transaction of the source
            self.origin = NO_ORIGIN
            return
        try:
            token = EventToken.from_string(text)
        except UsageError as error:
            raise UnsupportedEvent(f"{INTERNAL_DATABASE}.checkpoint: {error}") from error
        if token.timestamp_us is None or token.origin is not None:
            raise UnsupportedEvent(
                f"{INTERNAL_DATABASE}.checkpoint: the token of shard {token.shard} is not that of "
                f"a source's record"
            )
        out = BytesWriter()
        out.append(u8(2))
        write_long(out, token.timestamp_us)
        write_string(out, token.shard.encode("utf-8"))
        write_string(out, str(token.position).encode("ascii"))
        self.origin = out.getvalue()

    def _take_heartbeat(self, row: InternalRow) -> None:
        """Take a heartbeat row; rows of other shards and keyspaces do not count."""
        at_us, is_own = row.get("at_us"), row.get("keyspace") == self._keyspace
        if is_own and row.get("shard") == self._shard and isinstance(at_us, int):
            self.heartbeat_us = max(self.heartbeat_us, at_us)


def _shards_of(mark: Mark) -> tuple[str, ...]:
    """Return the shards in whose logs a mark belongs."""
    match mark.kind:
        case MarkKind.END:
            return mark.sources
        case MarkKind.BEGIN:
            return mark.targets
        case MarkKind.CANCEL:
            return mark.sources + mark.targets


def _text(row: InternalRow, table: str, column: str) -> str:
    value = row.get(column)
    if not isinstance(value, str):
        raise UnsupportedEvent(
            f"a row of {INTERNAL_DATABASE}.{table} has no {column}: the table must be the one "
            f"that `shardstream reshard create` makes, and binlog_row_image FULL"
        )
    return value


def _names(row: InternalRow, column: str) -> tuple[str, ...]:
    names = json.loads(_text(row, "journal", column))
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UnsupportedEvent(f"{INTERNAL_DATABASE}.journal: {column} is not a list of shards")
    return tuple([str(name) for name in names])


def _read_rows(table: TablePlan, rows: RowsPlan, images: bytes) -> list[InternalRow]:
    """Return the rows of an event by column name: values after, or before where after lacks one."""
    values = RowValueReader()
    places: vec[i64] = vec[i64]([NO_VALUE] * int(table.count))
    found: list[InternalRow] = []
    pos: i64 = 0
    while pos < len(images):
        row: InternalRow = {}
        if rows.has_before:
            pos = find_values(rows.before, rows.before_present, images, pos, places)
            _read_image(values, rows.before, images, places, row)
        if rows.has_after:
            pos = find_values(rows.after, rows.after_present, images, pos, places)
            _read_image(values, rows.after, images, places, row)
        found.append(row)
    if pos != len(images):
        raise ValueError("a row runs past the end of its event")
    return found


def _read_image(
    values: RowValueReader,
    columns: list[ColumnPlan],
    images: bytes,
    places: vec[i64],
    row: InternalRow,
) -> None:
    for column in columns:
        if column.op == ops.ABSENT:
            continue
        at: i64 = places[column.index]
        value = None if at == NO_VALUE else values.raw(column, images, at)
        if value is not None and not isinstance(value, (int, str)):
            raise UnsupportedEvent(
                f"column {column.place} does not have the type "
                f"that `shardstream reshard create` gives it"
            )
        row[column.name] = value
