"""The demo's proof: every consumer holds the databases' rows, and the change log is in order.

Rows of the change log are those of the Delta table, in commit order and in merged order within each
commit.
"""

import base64
import json
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import psycopg
import pyarrow.parquet as pq
from deltalake import DeltaTable
from psycopg.rows import dict_row
from psycopg.sql import SQL, Identifier

from event_token import ShardName
from shardstream.demo.shop import DATABASE, SHARDING_COLUMNS, Connect, keyspace_id
from shardstream.demo.spark_job import CHANGE_LOG
from shardstream.demo.workload import Ledger
from sinks.lake.change_log.reading import CHANGE_COLUMNS, Applier
from sinks.lake.state.frontiers import table_as_of
from sinks.rule.batch_statements import STATEMENT_COLUMNS, Statements
from topics.progress.record import JournalKind

# Later than any frontier: the newest one.
NEWEST_US: Final = 2**62

Row = dict[str, Any]
Key = tuple[Any, ...]
# One table of one shard, by primary key.
Tables = dict[tuple[str, str], dict[Key, Row]]
# The rows of a table.
ReadTable = Callable[[str], Iterable[Row]]


@dataclass(frozen=True, slots=True)
class DemoVerdict:
    """The result of the proof: `lost`, `repeated`, `out_of_order` and `different` must be 0.

    `different`: by consumer, the rows that are not as in the databases, lacking or too many; `lost`
    counts them too, because each of them lacks a change.
    `hop_time_us`: the time from which the targets of the split continue the log, if there was one.
    """

    changes: int
    copied: int
    lost: int
    repeated: int
    out_of_order: int
    rows_compared: int
    different: Mapping[str, int]
    hop_time_us: int | None

    @property
    def holds(self) -> bool:
        """Whether everything is right."""
        wrong = self.lost + self.repeated + self.out_of_order
        # A proof over nothing proves nothing.
        proves = self.changes > 0 and self.copied > 0 and self.rows_compared > 0
        return wrong == 0 and proves and self.hop_time_us is not None

    def last_line(self) -> str:
        """The line that the demo ends with."""
        return (
            f"demo: {self.changes} changes, {self.lost} lost, {self.repeated} repeated, "
            f"{self.out_of_order} out of order"
        )


@dataclass(frozen=True, slots=True)
class SourceRows:
    """All rows of the databases, as PyMySQL reads them: by (shard, table) and primary key.

    `types` has the data type of each column by table, `keys` the columns of the primary keys.
    """

    rows: Tables = field(default_factory=dict)
    types: dict[str, dict[str, str]] = field(default_factory=dict)
    keys: dict[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JournalMark:
    """A journal record of the change log."""

    shard: str
    seq: int
    kind: str
    sources: tuple[str, ...]
    targets: tuple[str, ...]
    hop_time_us: int


def prove(
    changelog_path: str, tables: Mapping[str, ReadTable], sources: SourceRows, ledger: Ledger
) -> DemoVerdict:
    """Compare the change log with the serving databases and with what the workload did.

    `tables`: the consumers that keep tables, by name; their rows must be those of the databases.
    """
    versions = _read_versions(changelog_path)
    log = [row for version in versions for row in version]
    rows = [row for row in log if row["type"] == "ROW"]
    changes = [row for row in rows if row["op"] != "READ"]
    marks = marks_of(log)
    shards = {shard for shard, _ in sources.rows}
    missing, repeated = missing_and_repeated(log, marks)
    different = {CHANGE_LOG: _places_that_differ(sources, replay(log, sources.keys, shards))}
    different |= {name: rows_that_differ(sources, read) for name, read in tables.items()}
    hop_times = {mark.hop_time_us for mark in marks if mark.kind == JournalKind.BEGIN}
    return DemoVerdict(
        changes=len(changes),
        copied=len(rows) - len(changes),
        lost=max(missing, ledger.changes - len(changes), *different.values()),
        repeated=max(repeated, len(changes) - ledger.changes),
        out_of_order=(
            out_of_order(versions) + over_the_hop(log, marks) + coupons_in_two_places(changes)
        ),
        rows_compared=sum(len(rows) for rows in sources.rows.values()),
        different=different,
        hop_time_us=min(hop_times, default=None),
    )


# The databases and the consumers' tables.


def count_rows(connect: Connect) -> int:
    """Count the rows of all tables of one shard."""
    return sum(len(rows) for rows in read_sources({"": connect}).rows.values())


def read_sources(shards: Mapping[str, Connect]) -> SourceRows:
    """Read the tables of all shards."""
    found = SourceRows()
    for shard, connect in shards.items():
        with connect() as connection, connection.cursor() as cursor:
            cursor.execute(
                "SELECT table_name, column_name, data_type, column_key "
                "FROM information_schema.columns "
                "WHERE table_schema = %s ORDER BY table_name, ordinal_position",
                (DATABASE,),
            )
            types: dict[str, dict[str, str]] = {}
            keys: dict[str, list[str]] = {}
            for table, column, data_type, column_key in cursor.fetchall():
                types.setdefault(table, {})[column] = data_type
                if column_key == "PRI":
                    keys.setdefault(table, []).append(column)
            found.types.update(types)
            found.keys.update(keys)
            for table, columns in types.items():
                cursor.execute(f"SELECT * FROM {DATABASE}.{table}")  # noqa: S608 - our own names
                rows = found.rows.setdefault((shard, table), {})
                for values in cursor.fetchall():
                    row = dict(zip(columns, values, strict=True))
                    rows[tuple(row[name] for name in keys[table])] = row
    return found


def state_reader(target: Path) -> ReadTable:
    """Read the tables of `shardstream state`, all at one frontier."""
    return lambda table: table_as_of(str(target), f"{DATABASE}.{table}", NEWEST_US).rows.to_pylist()


def database_reader(url: str) -> ReadTable:
    """Read the tables of `shardstream database` in PostgreSQL."""

    def read(table: str) -> list[Row]:
        with psycopg.connect(url, row_factory=dict_row) as connection:
            query = SQL("SELECT * FROM {}").format(Identifier(DATABASE, table))
            return connection.execute(query).fetchall()

    return read


def rows_that_differ(sources: SourceRows, read: ReadTable) -> int:
    """Count rows that lack, are too many, or have other values than in the databases."""
    different = 0
    for table, types in sources.types.items():
        expected = {
            key: row
            for (_, name), rows in sources.rows.items()
            if name == table
            for key, row in rows.items()
        }
        found: dict[Key, Row] = {}
        for row in read(table):
            key = tuple(row[name] for name in sources.keys[table])
            different += key in found
            # A consumer's table has columns of its own, too.
            found[key] = {name: row[name] for name in types}
        different += _keys_that_differ(expected, found, types)
    return different


def _places_that_differ(sources: SourceRows, replayed: Tables) -> int:
    """Count likewise, and rows on another shard than in the databases."""
    return sum(
        _keys_that_differ(
            sources.rows.get(place, {}), replayed.get(place, {}), sources.types.get(place[1], {})
        )
        for place in sources.rows.keys() | replayed.keys()
    )


def _keys_that_differ(
    expected: Mapping[Key, Row], found: Mapping[Key, Row], types: Mapping[str, str]
) -> int:
    def plain(row: Row | None) -> Row | None:
        return row and {name: _plain(value, types.get(name, "")) for name, value in row.items()}

    return sum(plain(expected.get(k)) != plain(found.get(k)) for k in {*expected, *found})


def _plain(value: Any, data_type: str) -> Any:
    """Convert a value to the one form that the values of all drivers, and of JSON, have."""
    match value, data_type:
        case str(), "json":
            return json.loads(value)
        case str(), "set":
            return set(value.split(",")) if value else set()
        case list(), "set":
            return set(value)
        case str(), "decimal":
            return Decimal(value)
        case str(), "varbinary":
            return base64.b64decode(value)
        case str(), "date":
            return date.fromisoformat(value)
        case str(), "datetime" | "timestamp":
            return _plain(datetime.fromisoformat(value), data_type)
        case datetime(), "timestamp":
            return value if value.tzinfo else value.replace(tzinfo=UTC)
        case float(), "float":
            # Drivers read four bytes as the shortest decimal, or as the nearest eight bytes.
            return struct.unpack("f", struct.pack("f", value))[0]
        case _:
            return value


# The change log.


def _read_versions(path: str) -> list[list[Row]]:
    """Return the rows that each commit of the Delta table added, in merged order per commit."""
    columns = sorted({*STATEMENT_COLUMNS, *CHANGE_COLUMNS, "op", "offset"})
    table = DeltaTable(path)
    known: set[str] = set()
    versions = []
    for version in range(table.version() + 1):
        table.load_as_version(version)
        added = set(table.file_uris()) - known
        known |= added
        rows = [row for uri in added for row in pq.read_table(uri, columns=columns).to_pylist()]
        rows.sort(key=lambda row: (row["timestamp_us"], row["shard"], row["offset"]))
        versions.append(rows)
    return versions


def marks_of(log: list[Row]) -> list[JournalMark]:
    """Return the marks of reshards, in order."""
    return [_mark(row) for row in log if row["type"] == "JOURNAL"]


def _mark(row: Row) -> JournalMark:
    mark = json.loads(row["statement"])
    sources, targets = tuple(mark["sources"]), tuple(mark["targets"])
    hop_time_us = mark["hop_time_us"] or 0
    return JournalMark(row["shard"], row["seq"], mark["kind"], sources, targets, hop_time_us)


def missing_and_repeated(log: list[Row], marks: list[JournalMark]) -> tuple[int, int]:
    """Count the gaps and repeats in the shards' sequence numbers.

    They begin at 1, or at BEGIN in a shard that was a target (its sources have what came before),
    and end with END in a source.
    """
    first = {mark.shard: mark.seq for mark in marks if mark.kind == JournalKind.BEGIN}
    last = {mark.shard: mark.seq for mark in marks if mark.kind == JournalKind.END}
    seen: dict[str, Counter[int]] = {}
    for row in log:
        seen.setdefault(row["shard"], Counter())[row["seq"]] += 1
    missing = repeated = 0
    for shard, counts in seen.items():
        wanted = range(first.get(shard, 1), last.get(shard, max(counts)) + 1)
        missing += sum(seq not in counts for seq in wanted)
        repeated += counts.total() - sum(seq in counts for seq in wanted)
    return missing, repeated


def out_of_order(versions: list[list[Row]]) -> int:
    """Count rows that are older than an earlier commit, or whose seq goes back in their shard."""
    wrong = 0
    newest_us = -1
    last_seq: dict[str, int] = {}
    for version in versions:
        wrong += sum(row["timestamp_us"] < newest_us for row in version)
        for row in version:
            wrong += row["seq"] <= last_seq.get(row["shard"], 0)
            last_seq[row["shard"]] = row["seq"]
        newest_us = max([newest_us, *(row["timestamp_us"] for row in version)])
    return wrong


def over_the_hop(log: list[Row], marks: list[JournalMark]) -> int:
    """Count source rows at or after the hop, target rows before it, and missing marks."""
    wrong = 0
    ended = {mark.shard for mark in marks if mark.kind == JournalKind.END}
    begun = {mark.shard: mark.hop_time_us for mark in marks if mark.kind == JournalKind.BEGIN}
    hops = {(m.sources, m.targets, m.hop_time_us) for m in marks if m.kind == JournalKind.BEGIN}
    for sources, targets, hop_time_us in hops:
        wrong += sum(source not in ended for source in sources)
        wrong += sum(begun.get(target) != hop_time_us for target in targets)
        for row in log:
            is_before = row["timestamp_us"] < hop_time_us
            wrong += row["shard"] in (targets if is_before else sources)
    return wrong


def coupons_in_two_places(changes: list[Row]) -> int:
    """Count coupons that appear on one shard before they are deleted on another."""
    owner: dict[str, int] = {}
    moved: set[str] = set()  # the others were placed before the log began
    wrong = 0
    for row in changes:
        if row["table"] != "coupons":
            continue
        coupon = json.loads(row["after"] or row["before"])
        code, customer = coupon["code"], coupon["customer_id"]
        key_range = ShardName.parse(row["shard"]).key_range
        wrong += not key_range.contains(keyspace_id(customer))
        if row["op"] == "INSERT":
            wrong += code in owner
            owner[code] = customer
        elif row["op"] == "DELETE":
            wrong += owner.pop(code, None) != customer and code in moved
        moved.add(code)
    return wrong


def replay(log: list[Row], keys: dict[str, list[str]], shards: Iterable[str]) -> Tables:
    """The tables of these shards that the log makes; `keys`: the primary key of each table."""
    ranges = {shard: ShardName.parse(shard).key_range for shard in shards}
    statements = Statements()
    for record in log:
        if record["type"] == "DDL":
            statements.add(record)
    applier = Applier(statements)
    applier.apply(record for record in log if record["type"] == "ROW")
    tables: Tables = {}
    for (_, table), applied in applier.finish().items():
        for version in applied.live():
            row = json.loads(str(version.row))
            home = version.home or keyspace_id(row[SHARDING_COLUMNS[table]])
            [shard] = [shard for shard, held in ranges.items() if held.contains(home)]
            key = tuple(row[name] for name in keys[table])
            tables.setdefault((shard, table), {})[key] = row
    return tables
