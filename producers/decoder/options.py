"""Everything that one decoder is given."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from event_token import Flavor
from producers.decoder.rows.record_output import Produce
from producers.decoder.stream.table_versions import FilterRules
from producers.decoder.tables.hidden_columns import HiddenTypes
from producers.decoder.tables.server_columns import Catalog
from producers.decoder.tables.sharding import ShardingColumn


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
    `record_bytes_max`: of key and value together.
    `schema_id` registers the text of an Avro schema and returns its id.

    `now_us` is this host's clock; a commit time more than `max_clock_ahead_us` ahead of it is
    clamped. `on_notice` takes what an operator should read.
    `vindexes`: the sharding column of each (database, table).
    `text_as_bytes`: columns, as database.table.column, whose text is logged as raw bytes.
    `rules`: filter rules, None for none.
    `hidden_types`: of MariaDB's columns; None: all that look like BINARY are BINARY.
    `catalog`: tells columns that the server hides from others of such names; None: their names do.
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
    verify_checksum: bool = True
    vindexes: Mapping[tuple[str, str], ShardingColumn] = field(default_factory=dict)
    text_as_bytes: frozenset[str] = frozenset()
    ended_by: tuple[str, ...] = ()
    is_sharded: Callable[[str], bool] = _all_sharded
    is_cancelled: Callable[[str], bool] = _none_cancelled
    rules: FilterRules | None = None
    hidden_types: HiddenTypes | None = None
    catalog: Catalog | None = None
    refuses_cascades: bool = False
    lower_case_names: bool = False
    rolled_back: frozenset[str] = frozenset()
