"""Rows of the product's own tables, in the database `_shardstream`: never logged as rows.

A journal row becomes a JOURNAL record and a mark, a checkpoint row the origin of what follows in
its transaction, a heartbeat row a time. All else there (roles, verify's results) says nothing here.
"""

import json
from dataclasses import replace
from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64, u8

from event_token import EventToken, UsageError
from producers.decoder.errors import UnsupportedEvent, WriteAfterEnd
from producers.decoder.rows.record_sink import RecordSink
from producers.decoder.rows.row_values import write_image
from producers.decoder.tables import plan as ops
from producers.decoder.tables.plan import (
    CHECKPOINT,
    INTERNAL_DATABASE,
    JOURNAL,
    SILENT,
    ColumnPlan,
    RowsPlan,
    TablePlan,
)
from producers.decoder.tables.table_versions import DELETE, Tables, statement_header
from producers.decoder.values.wire import encode_string, take, write_long, write_string
from topics.progress.record import Mark, MarkKind

MARK_NOT_ALONE: Final = (
    "a row of _shardstream.journal together with other changes: "
    "a mark needs a transaction of its own"
)
# The null branch of a token's origin.
NO_ORIGIN: Final = b"\0"

# The server's own tables hold no row of a keyspace; hosting services write to them at any time.
_SYSTEM_DATABASES: Final = frozenset(("mysql", "sys"))
_MARK_KINDS: Final = {
    "BEGIN": MarkKind.BEGIN,
    "END": MarkKind.END,
    "CANCELLED": MarkKind.CANCEL,
}

InternalRow = dict[str, int | str | None]


class InternalTables:
    """What the rows of `_shardstream` have said on this stream so far."""

    def __init__(self, shard: str, ended_by: list[str]) -> None:
        """`ended_by`: the reshards whose END the log holds already, without their CANCELLED."""
        self._shard: str = shard
        self._ended_by: list[str] = ended_by
        self.refuses_rows: bool = len(ended_by) > 0
        # The mark under way or just complete; its offset is the seq of its record.
        self.mark: Mark | None = None
        self.heartbeat_us: int = 0
        # The origin of the records that follow in this transaction, its null branch in front.
        self.origin: bytes = NO_ORIGIN

    def see_left_out(self, table: TablePlan) -> None:
        """Judge rows of a table that the filter rules leave out: nothing of them is decoded."""
        if self.refuses_rows:
            self._refuse(table)

    def _refuse(self, table: TablePlan) -> None:
        """Raise WriteAfterEnd: a row of the keyspace behind an END. Not for the server's own."""
        if table.database in _SYSTEM_DATABASES:
            return
        ids = ", ".join(self._ended_by)
        raise WriteAfterEnd(
            f"a row of {table.database}.{table.table} was changed after the END of reshard {ids}: "
            f"writes had not stopped, and the change is on no target. Find who writes here and "
            f"stop it; then either cancel the reshard (shardstream reshard cancel) and start this "
            f"producer again, or, where it has begun on a target, repeat the change there"
        )

    def takes(self, table: TablePlan, rows: RowsPlan, op: i64, images: bytes) -> bool:
        """Take the images of a row event that may not be logged; False: log them all the same."""
        if not table.internal:
            self._refuse(table)
            return False
        if table.internal == SILENT or op == DELETE:
            return True
        for row in read_rows(table, rows, images):
            if table.internal == JOURNAL:
                self._take_mark(row)
            elif table.internal == CHECKPOINT:
                self._take_checkpoint(row)
            else:
                self._take_heartbeat(row)
        return True

    def _take_mark(self, row: InternalRow) -> None:
        if self.mark is not None:
            raise UnsupportedEvent(MARK_NOT_ALONE)
        kind = _text(row, "journal", "kind")
        if kind not in _MARK_KINDS:
            raise UnsupportedEvent(f"a row of {INTERNAL_DATABASE}.journal of the kind {kind!r}")
        hop_time_us = row.get("hop_time_us")
        mark = Mark(
            _MARK_KINDS[kind],
            -1,
            _text(row, "journal", "reshard_id"),
            _names(row, "sources"),
            _names(row, "targets"),
            hop_time_us if isinstance(hop_time_us, int) else None,
        )
        self._check_mark(mark, kind)
        if mark.kind == MarkKind.END:
            self._ended_by.append(mark.reshard_id)
        else:
            self._ended_by = [name for name in self._ended_by if name != mark.reshard_id]
        self.refuses_rows = len(self._ended_by) > 0
        self.mark = mark

    def add_mark(self, sink: RecordSink, tables: Tables) -> None:
        """Add the JOURNAL record of the mark just taken."""
        if self.mark is None:
            return
        self.mark = replace(self.mark, offset=sink.next_seq)
        sink.add_statement(
            tables.statement_prefix("JOURNAL"),
            statement_header(INTERNAL_DATABASE.encode("ascii")),
            encode_string(INTERNAL_DATABASE) + encode_string(""),
            mark_text(self.mark).encode("utf-8"),
        )

    def _check_mark(self, mark: Mark, kind: str) -> None:
        here = mark.sources if mark.kind == MarkKind.END else mark.targets
        if mark.kind == MarkKind.CANCEL:
            here = mark.sources + mark.targets
        if self._shard not in here:
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
        """Check that a mark stands alone, and forget the transaction's origin."""
        if self.mark is not None and self.mark.offset != next_seq - 1:
            raise UnsupportedEvent(MARK_NOT_ALONE)
        self.origin = NO_ORIGIN

    def _take_checkpoint(self, row: InternalRow) -> None:
        """Take a row of the checkpoint table: its token is the origin of what follows."""
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
        """Take a row of the heartbeat table; those of other shards do not count."""
        at_us = row.get("at_us")
        if row.get("shard") == self._shard and isinstance(at_us, int):
            self.heartbeat_us = max(self.heartbeat_us, at_us)


def mark_text(mark: Mark) -> str:
    """The row of the journal as JSON: the statement of a JOURNAL record."""
    kind = "CANCELLED" if mark.kind == MarkKind.CANCEL else mark.kind.value
    return json.dumps(
        {
            "reshard_id": mark.reshard_id,
            "kind": kind,
            "sources": list(mark.sources),
            "targets": list(mark.targets),
            "hop_time_us": mark.hop_time_us,
        }
    )


def _text(row: InternalRow, table: str, column: str) -> str:
    value = row.get(column)
    if not isinstance(value, str):
        raise UnsupportedEvent(
            f"a row of {INTERNAL_DATABASE}.{table} does not say its {column}: the table must be "
            f"the one that `shardstream reshard create` makes, and binlog_row_image FULL"
        )
    return value


def _names(row: InternalRow, column: str) -> tuple[str, ...]:
    names = json.loads(_text(row, "journal", column))
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UnsupportedEvent(f"{INTERNAL_DATABASE}.journal: {column} is not a list of shards")
    return tuple([str(name) for name in names])


def read_rows(table: TablePlan, rows: RowsPlan, images: bytes) -> list[InternalRow]:
    """The rows of a row event, by column name: after's values, and before's where it lacks one.

    They are written as any row is, to a record that nobody gets, and read back from there.
    """
    scratch = RecordSink("", "", 0, -1, _no_produce)
    found: list[InternalRow] = []
    pos: i64 = 0
    while pos < len(images):
        row: InternalRow = {}
        for image in range(2):
            if image == 0 and rows.has_before:
                columns = rows.before
                present = rows.before_present
            elif image == 1 and rows.has_after:
                columns = rows.after
                present = rows.after_present
            else:
                continue
            begin: i64 = len(scratch.open_row(table, rows))
            pos = write_image(scratch, columns, present, images, pos)
            _read_image(table, columns, scratch.out.getvalue(), begin, row)
        found.append(row)
    if pos != len(images):
        raise ValueError("a row passes the end of its event")
    return found


def _no_produce(*_arguments: object) -> None:
    """Take the place of a client: rows that are read here are never produced."""
    raise ValueError("a row of an internal table was about to be produced")


def _read_image(
    table: TablePlan, columns: list[ColumnPlan], image: bytes, pos: i64, into: InternalRow
) -> None:
    for column in columns:
        has_value = i64(image[pos]) != 0
        pos += 1
        if column.op == ops.ABSENT:
            continue
        if not has_value:
            into[column.name] = None
        elif ops.I8 <= column.op <= ops.I64:
            into[column.name] = _unzigzag(image, pos)
            pos += _varint_size(image, pos)
        elif column.op == ops.U64:
            into[column.name] = int.from_bytes(take(image, pos, 9), "big")
            pos += 9
        elif column.op in (ops.VARCHAR, ops.BLOB):
            size: i64 = _unzigzag(image, pos)
            pos += _varint_size(image, pos)
            into[column.name] = take(image, pos, size).decode("utf-8")
            pos += size
        else:
            raise UnsupportedEvent(
                f"column {column.name} of {table.database}.{table.table} is not of the type that "
                f"`shardstream reshard create` gives it"
            )


def _varint_size(image: bytes, pos: i64) -> i64:
    size: i64 = 1
    while i64(image[pos + size - 1]) & 0x80:
        size += 1
    return size


def _unzigzag(image: bytes, pos: i64) -> i64:
    raw: int = 0
    for i in range(_varint_size(image, pos)):
        raw |= (image[pos + i] & 0x7F) << (7 * int(i))
    return (raw >> 1) ^ -(raw & 1)
