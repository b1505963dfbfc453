"""Table versions by id and by content, so that a new id after a rotation costs nothing."""

from collections.abc import Callable, Mapping
from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from event_token.errors import UsageError
from producers.decoder.errors import (
    CorruptBinlog,
    RuleBroken,
    UnloggedCascade,
    UnsupportedColumn,
    UnsupportedEvent,
)
from producers.decoder.events.format_event import YEAR_SIGN_UNKNOWN
from producers.decoder.events.query_events import declares_cascade, shown
from producers.decoder.rows.filtered_rows import FilterRules
from producers.decoder.tables.key_watch import KeyWatch, TransactionEnds, is_named
from producers.decoder.tables.plan import SILENT, RowsPlan, TablePlan, rows_header
from producers.decoder.tables.sharding import ShardingColumn, set_vindex
from producers.decoder.tables.table_map import image_columns, parse_table_map
from producers.decoder.values.hidden_values import HiddenTypes, may_be_hidden
from producers.decoder.values.wire import (
    is_at,
    packed_size,
    read_packed,
    read_u48,
    take,
    write_string,
)
from topics.records.table_shape import (
    EVENT_TYPES,
    OPS,
    TableShape,
    ddl_schema,
    row_schema,
    schema_text,
)

# Plans kept at once. A server with more tables in use parses some of them again, nothing worse.
PLANS_MAX: Final = 20_000
# Stands for the prefix of a table whose rows are not logged, or not by its own schema.
_NOT_LOGGED: Final = b"\0"

INSERT: Final = OPS.index("INSERT")
UPDATE: Final = OPS.index("UPDATE")
DELETE: Final = OPS.index("DELETE")
READ: Final = OPS.index("READ")


class Tables:
    """The table maps seen on this stream."""

    def __init__(
        self,
        schema_id: Callable[[str], int],
        vindexes: Mapping[tuple[str, str], ShardingColumn],
        is_mariadb: bool,
        text_as_bytes: frozenset[str],
        rules: FilterRules | None,
    ) -> None:
        """`schema_id` registers a schema's text and gives its id. `vindexes` by table.

        `text_as_bytes`: columns, as database.table.column, whose text is logged as raw bytes.
        """
        self._rules: FilterRules | None = rules
        self.hidden_types: HiddenTypes | None = None  # the owner sets it
        self._schema_id: Callable[[str], int] = schema_id
        self._vindexes: Mapping[tuple[str, str], ShardingColumn] = vindexes
        self._text_as_bytes: frozenset[str] = text_as_bytes
        self.is_mariadb: bool = is_mariadb
        self.year_sign: int = YEAR_SIGN_UNKNOWN
        self._by_body: dict[bytes, TablePlan] = {}
        self._by_id: dict[int, TablePlan] = {}
        self._last_id: i64 = -1
        self._last_plan: TablePlan | None = None
        self._statement_prefixes: dict[str, bytes] = {}
        self.watches: dict[tuple[str, str], KeyWatch] = {}
        self.ends: TransactionEnds = TransactionEnds()
        self.refuses_cascades: bool = False

    def begin_file(self, year_sign: int) -> None:
        """A new binlog file numbers its tables afresh, and may be another version's."""
        self.use_year_sign(year_sign)
        self._by_id.clear()
        self._last_id = -1
        self._last_plan = None

    def use_year_sign(self, year_sign: int) -> int:
        """Read table maps so from here on; return how they were read before."""
        before = self.year_sign
        if year_sign != before:
            self.year_sign = year_sign
            self._by_body.clear()
            self._last_plan = None
        return before

    def map(self, buf: bytes, pos: i64, end: i64) -> None:
        """Take a table map event's body: 6 bytes of id, 2 of flags, then the table version."""
        table_id = read_u48(buf, pos)
        size: i64 = end - pos - 8
        plan = self._last_plan
        if plan is not None and table_id == self._last_id and is_at(buf, pos + 8, size, plan.body):
            return
        body = take(buf, pos + 8, size)
        known = self._by_body.get(body)
        if known is None:
            known = parse_table_map(
                body, self.is_mariadb, self.year_sign, self._text_as_bytes, self.hidden_types
            )
            known.watch = self.watches.get((known.database, known.table))
            if len(self._by_body) >= PLANS_MAX:
                self._by_body.clear()
            self._by_body[body] = known
        if len(self._by_id) >= PLANS_MAX:
            self._by_id.clear()
        self._by_id[table_id] = known
        self._last_id = table_id
        self._last_plan = known

    def table(self, table_id: i64) -> TablePlan:
        """The version behind a row event's table id, ready to decode its rows."""
        plan = self._last_plan
        if plan is None or table_id != self._last_id:
            plan = self._by_id.get(table_id)
            if plan is None:
                raise CorruptBinlog(f"a row event of table id {table_id}, which no table map names")
            self._last_id = table_id
            self._last_plan = plan
        if len(plan.prefix) == 0:
            self.prepare(plan)
            types = self.hidden_types
            if types is not None and not plan.is_left_out and not plan.internal:
                columns = may_be_hidden(plan)
                if columns:
                    types.check(plan.database, plan.table, columns, is_new=True)
        return plan

    def watch(self, watch: KeyWatch) -> None:
        """Note what is logged of a table from here on."""
        self.watches[watch.database, watch.table] = watch
        self._set_watches()

    def unwatch(self, watch: KeyWatch) -> None:
        """End that."""
        self.watches.pop((watch.database, watch.table), None)
        self._set_watches()

    def _set_watches(self) -> None:
        # A version that was dropped from the first may live on in the others.
        plans = [*self._by_body.values(), *self._by_id.values()]
        if self._last_plan is not None:
            plans.append(self._last_plan)
        for plan in plans:
            plan.watch = self.watches.get((plan.database, plan.table))

    def note_statement(self, statement: str, seq: i64) -> None:
        """Tell the watches of a DDL, which is the record `seq`."""
        for watch in self.watches.values():
            watch.note_statement(statement, seq)

    def prepare(self, plan: TablePlan) -> None:
        """Register the table version's schema; UnsupportedColumn where it has none."""
        rules = self._rules
        if rules is not None and rules.leaves_out(plan.database, plan.table):
            plan.is_left_out = True  # nothing of it need be decodable
            plan.prefix = _NOT_LOGGED
            return
        if plan.problem and plan.internal != SILENT:
            raise UnsupportedColumn(f"table {plan.database}.{plan.table}: {plan.problem}")
        if plan.internal:
            plan.prefix = _NOT_LOGGED
            return
        set_vindex(plan, self._vindexes.get((plan.database, plan.table)))
        try:
            row_filter = None if rules is None else rules.row_filter(plan)
        except UsageError as error:
            raise RuleBroken(
                f"the filter rule of table {plan.database}.{plan.table} does not fit it: {error}"
            ) from error
        if row_filter is None:
            plan.prefix = self._row_prefix(plan.shape())
            return
        row_filter.written.prefix = self._row_prefix(row_filter.written.shape())
        plan.row_filter = row_filter
        plan.prefix = _NOT_LOGGED

    def _row_prefix(self, shape: TableShape) -> bytes:
        return record_prefix(self._schema_id(schema_text(row_schema(shape))), "ROW")

    def ddl_seen(self, statement: bytes, sql_mode: int) -> None:
        """A statement comes that may change tables.

        RuleBroken where a rule does not outlive it, HiddenType where a declared type does not,
        UnloggedCascade where changes of rows behind it will be in no binlog.
        """
        if self.refuses_cascades and declares_cascade(statement, sql_mode):
            raise UnloggedCascade(
                f"a foreign key changes rows by itself (CASCADE or SET NULL), and this server "
                f"does not log such changes, or is the replica of one that may not; the statement "
                f"begins: {shown(statement)}. Make the "
                "key RESTRICT and the changes explicit, and copy the tables again from behind "
                "it; or set accept_unlogged_cascades = true and live with the hole"
            )
        if self._rules is not None:
            self._rules.ddl_seen()
        types = self.hidden_types
        if types is None:
            return
        # A table map is the same before and after BINARY becomes UUID: no new version would tell.
        lower = statement.decode("utf-8", "replace").lower()
        columns: dict[tuple[str, str], list[str]] = {}
        for plan in self._by_body.values():
            is_read = len(plan.prefix) > 0 and not plan.is_left_out and not plan.internal
            if is_read and is_named(plan.table, lower):
                columns.setdefault((plan.database, plan.table), []).extend(may_be_hidden(plan))
        for (database, table), names in columns.items():
            if names:
                types.check(database, table, names, is_new=False)

    def statement_prefix(self, event_type: str) -> bytes:
        """The first bytes of a record that holds a statement: DDL or JOURNAL."""
        prefix = self._statement_prefixes.get(event_type)
        if prefix is None:
            prefix = record_prefix(self._schema_id(schema_text(ddl_schema())), event_type)
            self._statement_prefixes[event_type] = prefix
        return prefix


def record_prefix(schema_id: int, event_type: str) -> bytes:
    """The wire format's zero and schema id, then the envelope's type."""
    return b"\0" + schema_id.to_bytes(4, "big") + bytes([EVENT_TYPES.index(event_type) * 2])


def statement_header(database: bytes) -> bytes:
    """The envelope of a record that holds a statement, from `database` to `columns_after`."""
    out = BytesWriter()
    write_string(out, database)
    out.write(b"\0" * 6)  # no table, op NONE, no keyspace ids, no columns
    return out.getvalue()


def rows_plan_at(plan: TablePlan, op: i64, buf: bytes, pos: i64, end: i64) -> RowsPlan:
    """The plan of a row event whose column count and maps of present columns lie at `pos`."""
    last = plan.last_rows_plan
    if last is None or plan.last_op != op or not is_at(buf, pos, end - pos, plan.last_bitmaps):
        return rows_plan(plan, op, take(buf, pos, end - pos))
    return last


def rows_plan(plan: TablePlan, op: i64, bitmaps: bytes) -> RowsPlan:
    """The plan of a row event: `bitmaps` is its column count and its maps of present columns."""
    key = (int(op), bitmaps)
    found = plan.rows_plans.get(key)
    if found is None:
        found = _make_rows_plan(plan, op, bitmaps)
        if len(plan.rows_plans) >= PLANS_MAX:
            plan.rows_plans.clear()
        plan.rows_plans[key] = found
    plan.last_op = op
    plan.last_bitmaps = bitmaps
    plan.last_rows_plan = found
    return found


def _make_rows_plan(plan: TablePlan, op: i64, bitmaps: bytes) -> RowsPlan:
    count = read_packed(bitmaps, 0)
    if count != plan.count:
        raise CorruptBinlog(
            f"a row event of {count} columns for table {plan.database}.{plan.table}, "
            f"which has {plan.count}"
        )
    pos = packed_size(bitmaps, 0)
    size = (count + 7) // 8
    first = _without_padding(take(bitmaps, pos, size), count)
    second = _without_padding(take(bitmaps, pos + size, size), count) if op == UPDATE else b""
    before = first if op in (UPDATE, DELETE) else b""
    after = first if op in (INSERT, READ) else second
    if not any(before) and not any(after):
        raise UnsupportedEvent(
            f"a row of {plan.database}.{plan.table} without any column, as an INSERT with defaults "
            "alone leaves it under binlog_row_image=MINIMAL; the binlog does not say how many "
            "there were: SET GLOBAL binlog_row_image=FULL on the source"
        )
    header = rows_header(plan, op, before, after, plan.vindex is not None)
    rows = RowsPlan(
        header.header,
        image_columns(plan, before) if before else None,
        image_columns(plan, after) if after else None,
    )
    rows.ids_at = header.ids_at
    rows.op = op
    return rows


def _without_padding(bitmap: bytes, count: int) -> bytes:
    """Clear the bits behind the last column, which servers leave as they like."""
    bits = int.from_bytes(bitmap, "little") & ((1 << count) - 1)
    return bits.to_bytes(len(bitmap), "little")
