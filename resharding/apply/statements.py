"""Changes as SQL statements, many rows per statement, in the order of the changes. Pure.

Typed for mypyc, and correct uncompiled too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from databases.sql import bytes_literal, quoted
from resharding.apply.literals import LiteralWriter, is_error_label, literal_writer
from resharding.errors import DoesNotApply
from resharding.routing import Change, Upsert, place_of
from topics.records.table_shape import TableShape, ValueKind
from topics.records.vevent import Row, VEvent

# Larger statements save hardly anything, and their errors would name more rows.
STATEMENT_ROWS_MAX: Final = 1_000
# A DELETE is a list of conditions, for which the server's optimizer has less room.
DELETE_ROWS_MAX: Final = 200
STATEMENT_BYTES_MAX: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class TargetStatement:
    """One statement of a target transaction.

    `one_row`: it must change exactly one row (a checkpoint). `error_labels`: number of ENUM error
    values in it, which strict mode rejects. `first`, `last`: the records that it comes from. `own`:
    its rows, in a merge.
    """

    sql: str
    first: VEvent
    last: VEvent
    one_row: bool = False
    error_labels: int = 0
    own: "OwnRows | None" = None


@dataclass(frozen=True, slots=True)
class ReshardTargetTable:
    """A table on the target, as its server describes it."""

    database: str
    table: str
    columns: tuple[str, ...]
    generated: frozenset[str]
    sharding_column: str


class RowWriter:
    """Writes the rows of one table version for one target table.

    In a merge, rows are inserted where a REPLACE would push rows of other sources away, and a row
    is deleted by the very sharding value of its image: equal ones may be of two sources.
    """

    def __init__(
        self, target: ReshardTargetTable, shape: TableShape, event: VEvent, *, is_merge: bool
    ) -> None:
        names = {column.name for column in shape.columns}
        # MariaDB's generated columns are in no log, and no target takes their values.
        if names | target.generated != set(target.columns):
            different = ", ".join(sorted((names | target.generated) ^ set(target.columns)))
            raise DoesNotApply(
                f"{place_of(event)}: source and target of {target.database}.{target.table} do not "
                f"have the same columns: {different}. Make the tables the same and start again",
            )
        writers = {column.name: literal_writer(column) for column in shape.columns}
        self.shape: TableShape = shape  # keeps it alive: writers are found by its id
        self.target: ReshardTargetTable = target
        self._name: str = f"{quoted(target.database)}.{quoted(target.table)}"
        self._values: list[LiteralWriter] = [
            writer for name, writer in writers.items() if name not in target.generated
        ]
        self._enums: list[str] = [c.name for c in shape.columns if is_error_label(c, "")]
        self.key: list[str] = [shape.columns[i].name for i in shape.primary_key]
        self._key_writers: list[LiteralWriter] = [writers[name] for name in self.key]
        keys = list(self.key)
        if target.sharding_column not in keys:
            # By now another source may have another row with the same key.
            keys.append(target.sharding_column)
        self._keys: list[tuple[str, LiteralWriter]] = [
            (quoted(name), writers[name]) for name in keys
        ]
        kinds = {column.name: column.kind for column in shape.columns}
        is_text = kinds.get(target.sharding_column) is ValueKind.STRING
        self._text: str = target.sharding_column if is_merge and is_text else ""
        self.columns: str = ", ".join([quoted(writer.name) for writer in self._values])
        verb = "INSERT" if is_merge else "REPLACE"
        self._upsert: str = f"{verb} INTO {self._name} ({self.columns}) VALUES "

    def error_labels(self, row: Row) -> int:
        """Count the ENUM error values of a row."""
        return sum([row[name] == "" for name in self._enums]) if self._enums else 0

    def upsert_part(self, row: Row) -> str:
        """The row's part of a REPLACE or an INSERT."""
        values: list[str] = []
        for writer in self._values:
            value = row[writer.name]
            values.append("NULL" if value is None else writer.write(value))
        return "(" + ", ".join(values) + ")"

    def delete_part(self, row: Row) -> str:
        """The row's part of a DELETE."""
        terms: list[str] = []
        for name, writer in self._keys:
            value = row[writer.name]
            terms.append(f"{name} IS NULL" if value is None else f"{name} = {writer.write(value)}")
        if self._text:
            name, text = quoted(self._text), row[self._text]
            exact = bytes_literal(str(text).encode())
            terms.append(f"CAST(CONVERT({name} USING utf8mb4) AS BINARY) = {exact}")
        return "(" + " AND ".join(terms) + ")"

    def key_part(self, row: Row) -> str:
        """The row's key as literals, the same for all images of the row with this key."""
        return ", ".join([writer.write(row[writer.name]) for writer in self._key_writers])

    def whole(self, parts: list[str], *, upsert: bool) -> str:
        """Return the statement that has these parts."""
        if upsert:
            return self._upsert + ", ".join(parts)
        return f"DELETE FROM {self._name} WHERE {' OR '.join(parts)}"


@dataclass(frozen=True, slots=True)
class OwnRows:
    """The rows that a statement of a merge inserts or deletes, all of one source.

    `parts`: each as its part of the statement.
    """

    source: str
    writer: RowWriter
    rows: list[Row]
    parts: list[str]
    inserted: bool


class StatementBuilder:
    """Collects the changes of a target transaction; `take` returns the statements so far.

    REPLACE deletes rows that conflict on *any* unique key, so a row that is ahead of another (a
    copied one) may take its value; the other row's own change is still to come. In a merge nothing
    is replaced, and statements have their rows with them.
    """

    def __init__(
        self,
        table_of: Callable[[str, str], ReshardTargetTable],
        *,
        rows_max: int = STATEMENT_ROWS_MAX,
        packet_bytes_max: int,
        is_merge: bool = False,
    ) -> None:
        """`table_of` describes a target table; `packet_bytes_max` limits a statement."""
        self._table_of = table_of
        self._is_merge = is_merge
        self._rows_max = rows_max
        self._packet_bytes_max = packet_bytes_max
        # By the id of the shape, one object per table version: hashing it would cost more.
        self._writers: dict[int, RowWriter] = {}
        self._statements: list[TargetStatement] = []
        self._run: _Run | None = None
        self.size_bytes = 0

    def checkpoint(self, sql: str, event: VEvent) -> None:
        """Add the statement that moves the checkpoint."""
        self._end_run()
        self._statements.append(TargetStatement(sql, event, event, one_row=True))

    def add(self, change: Change, event: VEvent) -> None:
        """Add a change. DoesNotApply when tables differ or the row is too large to send."""
        shape = event.shape
        assert shape is not None  # noqa: S101 - rows have a shape
        writer = self._writers.get(id(shape))
        if writer is None:
            target = self._table_of(change.database, change.table)
            writer = RowWriter(target, shape, event, is_merge=self._is_merge)
            self._writers[id(shape)] = writer
        row = change.row
        upsert = isinstance(change, Upsert)
        part = writer.upsert_part(row) if upsert else writer.delete_part(row)
        error_labels = writer.error_labels(row) if upsert else 0
        self.size_bytes += len(part)
        run = self._run
        if run is None or not run.takes(writer, part, upsert, error_labels):
            self._end_run()
            rows_max = self._rows_max if upsert else min(self._rows_max, DELETE_ROWS_MAX)
            bytes_max = min(STATEMENT_BYTES_MAX, self._packet_bytes_max // 2)
            run = self._run = _Run(writer, event, upsert, error_labels, (rows_max, bytes_max))
        run.parts.append(part)
        if self._is_merge:
            run.rows.append(row)
        run.size_bytes += len(part)
        run.last = event

    def take(self) -> list[TargetStatement]:
        """Return what was collected and start over."""
        self._end_run()
        taken, self._statements = self._statements, []
        self.size_bytes = 0
        return taken

    def _end_run(self) -> None:
        run, self._run = self._run, None
        if run is None:
            return
        sql = run.writer.whole(run.parts, upsert=run.upsert)
        if len(sql) >= self._packet_bytes_max:
            raise DoesNotApply(
                f"{place_of(run.first)}: a row of {run.first.database}.{run.first.table} takes "
                f"{len(sql)} bytes as a statement: raise max_allowed_packet of the target above "
                f"that (it is {self._packet_bytes_max}) and start again",
            )
        own = None
        if self._is_merge:
            own = OwnRows(run.first.shard, run.writer, run.rows, run.parts, run.upsert)
        self._statements.append(
            TargetStatement(sql, run.first, run.last, error_labels=run.error_labels, own=own)
        )


class _Run:
    """Consecutive changes that go into one statement."""

    def __init__(
        self,
        writer: RowWriter,
        first: VEvent,
        upsert: bool,
        error_labels: int,
        limits: tuple[int, int],
    ) -> None:
        """`limits`: the rows and bytes that it takes."""
        self.writer = writer
        self.first = self.last = first
        self.upsert = upsert
        self.error_labels = error_labels
        self.parts: list[str] = []
        self.rows: list[Row] = []
        self.size_bytes = 0
        self._rows_max, self._bytes_max = limits

    def takes(self, writer: RowWriter, part: str, upsert: bool, error_labels: int) -> bool:
        return (
            self.writer is writer
            and self.upsert is upsert
            and not (self.error_labels or error_labels)
            and len(self.parts) < self._rows_max
            and self.size_bytes + len(part) <= self._bytes_max
        )
