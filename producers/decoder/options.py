"""Everything that one decoder is given."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from event_token import Flavor, GtidSet
from producers.decoder.events.changes import Change
from producers.decoder.events.statements import Definition
from producers.decoder.rows.record_writer import Produce
from producers.decoder.tables.named_columns import NamedColumns
from producers.decoder.tables.plan import FilterPlan, TablePlan
from producers.decoder.tables.server_columns import Catalog, ShardingColumn
from topics.progress.record import LastDdl, Mark


class FilterRules(Protocol):
    """The filter rules of a stream."""

    def definitions_changed(self) -> None:
        """Check the rules after a DDL. Raises where they do not fit the tables any more."""

    def leaves_out(self, database: str, table: str) -> bool:
        """Tell whether no row of the table is wanted."""

    def leaves_out_database(self, database: str) -> bool:
        """Tell whether surely no table of the database is wanted."""

    def asks_for(self, database: str, table: str) -> bool:
        """Tell whether a rule that is about this database alone includes the table."""

    def filter_plan(self, table: TablePlan) -> FilterPlan | None:
        """Return what to do with the table's rows, None for nothing. Raises RuleError."""


class TableProofs(Protocol):
    """What the server's catalog says of tables whose rows have no names, where that is proved."""

    def describe(
        self, database: str, table: str, read: Callable[[], GtidSet], *, is_new: bool
    ) -> NamedColumns:
        """Return the columns that a table has in the rows that are read now. UnprovedTable.

        `read()`: what the stream has read, this transaction included. `is_new`: what was proved
        before does not fit the rows.
        """

    def defined(self, definition: Definition) -> None:
        """Note that the stream has read a definition."""


class StatementChecks(Protocol):
    """What the server's catalog says of tables that were changed by a statement."""

    def doubt(self, change: Change, read: Callable[[], GtidSet]) -> str:
        """Tell why the statement may have changed more tables than it names; "" if it has not.

        `read()`: what the stream has read, this transaction included.
        """

    def defined(self, definition: Definition) -> None:
        """Note that the stream has read a definition."""


def _all_sharded(_database: str) -> bool:
    return True


def _none_cancelled(_reshard_id: str) -> bool:
    return False


@dataclass(frozen=True, kw_only=True)
class DecoderOptions:
    """Options of a decoder; those without a default depend on where the log ends.

    `position`: the GTID set that the log holds already; the stream begins after it.
    `next_seq`: of the first record.
    `last_timestamp_us`: no record will be older; the later of the last record's time and the last
    head (watermark) promised.
    `last_cell_us`: start of the grid cell of the log's last record, -1 for none.
    `ended_by`: reshards whose END is in the log, and whose CANCELLED is not.
    `is_sharded`: whether a database has sharded tables; asked where one is changed after END.
    `is_cancelled`: whether the topology has such a reshard cancelled by now; asked then, too.

    `produce(topic, value, key, 0, on_delivery, on_delivery, timestamp_ms)` raises BufferError when
    its queue is full; then `on_full` is called and `produce` again. `on_delivery` is passed with a
    batch's first and last record, None with the others.
    `record_bytes_max`: of key and value together. `message_bytes_max`: of a message; a record that
    does not fit goes in parts, which are produced with their headers as an eighth argument, and
    `on_delivery` with its first and last part; 0: none does.
    `schema_id` registers the text of an Avro schema and returns its id.

    `now_us` is this host's clock; a commit time more than `max_clock_ahead_us` ahead of it is
    clamped. `on_notice` takes what an operator should read.
    `vindexes`: the sharding column of each (database, table).
    `text_as_bytes`: columns, as database.table.column, whose text is logged as raw bytes.
    `rules`: filter rules, None for none.
    `catalog`: knows what the binlog does not show of columns. None: those named as the server's
    own are, and all that look like BINARY are BINARY.
    `statement_checks`: knows what else a statement changes. None: each one stops the shard.
    `proofs`: knows the names of columns that table maps leave out. None: such rows stop the shard.
    `refuses_cascades`: stop at foreign keys whose changes of other rows the server does not log.
    `lower_case_names`: the server has names of tables in lower case (lower_case_table_names).
    `rolled_back`: GTIDs of MariaDB for which an earlier decoder raised RolledBack.
    """

    topic: str
    keyspace: str
    shard: str
    flavor: Flavor
    position: str
    next_seq: int
    last_timestamp_us: int
    last_cell_us: int
    produce: Produce
    record_bytes_max: int
    on_full: Callable[[], None]
    schema_id: Callable[[str], int]
    max_clock_ahead_us: int
    now_us: Callable[[], int]
    on_notice: Callable[[str], None]
    on_delivery: object = None
    message_bytes_max: int = 0
    verify_checksum: bool = True
    vindexes: Mapping[tuple[str, str], ShardingColumn] = field(default_factory=dict)
    text_as_bytes: frozenset[str] = frozenset()
    ended_by: tuple[str, ...] = ()
    is_sharded: Callable[[str], bool] = _all_sharded
    is_cancelled: Callable[[str], bool] = _none_cancelled
    rules: FilterRules | None = None
    catalog: Catalog | None = None
    statement_checks: StatementChecks | None = None
    proofs: TableProofs | None = None
    refuses_cascades: bool = False
    lower_case_names: bool = False
    rolled_back: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class BatchSummary:
    """Whole transactions of the server whose records went to `produce` since the last summary.

    Without a record, `last_seq` is `first_seq - 1`; position and head may have moved all the same.
    `position`: GTID set executed up to and including the last complete transaction.
    `head_us`: the head (watermark): every later record has a timestamp >= head_us. A commit time
    beyond the producer's clock does not move it, so it may be below the last record's timestamp; a
    caller that promised more keeps that promise (`Decoder.advance_head`).
    `ticks`: (start of the 10 ms cell, seq of its first record), of cells that began here only.
    `mark`: the mark of a reshard that ends the batch; its `offset` is the seq of its record.
    `in_parts`: (seq, parts) of the records that went in parts, and take as many offsets.
    `ddl`: the last DDL record of the batch. `rows_filtered`: rows that its filter rules left out.
    `prepared_us`: the times of the PREPAREs of XA transactions that wait for their decision.
    `statements_passed`: changes logged as statements that concern no table of the log, of which the
    last one was of `statement_table`.
    `gtid`, `last_commit_us`: the last transaction and its raw commit time; "" and 0 before the
    first. `binlog_pos`: where it begins in `binlog_file`. `left`: the same four of those before it
    behind which another domain went on (MySQL: another source or interval), as far as they may end
    one still.
    """

    first_seq: int
    last_seq: int
    position: str
    gtid: str
    head_us: int
    ticks: list[tuple[int, int]]
    last_commit_us: int
    binlog_file: str
    binlog_pos: int
    transactions: int
    left: Sequence[tuple[str, int, str, int]] = ()
    mark: Mark | None = None
    ddl: LastDdl | None = None
    rows_filtered: int = 0
    statements_passed: int = 0
    statement_table: str = ""
    prepared_us: Sequence[int] = ()
    in_parts: Sequence[tuple[int, int]] = ()
