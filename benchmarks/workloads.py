"""The backlog in the binlog when a drain begins: tables, and the statement of a transaction."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from topics.kafka.topic_settings import RECORD_BYTES_MIN

SINGLE_ROW: Final = "drain.single_row"
ROWS_100: Final = "drain.rows_100"
MIXED_SIZES: Final = "drain.mixed_sizes"
# Those that `mysqlbinlog --raw` copies too: it decodes no row, so others would add nothing.
COPIED: Final = frozenset({SINGLE_ROW, ROWS_100})

# In statements: the id of the transaction's first row, and of a row.
FIRST: Final = "{first}"
ID: Final = "({first} + n)"

_ORDERS = """
  id BIGINT NOT NULL PRIMARY KEY,
  customer INT NOT NULL,
  title VARCHAR(64) CHARACTER SET utf8mb4,
  amount DECIMAL(12,2),
  state ENUM('new', 'paid', 'sent', 'done'),
  note TEXT CHARACTER SET utf8mb4,
  created DATETIME(3),
  changed TIMESTAMP(6) NULL
"""
_ORDER = (
    "{id}, {id} % 10007, CONCAT('order ', {id}, ' of the day'), ({id} % 999983) / 100, "
    "1 + {id} % 4, CONCAT('a note of some length that goes with order number ', {id}), "
    "'2026-01-31 12:00:00.123' + INTERVAL {id} SECOND, NOW(6)"
)
_WIDE_COLUMNS = 100
_WIDE = "id BIGINT NOT NULL PRIMARY KEY" + "".join(
    f", c{n} {('INT', 'VARCHAR(20)', 'DATETIME', 'DECIMAL(10,2)')[n % 4]}"
    for n in range(1, _WIDE_COLUMNS)
)
_WIDE_ROW = "{id}" + "".join(
    f", {('7', f'''CONCAT('v{n}-', {{id}})''', 'NOW()', '12.34')[n % 4]}"
    for n in range(1, _WIDE_COLUMNS)
)
_TEXT_BYTES = 64 * 1024
# One row of a transaction is larger than Kafka's default limit of a message, the others are small.
_LARGE_TEXT_BYTES = 1536 * 1024
_MIXED_ROWS = 100
_JSON_ROW = (
    "{id}, JSON_OBJECT('id', {id}, 'name', CONCAT('customer ', {id}), 'tags', "
    "JSON_ARRAY('a', 'b', {id} % 7), 'address', JSON_OBJECT('city', 'Bergen', 'zip', 5003, "
    "'at', 60.39), 'active', TRUE, 'left', NULL)"
)


@dataclass(frozen=True, slots=True)
class Workload:
    """A table and the transactions that wait in the binlog.

    `row` gives a row's values, `{id}` being its key. `change` is the statement of a transaction,
    `{first}` being its first key; without it rows are inserted. If it is given, the rows exist
    before and are not in the binlog.
    """

    name: str
    transactions: int
    rows_per_transaction: int
    columns: str = _ORDERS
    row: str = _ORDER
    change: str = ""

    @property
    def table(self) -> str:
        """The table's name."""
        return self.name.partition(".")[2]

    @property
    def rows(self) -> int:
        """The number of messages to expect."""
        return self.transactions * self.rows_per_transaction

    def insert(self) -> str:
        """The statement that inserts a transaction's rows."""
        if self.rows_per_transaction == 1:
            return f"INSERT INTO {self.table} VALUES ({self.row.format(id=FIRST)})"
        return f"INSERT INTO {self.table} SELECT {self.row.format(id=ID)} FROM numbers ORDER BY n"

    def statement(self) -> str:
        """The statement of a transaction."""
        return self.change.format(table=self.table, first=FIRST) if self.change else self.insert()


_BETWEEN = "WHERE id BETWEEN {first} AND {first} + 99"
_FULL: Final = (
    Workload(SINGLE_ROW, 500_000, 1),
    Workload(ROWS_100, 10_000, 100),
    Workload(
        "drain.update_100",
        5_000,
        100,
        change=f"UPDATE {{table}} SET amount = amount + 1, state = 'paid' {_BETWEEN}",
    ),
    Workload("drain.delete_100", 5_000, 100, change=f"DELETE FROM {{table}} {_BETWEEN}"),
    Workload(
        "drain.nulls_100", 10_000, 100, row="{id}, {id} % 10007, NULL, NULL, NULL, NULL, NULL, NULL"
    ),
    Workload("drain.wide_100_columns", 4_000, 100, columns=_WIDE, row=_WIDE_ROW),
    Workload(
        "drain.text_64k",
        4_000,
        1,
        columns="id BIGINT NOT NULL PRIMARY KEY, body MEDIUMTEXT CHARACTER SET utf8mb4",
        row=f"{{id}}, REPEAT(CONCAT('line ', {{id}}, '; '), {_TEXT_BYTES} DIV 12)",
    ),
    Workload(
        MIXED_SIZES,
        240,
        _MIXED_ROWS,
        columns="id BIGINT NOT NULL PRIMARY KEY, body MEDIUMTEXT CHARACTER SET utf8mb4",
        row=(
            f"{{id}}, REPEAT(CONCAT('line ', {{id}}, '; '), "
            f"IF({{id}} % {_MIXED_ROWS} = 0, {_LARGE_TEXT_BYTES} DIV 12, 10))"
        ),
    ),
    Workload(
        "drain.json_100",
        3_000,
        100,
        columns="id BIGINT NOT NULL PRIMARY KEY, doc JSON",
        row=_JSON_ROW,
    ),
)
NAMES: Final = tuple(workload.name for workload in _FULL)
# Enough for half a dozen of our commits, and for the peer to warm up.
QUICK_PART: Final = 0.4


def workloads(names: Sequence[str], *, quick: bool) -> list[Workload]:
    """Return the workloads of these names, in full size or small."""
    return [_small(workload) if quick else workload for workload in _FULL if workload.name in names]


def _small(workload: Workload) -> Workload:
    return Workload(
        workload.name,
        int(workload.transactions * QUICK_PART),
        workload.rows_per_transaction,
        workload.columns,
        workload.row,
        workload.change,
    )


@dataclass(frozen=True, slots=True)
class Variation:
    """One of our drains with other settings, compared with the same drain without them.

    `settings`: further tables of the settings file, `{keyspace}` being its keyspace.
    `server_settings`: further lines of the server's table, `{ca}` being the file of the server's
    certificate authority. `message_bytes_max`: the limit of the log's topic; None is our own.
    `has_minimal_metadata`: drain the same rows from a server that logs no names of columns.
    `is_beside_peer`: also compare with Debezium's drain of the same turn, without such settings.
    """

    name: str
    of: str
    beside: str
    settings: str = ""
    server_settings: str = ""
    message_bytes_max: int | None = None
    has_minimal_metadata: bool = False
    is_beside_peer: bool = False


PLAIN: Final = Variation("plain", "", "")
_UNCHECKED = "[producer]\nverify_checksum = false\n"
# All rows pass, so that both write as many.
_RULE = """\
[[keyspaces.{keyspace}.filter.rules]]
table = "bench.rows_100"
where = "id > 0 AND customer BETWEEN 0 AND 20000 AND amount IS NOT NULL"
"""
_PROVED = '[producer]\nmetadata = "proved"\n'
_TLS = 'tls = {{ca = "{ca}"}}\n'
VARIATIONS: Final = (
    Variation("drain.single_row.unchecked", SINGLE_ROW, "CRC32 checked", settings=_UNCHECKED),
    Variation("drain.single_row.tls", SINGLE_ROW, "without TLS", server_settings=_TLS),
    Variation("drain.rows_100.unchecked", ROWS_100, "CRC32 checked", settings=_UNCHECKED),
    Variation(
        "drain.rows_100.filtered",
        ROWS_100,
        "without a filter rule",
        settings=_RULE,
        is_beside_peer=True,
    ),
    Variation("drain.rows_100.tls", ROWS_100, "without TLS", server_settings=_TLS),
    Variation(
        "drain.rows_100.proved",
        ROWS_100,
        "names in the binlog",
        settings=_PROVED,
        has_minimal_metadata=True,
    ),
    Variation(
        "drain.mixed_sizes.in_parts",
        MIXED_SIZES,
        "whole messages",
        message_bytes_max=RECORD_BYTES_MIN,
    ),
)
