"""How each column of a table version is read and written: made once, used for every row."""

from typing import TYPE_CHECKING, Final

from librt.strings import BytesWriter
from mypy_extensions import i64, u8

from producers.decoder.tables.key_watch import KeyWatch
from producers.decoder.values.wire import write_string
from topics.keyspace.vindexes import Vindex
from topics.records.table_shape import Column, TableShape, ValueKind

if TYPE_CHECKING:
    from producers.decoder.rows.filtered_rows import RowFilter  # which imports this module

# What to do with a column's value. Small numbers in the order of the decoder's comparisons.
ABSENT: Final = 0  # not in this row image
I8: Final = 1
U8: Final = 2
I16: Final = 3
U16: Final = 4
I24: Final = 5
U24: Final = 6
I32: Final = 7
U32: Final = 8
I64: Final = 9
U64: Final = 10
VARCHAR: Final = 11  # one or two bytes of length
BLOB: Final = 12  # one to four bytes of length
FIXED_BINARY: Final = 13  # BINARY(n): the server strips zeros that belong to the value
DECIMAL: Final = 14
BIG_DECIMAL: Final = 15  # more than 18 digits
FLOAT: Final = 16
DOUBLE: Final = 17
DATE: Final = 18
TIME: Final = 19
DATETIME: Final = 20
TIMESTAMP: Final = 21
YEAR: Final = 22
ENUM: Final = 23
SET: Final = 24
BIT: Final = 25
BIT64: Final = 26
JSON: Final = 27
COMPRESSED: Final = 28  # MariaDB's COMPRESSED text and bytes, one to four bytes of length
# MariaDB's types that a binlog shows as BINARY; the last operations, which comparisons rely on.
UUID: Final = 29
INET4: Final = 30
INET6: Final = 31

NO_KEY: Final = -1

# The database of the product's own tables, and what they mean to the decoder.
INTERNAL_DATABASE: Final = "_shardstream"
ORDINARY: Final = 0
JOURNAL: Final = 1
CHECKPOINT: Final = 2
HEARTBEAT: Final = 3
SILENT: Final = 4  # any other of them
_INTERNAL: Final = {"journal": JOURNAL, "checkpoint": CHECKPOINT, "heartbeat": HEARTBEAT}
NO_IDS: Final = -1
_NO_COLUMN: Final = Column("", ValueKind.INT, "")


class ColumnPlan:
    """One column. `size`: bytes of the value, or of its length, as the operation needs it."""

    def __init__(self, index: i64, name: str, op: i64, size: i64) -> None:
        """Make a plan without text, key or labels; those are set by the table's parser."""
        self.index: i64 = index  # its place in the table
        self.name: str = name
        self.place: str = name  # database.table.column, once the table is known
        self.op: i64 = op
        self.size: i64 = size
        self.form: i64 = 0  # how `read_raw` reads its values
        self.length: i64 = 0  # BINARY(n) and what is shown as it: n
        self.key_slot: i64 = NO_KEY  # place in the primary key
        self.is_sharding: bool = False  # its value gives the row's keyspace id
        self.is_noted: bool = False  # one of the two: where its value lies is wanted
        self.charset: str = ""
        self.collation: i64 = 0  # its number; 0 for types without one
        self.nullable: bool = True
        self.charset_kind: i64 = 0
        self.labels: list[bytes] = []  # Avro strings; ENUM has its error value "" in front
        self.whole_digits: i64 = 0
        self.fraction_digits: i64 = 0
        self.second_digits: i64 = 0  # fractional digits of temporal types

    def moved(self, index: i64) -> "ColumnPlan":
        """The same column at another place, as a filter rule writes it."""
        column = ColumnPlan(index, self.name, self.op, self.size)
        column.place = self.place
        column.form = self.form
        column.length = self.length
        column.key_slot = self.key_slot
        column.is_noted = self.key_slot >= 0  # not for its keyspace id: the filter says that
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
        # Where the keyspace ids of each row go into the header; NO_IDS where it has them as null.
        self.ids_at: i64 = NO_IDS
        self.op: i64 = 0
        self.has_before: bool = before is not None
        self.has_after: bool = after is not None
        self.before: list[ColumnPlan] = before if before is not None else []
        self.after: list[ColumnPlan] = after if after is not None else []
        # What a filter rule writes of such rows: their headers, by the images that are wanted.
        self.filtered: list[RowsPlan | None] = [None, None, None, None]
        self.before_present: i64 = count_present(self.before)
        self.after_present: i64 = count_present(self.after)
        self.before_has_sharding: bool = any(column.is_sharding for column in self.before)
        self.after_has_sharding: bool = any(column.is_sharding for column in self.after)


def count_present(columns: list[ColumnPlan]) -> i64:
    """How many columns a row image holds."""
    present: i64 = 0
    for column in columns:
        if column.op != ABSENT:
            present += 1
    return present


class TablePlan:
    """A table version. `problem`: why its rows cannot be decoded, empty when they can."""

    def __init__(self, body: bytes, database: str, table: str) -> None:
        """`body`: the table map without its id and flags, which tells versions apart."""
        self.body: bytes = body
        self.database: str = database
        self.table: str = table
        self.problem: str = ""
        self.internal: i64 = ORDINARY
        if database == INTERNAL_DATABASE:
            self.internal = _INTERNAL.get(table, SILENT)
        self.columns: list[ColumnPlan] = []
        self.count: i64 = 0
        self.key_size: i64 = 0
        self.key_names: list[str] = []
        self.shape_columns: list[Column] = []
        self.primary_key: list[int] = []
        self.is_left_out: bool = False  # by a filter rule, with all its rows
        # Where a rule says what is written of its rows.
        self.row_filter: RowFilter | None = None
        # The sharding column and what makes keyspace ids of it; None: rows have none.
        self.vindex: Vindex | None = None
        self.sharding: Column = _NO_COLUMN
        self.sharding_plan: ColumnPlan = ABSENT_COLUMN
        self.prefix: bytes = b""  # wire format: 0, schema id, the envelope's type; set on first use
        self.key_prefix: bytes = b""  # Avro strings of database and table
        self.rows_plans: dict[tuple[int, bytes], RowsPlan] = {}
        # The plan of the last row event of this table, and what told it apart.
        self.last_op: i64 = 0
        self.last_bitmaps: bytes = b""
        self.last_rows_plan: RowsPlan | None = None
        # Set while the table is copied.
        self.watch: KeyWatch | None = None

    def shape(self) -> TableShape:
        """The table version as readers see it."""
        return TableShape(
            self.database, self.table, tuple(self.shape_columns), tuple(self.primary_key)
        )


def see_rows(watch: KeyWatch, table: TablePlan, rows: RowsPlan, seq: i64) -> None:
    """Tell a watch which table version a row is of, and whether its images are whole."""
    watch.seen_seq = seq
    if watch.body != table.body:
        watch.see(table.body, table.shape())
    if (rows.has_before and rows.before_present < table.count) or (
        rows.has_after and rows.after_present < table.count
    ):
        watch.partial_seq = seq


def rows_header(table: TablePlan, op: i64, before: bytes, after: bytes, has_ids: bool) -> RowsPlan:
    """Make the envelope's part that says table, op and columns; `before`, `after`: bit maps."""
    out = BytesWriter()
    out.write(table.key_prefix)
    out.append(u8(op * 2))
    ids_at: i64 = NO_IDS
    if has_ids:
        ids_at = len(out)
    else:
        out.append(u8(0))  # no keyspace id before
        out.append(u8(0))  # none after
    write_string(out, before)
    write_string(out, after)
    rows = RowsPlan(out.getvalue(), None, None)
    rows.ids_at = ids_at
    return rows
