"""Table versions by id and by content, so that a new id after a rotation is cheap."""

from collections.abc import Callable, Mapping
from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from databases.catalog import SYSTEM_SCHEMAS, row_end_of
from databases.internal_tables import SECRET_TABLES
from event_token import Flavor, GtidSet
from event_token.errors import UsageError
from producers.decoder.errors import (
    CorruptBinlog,
    RuleBroken,
    UnprovedTable,
    UnsupportedColumn,
)
from producers.decoder.events.statements import Definition, Redefined
from producers.decoder.options import DecoderOptions, FilterRules, TableProofs
from producers.decoder.tables.column_types import YEAR_SIGN_UNKNOWN
from producers.decoder.tables.plan import SILENT, KeyWatch, TablePlan, is_named, may_change
from producers.decoder.tables.server_columns import (
    Catalog,
    ShardingColumn,
    TableLookup,
    all_visible,
    hide,
    left_out,
    may_be_hidden,
    may_end_rows,
    set_row_end,
    set_vindex,
)
from producers.decoder.tables.table_map import name_columns, parse_table_map
from producers.decoder.values.wire import is_at, read_u48, take, write_string
from topics.records.envelope_table import EVENT_TYPES
from topics.records.table_shape import (
    TableShape,
    row_schema,
    schema_text,
    statement_schema,
    wire_header,
)

# Table maps kept at once. A server with more tables in use parses some of them again.
PLANS_MAX: Final = 20_000
# Stands for the prefix of a table whose rows are not logged, or not by its own schema.
_NOT_LOGGED: Final = b"\0"
# The schema of MariaDB's own tables, of which none has generated columns.
_OF_THE_SERVER: Final = "mysql"


class TableVersions:
    """The table maps of one stream."""

    def __init__(self, options: DecoderOptions, read: Callable[[], GtidSet]) -> None:
        """`read()`: what the stream has read, the open transaction included."""
        self._read: Callable[[], GtidSet] = read
        self._proofs: TableProofs | None = options.proofs
        # The server takes names in any case and has them in lower case.
        self.lower_case_names: bool = options.lower_case_names
        self._rules: FilterRules | None = options.rules
        self._catalog: Catalog | None = options.catalog
        self._schema_id: Callable[[str], int] = options.schema_id
        self._keyspace: str = options.keyspace
        self._vindexes: Mapping[tuple[str, str], ShardingColumn] = options.vindexes
        self._text_as_bytes: frozenset[str] = options.text_as_bytes
        self.is_mariadb: bool = options.flavor == Flavor.MARIADB
        self.year_sign: int = YEAR_SIGN_UNKNOWN
        self._by_body: dict[bytes, TablePlan] = {}
        self._by_id: dict[int, TablePlan] = {}
        self._last_id: i64 = -1
        self._last_plan: TablePlan | None = None
        self._statement_prefixes: dict[str, bytes] = {}
        self.watches: dict[tuple[str, str], KeyWatch] = {}
        # For copies, which take and clear it.
        self.notes_renames: bool = False
        self.renamed: list[Redefined] = []

    def begin_file(self, year_sign: int) -> None:
        """Begin a binlog file: tables get new ids, and the server's version may be another."""
        self.use_year_sign(year_sign)
        self._by_id.clear()
        self._last_id = -1
        self._last_plan = None

    def use_year_sign(self, year_sign: int) -> int:
        """Read table maps with this sign of YEAR from here on; return the one before."""
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
                body, self.is_mariadb, self.year_sign, self._text_as_bytes, self._catalog
            )
            known.watch = self.watches.get((known.database, known.table))
            if len(self._by_body) >= PLANS_MAX:
                self._by_body.clear()
            self._by_body[body] = known
        if table_id in self._by_id:
            del self._by_id[table_id]  # it becomes the newest
        elif len(self._by_id) >= PLANS_MAX:
            # The oldest: those of the open statement must stay.
            del self._by_id[next(iter(self._by_id))]
        self._by_id[table_id] = known
        self._last_id = table_id
        self._last_plan = known

    def table(self, table_id: i64) -> TablePlan:
        """Return the version that a row event's table id names, ready to decode its rows."""
        plan = self._last_plan
        if plan is None or table_id != self._last_id:
            plan = self._by_id.get(table_id)
            if plan is None:
                raise CorruptBinlog(f"a row event of table id {table_id}, which has no table map")
            self._last_id = table_id
            self._last_plan = plan
        if len(plan.prefix) == 0:
            if plan.is_nameless:
                self._name(plan)
            lookup = self._look_up(plan)
            self.prepare(plan)
            if lookup is not None and self.is_mariadb:
                columns = may_be_hidden(plan)
                if columns:
                    lookup.check_types(columns, is_new=True)
        return plan

    def _name(self, plan: TablePlan) -> None:
        """Complete a version whose table map has no names, if the catalog proves them."""
        proofs = self._proofs
        is_unread = plan.internal == SILENT or self.leaves_out(plan.database, plan.table)
        if proofs is None or is_unread:
            return
        named = proofs.describe(plan.database, plan.table, self._read, is_new=False)
        problem = name_columns(plan, named, self.year_sign, self._text_as_bytes)
        if problem:
            named = proofs.describe(plan.database, plan.table, self._read, is_new=True)
            problem = name_columns(plan, named, self.year_sign, self._text_as_bytes)
        if problem:
            raise UnprovedTable(
                f"table {plan.database}.{plan.table}: its rows have no names "
                f"(binlog_row_metadata is not FULL), and {problem}: the table was changed where "
                f"this binlog does not show it, or has columns that the server hides. Begin a new "
                f"log after these rows with a copy, or leave the table out by a filter rule"
            )

    def last_named(self) -> tuple[tuple[str, str], ...]:
        """Return (database, table) of the one that was used last."""
        plan = self._last_plan
        return () if plan is None else ((plan.database, plan.table),)

    def _look_up(self, plan: TablePlan) -> TableLookup | None:
        """Find out which columns readers see, and which one ends row versions. HiddenType.

        Return the table in the server's catalog; None: no row of it is wanted, or no catalog.
        """
        if plan.internal or plan.problem or self.leaves_out(plan.database, plan.table):
            return None
        catalog = self._catalog
        lookup = None if catalog is None else catalog.look_up(plan.database, plan.table)
        if self._may_hide(plan):
            self._hide(plan, lookup)
        candidates = may_end_rows(plan) if self.is_mariadb else []
        if not candidates:
            return lookup
        seen = plan if plan.visible is None else plan.visible
        names = [column.name for column in seen.columns]
        if lookup is None:
            row_end = row_end_of(names, candidates, None) or ""
        else:
            row_end = lookup.row_end(names, candidates)
        if row_end:
            set_row_end(plan, row_end)
            if plan.visible is not None:
                set_row_end(plan.visible, row_end)
        return lookup

    def watch(self, watch: KeyWatch) -> None:
        """Note from here on which rows of a table are logged."""
        self.watches[watch.database, watch.table] = watch
        self._set_watches()

    def unwatch(self, watch: KeyWatch) -> None:
        """Stop noting them."""
        self.watches.pop((watch.database, watch.table), None)
        self._set_watches()

    def _set_watches(self) -> None:
        # A version that the first has evicted may still be in the others.
        plans = [*self._by_body.values(), *self._by_id.values()]
        if self._last_plan is not None:
            plans.append(self._last_plan)
        for plan in plans:
            plan.watch = self.watches.get((plan.database, plan.table))

    def leaves_out(self, database: str, table: str) -> bool:
        """Tell whether no row of a table is logged: by the filter rules, or as it holds secrets."""
        if (database, table) in SECRET_TABLES:
            return True
        return self._rules is not None and self._rules.leaves_out(database, table)

    def leaves_out_all(self, names: list[tuple[str, str]]) -> bool:
        """Tell whether the filter rules leave out all of these, of which there must be one.

        A pair without a table is about its whole database. A server may take names in any case
        (lower_case_table_names=1) and have them in lower case, as rules then have them.
        """
        rules = self._rules
        if rules is None or not names:
            return False
        for database, table in [*names, *((d.lower(), t.lower()) for d, t in names)]:
            if table and not rules.leaves_out(database, table):
                return False
            if not table and not rules.leaves_out_database(database):
                return False
        return True

    def carries(self, database: str, table: str) -> bool:
        """Tell whether the log may have a table that a statement names.

        Of the servers' own databases it has those that a filter rule asks for by the database.
        """
        if database in SYSTEM_SCHEMAS:
            return self._rules is not None and self._rules.asks_for(database, table)
        return not self.leaves_out_all([(database, table)])

    def note_statement(self, definition: Definition, statement: str, seq: i64) -> None:
        """Tell the watches about a DDL, which is the record `seq`; keep what it has renamed."""
        if self.notes_renames and definition.renames_tables():
            self.renamed.append(definition.redefined())
        for watch in self.watches.values():
            watch.note_statement(statement, seq)

    def prepare(self, plan: TablePlan) -> None:
        """Apply a version's rule and register its schema. UnsupportedColumn, RuleBroken."""
        rules = self._rules
        if self.leaves_out(plan.database, plan.table):
            plan.is_left_out = True  # it need not be decodable
            plan.prefix = _NOT_LOGGED
            return
        if plan.problem and plan.internal != SILENT:
            raise UnsupportedColumn(f"table {plan.database}.{plan.table}: {plan.problem}")
        if plan.internal:
            plan.prefix = _NOT_LOGGED
            return
        seen = plan if plan.visible is None else plan.visible
        set_vindex(plan, self._vindexes.get((plan.database, plan.table)))
        try:
            plan.filter = None if rules is None else rules.filter_plan(seen)
        except UsageError as error:
            raise RuleBroken(
                f"the filter rule of table {plan.database}.{plan.table} does not fit it: {error}"
                f"{left_out(plan.columns[i].name for i in plan.hidden)}"
            ) from error
        if plan.filter is None and plan.visible is not None:
            plan.filter = all_visible(plan.visible)
        if plan.filter is None:
            plan.prefix = self._row_prefix(plan.shape())
            return
        plan.filter.source = plan
        plan.filter.written.prefix = self._row_prefix(plan.filter.written.shape())
        plan.prefix = _NOT_LOGGED

    def _may_hide(self, plan: TablePlan) -> bool:
        """Tell whether a version may have columns that the log leaves out.

        On MariaDB any table that is not the server's own may have generated ones. What a copy
        reads, which has no table map, has been described without them.
        """
        if plan.maybe_hidden:
            return True
        return self.is_mariadb and len(plan.body) > 0 and plan.database != _OF_THE_SERVER

    def _hide(self, plan: TablePlan, lookup: TableLookup | None) -> None:
        """Find out which columns the log leaves out. HiddenType; UnsupportedColumn if all are."""
        names = [column.name for column in plan.columns]
        hidden = frozenset(names[i] for i in plan.maybe_hidden)
        if lookup is not None:
            hidden = lookup.hidden(names, [names[i] for i in plan.maybe_hidden])
            plan.may_generate = self.is_mariadb
        if hidden.issuperset(names):
            raise UnsupportedColumn(
                f"table {plan.database}.{plan.table} has no columns but generated ones, which "
                f"MariaDB does not log in every row image: exclude it by a filter rule"
            )
        hide(plan, hidden)

    def _row_prefix(self, shape: TableShape) -> bytes:
        return record_prefix(self._schema_id(schema_text(row_schema(shape, self._keyspace))), "ROW")

    def defined(self, definition: Definition) -> None:
        """Forget what the catalog has proved of tables that a definition may have changed."""
        if self._proofs is None:
            return
        self._proofs.defined(definition)
        redefined = definition.redefined()
        self._by_body = {
            body: plan
            for body, plan in self._by_body.items()
            if not (plan.is_nameless and redefined.includes(plan.database, plan.table))
        }
        # Each statement maps its tables again.
        self._by_id.clear()
        self._last_id = -1
        self._last_plan = None
        for watch in self.watches.values():
            if redefined.includes(watch.database, watch.table):
                watch.body = b""  # its shape may be another one now

    def definitions_changed(self, statement: bytes) -> None:
        """Check rules and declared types against the tables that a DDL has left.

        Raises RuleBroken where a rule does not fit them, HiddenType where a declared type does not.
        """
        if self._rules is not None:
            self._rules.definitions_changed()
        lower = statement.decode("utf-8", "replace").lower()
        self._check_types(lower)
        # A hidden column may have become a user's, or the other way round, and a generated one an
        # ordinary one, in the same table map.
        doubtful = [
            (body, plan)
            for body, plan in self._by_body.items()
            if self._may_hide(plan) and may_change(plan.table, lower)
        ]
        for body, plan in doubtful:
            del self._by_body[body]
            watch = self.watches.get((plan.database, plan.table))
            if watch is not None:
                watch.body = b""  # its shape may be another one now

    def _check_types(self, lower_statement: str) -> None:
        """Check declared types of the tables that a DDL may name. HiddenType.

        BINARY and UUID have the same table map, so no new version would show such a change.
        """
        catalog = self._catalog
        if catalog is None or not self.is_mariadb:
            return
        columns: dict[tuple[str, str], list[str]] = {}
        for plan in self._by_body.values():
            is_read = len(plan.prefix) > 0 and not plan.is_left_out and not plan.internal
            if is_read and is_named(plan.table, lower_statement):
                columns.setdefault((plan.database, plan.table), []).extend(may_be_hidden(plan))
        for (database, table), names in columns.items():
            if names:
                catalog.look_up(database, table).check_types(names, is_new=False)

    def statement_prefix(self, event_type: str) -> bytes:
        """Return the first bytes of a record that holds a statement: DDL or JOURNAL."""
        prefix = self._statement_prefixes.get(event_type)
        if prefix is None:
            prefix = record_prefix(self._schema_id(schema_text(statement_schema())), event_type)
            self._statement_prefixes[event_type] = prefix
        return prefix


def record_prefix(schema_id: int, event_type: str) -> bytes:
    """Return the wire format's zero and schema id, then the envelope's type."""
    return wire_header(schema_id) + bytes([EVENT_TYPES.index(event_type) * 2])


def statement_header(database: bytes) -> bytes:
    """Return the envelope of a statement's record, from `database` to `columns_after`."""
    out = BytesWriter()
    write_string(out, database)
    out.write(b"\0" * 6)  # no table, op NONE, no keyspace ids, no columns
    return out.getvalue()
