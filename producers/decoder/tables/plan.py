"""Plans: how each column of a table version is read and written. Plain data, made once per version.

Parsers and filter rules make plans; the writers of rows and records read them.
"""

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from databases.internal_tables import INTERNAL_DATABASE
from producers.decoder.values.operations import ABSENT
from topics.keyspace.vindexes import Vindex
from topics.records.table_shape import Column, TableShape, ValueKind

# Changed keys remembered per table. A chunk that needs more is read again.
KEYS_MAX: Final = 1_000_000
# Transaction ends remembered, which snapshots may name: seconds of a busy server.
ENDS_MAX: Final = 50_000


class KeyWatch:
    """Notes by seq, written by the decoder and read by the copy. Keys are whole record keys."""

    def __init__(self, database: str, table: str, next_seq: int) -> None:
        self.database: str = database
        self.table: str = table
        self.touched: dict[bytes, int] = {}
        # From this seq on every changed key is noted.
        self.complete_from: i64 = next_seq
        self.definition_seq: i64 = -1  # of the last DDL that may concern this table
        self.partial_seq: i64 = -1  # of the last row with an incomplete image
        self.body: bytes = b""  # of the last table map
        self.shape: TableShape | None = None
        self.seen_seq: i64 = -1  # of the last row, which has that shape

    def touch(self, key: bytes, seq: i64) -> None:
        """Note that the record `seq` has that key, before or after the change."""
        if len(self.touched) >= KEYS_MAX:
            self.touched.clear()
            self.complete_from = seq
        self.touched[key] = seq

    def observe_version(self, body: bytes, shape: TableShape) -> None:
        """Note the table version that rows have now."""
        self.body = body
        self.shape = shape

    def forget_before(self, seq: int) -> None:
        """Drop what was noted below `seq`, which no chunk needs any more."""
        self.touched = {key: at for key, at in self.touched.items() if at >= seq}
        self.complete_from = max(self.complete_from, i64(seq))

    def note_statement(self, statement: str, seq: i64) -> None:
        """Note a DDL that names the table, or a whole database."""
        lower = statement.lower()
        if may_change(self.table, lower):
            self.definition_seq = seq


def may_change(table: str, lower_statement: str) -> bool:
    """Tell whether a statement, in lower case, may name the table or its whole database."""
    return (
        is_named(table, lower_statement)
        or "database" in lower_statement
        or "schema" in lower_statement
    )


def is_named(table: str, lower_statement: str) -> bool:
    """Tell whether a statement, in lower case, may name the table."""
    name = table.lower()
    return name in lower_statement or name.replace("`", "``") in lower_statement


class TransactionEnds:
    """Where transactions end in the binlog, which snapshots name, and the seq that follows each."""

    def __init__(self) -> None:
        """Begin empty; nothing is noted while `is_on` is False."""
        self.is_on: bool = False
        self._next_seqs: dict[tuple[str, int], int] = {}
        self._order: list[tuple[str, int]] = []

    def note(self, file: str, pos: i64, next_seq: i64) -> None:
        """Note that a transaction ended there."""
        if not self.is_on:
            return
        place = (file, int(pos))
        self._next_seqs[place] = next_seq
        self._order.append(place)
        if len(self._order) >= 2 * ENDS_MAX:
            for old in self._order[:ENDS_MAX]:
                self._next_seqs.pop(old, None)
            self._order = self._order[ENDS_MAX:]

    def next_seq(self, file: str, pos: int) -> int:
        """Return the seq after the transaction that ends exactly there, -1 for none."""
        return self._next_seqs.get((file, pos), -1)

    def clear(self) -> None:
        """Forget everything, and note nothing until `is_on` is set again."""
        self.is_on = False
        self._next_seqs.clear()
        self._order = []

    def oldest_seq(self) -> int:
        """Return the least seq that `next_seq` can return, -1 for none."""
        return self._next_seqs[self._order[0]] if self._order else -1


NO_KEY: Final = -1
NO_ROW_END: Final = -1

# What the rows of the product's own tables mean to the decoder.
ORDINARY: Final = 0
JOURNAL: Final = 1
CHECKPOINT: Final = 2
HEARTBEAT: Final = 3
SILENT: Final = 4  # any other table there
_INTERNAL: Final = {"journal": JOURNAL, "checkpoint": CHECKPOINT, "heartbeat": HEARTBEAT}
NO_IDS: Final = -1
_NO_COLUMN: Final = Column("", ValueKind.INT, "")


class ColumnPlan:
    """One column. `op`: see values/operations.py. `size`: bytes of the value, or of its length."""

    def __init__(self, index: i64, name: str, op: i64, size: i64) -> None:
        self.index: i64 = index  # position in the table
        self.name: str = name
        self.place: str = name  # database.table.column, once the table is known
        self.op: i64 = op
        self.size: i64 = size
        self.form: i64 = 0  # how `read_raw` reads its values
        self.length: i64 = 0  # n of BINARY(n) and of types that look like it
        self.key_slot: i64 = NO_KEY  # position in the primary key
        self.is_sharding: bool = False  # the row's keyspace id is computed from its value
        self.is_noted: bool = False  # in the key or sharding: the record notes where its value is
        self.charset: str = ""
        self.collation: i64 = 0  # collation id; 0 for types without one
        self.nullable: bool = True
        self.charset_kind: i64 = 0
        self.labels: list[bytes] = []  # Avro strings; ENUM has its error value "" in front
        self.whole_digits: i64 = 0
        self.fraction_digits: i64 = 0
        self.second_digits: i64 = 0  # fractional digits of temporal types

    def moved(self, index: i64) -> "ColumnPlan":
        """Return the same column at another position, as a filter rule writes it."""
        column = ColumnPlan(index, self.name, self.op, self.size)
        column.place = self.place
        column.form = self.form
        column.length = self.length
        column.key_slot = self.key_slot
        # Not for the sharding column: the filter computes keyspace ids from the source row.
        column.is_noted = self.key_slot >= 0
        column.charset = self.charset
        column.collation = self.collation
        column.nullable = self.nullable
        column.charset_kind = self.charset_kind
        column.labels = self.labels
        column.whole_digits = self.whole_digits
        column.fraction_digits = self.fraction_digits
        column.second_digits = self.second_digits
        return column


ABSENT_COLUMN: Final = ColumnPlan(0, "", ABSENT, 0)


class RowsPlan:
    """One kind of row event of a table: its operation and the columns that its images hold."""

    def __init__(
        self, header: bytes, before: list[ColumnPlan] | None, after: list[ColumnPlan] | None
    ) -> None:
        """`header`: the envelope's bytes from `database` to `columns_after`."""
        self.header: bytes = header
        # Where each row's keyspace ids are inserted into the header; NO_IDS: they are null there.
        self.ids_at: i64 = NO_IDS
        self.op: i64 = 0
        self.has_before: bool = before is not None
        self.has_after: bool = after is not None
        self.before: list[ColumnPlan] = before if before is not None else []
        self.after: list[ColumnPlan] = after if after is not None else []
        # The headers of what a filter rule writes for such rows, by which images pass it.
        self.filtered: list[RowsPlan | None] = [None, None, None, None]
        self.before_present: i64 = count_present(self.before)
        self.after_present: i64 = count_present(self.after)
        self.before_has_sharding: bool = any(column.is_sharding for column in self.before)
        self.after_has_sharding: bool = any(column.is_sharding for column in self.after)


def count_present(columns: list[ColumnPlan]) -> i64:
    """Return how many columns a row image holds."""
    present: i64 = 0
    for column in columns:
        if column.op != ABSENT:
            present += 1
    return present


class MaskedColumn:
    """A column that a filter rule writes. `mask` replaces raw values that are not NULL."""

    def __init__(
        self,
        source: ColumnPlan,
        column: ColumnPlan,
        mask: Callable[[object], str | bytes | None] | None,
    ) -> None:
        """`source`: the column of the table; `column`: the same column in the record."""
        self.source: ColumnPlan = source
        self.column: ColumnPlan = column
        self.mask: Callable[[object], str | bytes | None] | None = mask


class RangeTest:
    """A term of a WHERE that compiled code tests: a whole number, not NULL and within bounds."""

    def __init__(self, column: ColumnPlan, low: i64, high: i64) -> None:
        """Both bounds are inclusive."""
        self.column: ColumnPlan = column
        self.low: i64 = low
        self.high: i64 = high


class FilterPlan:
    """What a filter rule makes of the rows of one table version."""

    def __init__(
        self,
        source: "TablePlan",
        written: "TablePlan",
        columns: list[MaskedColumn],
        *,
        ranges: list[RangeTest],
        predicate: Callable[..., bool] | None,
        predicate_columns: list[ColumnPlan],
    ) -> None:
        """`source`: the table; `written`: as readers see it; `columns`: of `written`, in order.

        A row passes if it passes all `ranges` and `predicate`, which takes the raw values of
        `predicate_columns`, returns True.
        """
        self.source: TablePlan = source
        self.written: TablePlan = written
        self.columns: list[MaskedColumn] = columns
        self.ranges: list[RangeTest] = ranges
        self.predicate: Callable[..., bool] | None = predicate
        self.predicate_columns: list[ColumnPlan] = predicate_columns


class TablePlan:
    """A table version. `problem`: why its rows cannot be decoded, "" when they can."""

    def __init__(self, body: bytes, database: str, table: str) -> None:
        """`body`: the table map event without its id and flags, which identifies the version."""
        self.body: bytes = body
        self.database: str = database
        self.table: str = table
        self.problem: str = ""
        self.is_nameless: bool = False  # its table map has no names: the catalog has to prove them
        self.internal: i64 = ORDINARY
        if database == INTERNAL_DATABASE:
            self.internal = _INTERNAL.get(table, SILENT)
        self.columns: list[ColumnPlan] = []
        self.count: i64 = 0
        self.key_size: i64 = 0
        self.key_names: list[str] = []
        self.shape_columns: list[Column] = []
        self.primary_key: list[int] = []
        # Columns that may be the server's own (server_columns.py), and those that are, or that
        # MariaDB generates: readers, filter rules and copies see `visible`, which lacks them.
        # None: there are none.
        self.maybe_hidden: list[int] = []
        self.hidden: list[int] = []
        self.visible: TablePlan | None = None
        self.row_end: i64 = NO_ROW_END  # the column that ends versions of a row (server_columns.py)
        self.may_generate: bool = False  # images may lack columns that no one knew as generated
        self.is_left_out: bool = False  # a filter rule leaves out all its rows
        self.filter: FilterPlan | None = None  # a filter rule chooses rows or columns
        # The sharding column and its vindex; None: rows have no keyspace ids.
        self.vindex: Vindex | None = None
        self.sharding: Column = _NO_COLUMN
        self.sharding_plan: ColumnPlan = ABSENT_COLUMN
        self.prefix: bytes = b""  # wire format: 0, schema id, event type; set on first use
        self.key_prefix: bytes = b""  # Avro strings of database and table
        self.rows_plans: dict[tuple[int, bytes], RowsPlan] = {}
        # The plan of this table's last row event, and what identifies it.
        self.last_op: i64 = 0
        self.last_bitmaps: bytes = b""
        self.last_rows_plan: RowsPlan | None = None
        self.watch: KeyWatch | None = None  # set while the table is copied

    def shape(self) -> TableShape:
        """Return the table version as readers see it."""
        if self.visible is not None:
            return self.visible.shape()
        return TableShape(
            self.database,
            self.table,
            tuple(self.shape_columns),
            tuple(self.primary_key),
            None if self.row_end == NO_ROW_END else int(self.row_end),
        )


def set_key(plan: TablePlan, key: list[int]) -> None:
    """Give a table version its primary key; called before its sharding column is set."""
    for column in plan.columns:
        column.key_slot = NO_KEY
        column.is_noted = False
    for slot, index in enumerate(key):
        plan.columns[index].key_slot = slot
        plan.columns[index].is_noted = True
    plan.key_names = [plan.columns[index].name for index in key]
    plan.primary_key = key
    plan.key_size = len(key)
