"""The demo's proof: the change log replayed equals the databases, and its order is right."""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow.parquet as pq
from deltalake import DeltaTable

from shardstream.demo.consumers import CHANGE_LOG
from shardstream.demo.log_checks import (
    Row,
    Tables,
    coupons_in_two_places,
    marks_of,
    missing_and_repeated,
    out_of_order,
    over_the_hop,
    replay,
)
from shardstream.demo.shop import Connect
from shardstream.demo.source_rows import SourceRows, read_sources
from shardstream.demo.tables_proof import ReadTable, rows_that_differ
from shardstream.demo.workload import Ledger
from spark_consumers.applying.tables import CHANGE_COLUMNS, STATEMENT_COLUMNS


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of the proof; all but `changes`, `copied` and `moves` must be 0.

    `different`: by consumer, the rows that are not as in the databases, lacking or too many; `lost`
    counts them too, because each of them lacks a change.
    `hop_time_us`: the time from which the targets of the split continue the log, if there was one.
    """

    changes: int
    copied: int
    moves: int
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


def prove(
    changelog_path: str,
    tables: Mapping[str, ReadTable],
    shards: Mapping[str, Connect],
    ledger: Ledger,
) -> Verdict:
    """Compare the change log with the serving databases and with what the workload did.

    `tables`: the consumers that keep tables, by name; their rows must be those of the databases.
    """
    versions = _read_versions(changelog_path)
    log = [row for version in versions for row in version]
    rows = [row for row in log if row["type"] == "ROW"]
    changes = [row for row in rows if row["op"] != "READ"]
    marks = marks_of(log)
    sources = read_sources(shards)
    replayed = replay(log, sources.keys, shards)
    missing, repeated = missing_and_repeated(log, marks)
    different = {CHANGE_LOG: _different_rows(_json_tables(sources), replayed)}
    different |= {name: rows_that_differ(sources, read) for name, read in tables.items()}
    hop_times = {mark.hop_time_us for mark in marks if mark.kind == "BEGIN"}
    return Verdict(
        changes=len(changes),
        copied=len(rows) - len(changes),
        moves=ledger.moves,
        lost=max(missing, ledger.changes - len(changes), *different.values()),
        repeated=max(repeated, len(changes) - ledger.changes),
        out_of_order=(
            out_of_order(versions) + over_the_hop(log, marks) + coupons_in_two_places(changes)
        ),
        rows_compared=sum(len(rows) for rows in sources.rows.values()),
        different=different,
        hop_time_us=min(hop_times, default=None),
    )


def _read_versions(path: str) -> list[list[Row]]:
    """Return the rows that each commit of the Delta table added, in merged order per commit."""
    columns = sorted({*STATEMENT_COLUMNS, *CHANGE_COLUMNS, "op", "offset"})
    table = DeltaTable(path)
    added: dict[int, list[str]] = {}
    for version in range(table.version() + 1):
        table.load_as_version(version)
        files = set(table.file_uris())
        known = {uri for uris in added.values() for uri in uris}
        added[version] = sorted(files - known)
    versions = []
    for uris in added.values():
        rows = [row for uri in uris for row in pq.read_table(uri, columns=columns).to_pylist()]
        rows.sort(key=lambda row: (row["timestamp_us"], row["shard"], row["offset"]))
        versions.append(rows)
    return versions


def _json_tables(sources: SourceRows) -> Tables:
    """The databases' rows in the form of the change log's JSON."""
    return {
        (shard, table): {
            key: {name: _json_value(row[name], kind) for name, kind in sources.types[table].items()}
            for key, row in rows.items()
        }
        for (shard, table), rows in sources.rows.items()
    }


def _json_value(value: Any, data_type: str) -> Any:
    """Convert a value read by PyMySQL to its form in the change log's JSON."""
    match value:
        case None:
            return None
        case Decimal():
            return str(value)
        case bytes():
            return base64.b64encode(value).decode()
        case datetime():
            return value.isoformat() + ("Z" if data_type == "timestamp" else "")
        case date():
            return value.isoformat()
        case str() if data_type == "json":
            return json.loads(value)
        case str() if data_type == "set":
            return value.split(",") if value else []
        case _:
            return value


def _different_rows(expected: Tables, replayed: Tables) -> int:
    different = 0
    for place in expected.keys() | replayed.keys():
        there, here = expected.get(place, {}), replayed.get(place, {})
        for key in there.keys() | here.keys():
            different += _comparable(there.get(key)) != _comparable(here.get(key))
    return different


def _comparable(row: Row | None) -> Row | None:
    """Parse times, because trailing zeros of a fraction carry no meaning."""
    if row is None:
        return None
    return {
        name: datetime.fromisoformat(value) if name in {"created", "placed"} else value
        for name, value in row.items()
    }
