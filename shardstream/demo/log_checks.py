"""Checks of a change log on its own, and its replay. Pure.

Rows are those of the Delta table, in commit order and in merged order within each commit.
"""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from event_token import ShardName
from shardstream.demo.shop import SHARDING_COLUMNS, keyspace_id
from spark_consumers.applying.tables import Applier, Statements

Row = dict[str, Any]
Key = tuple[Any, ...]
# One table of one shard, by primary key.
Tables = dict[tuple[str, str], dict[Key, Row]]


@dataclass(frozen=True, slots=True)
class Mark:
    """A journal record of the log."""

    shard: str
    seq: int
    kind: str
    sources: tuple[str, ...]
    targets: tuple[str, ...]
    hop_time_us: int


def marks_of(log: list[Row]) -> list[Mark]:
    """Return the marks of reshards, in order."""
    return [_mark(row) for row in log if row["type"] == "JOURNAL"]


def _mark(row: Row) -> Mark:
    said = json.loads(row["statement"])
    sources, targets = (tuple(said[name]) for name in ("sources", "targets"))
    return Mark(row["shard"], row["seq"], said["kind"], sources, targets, said["hop_time_us"] or 0)


def missing_and_repeated(log: list[Row], marks: list[Mark]) -> tuple[int, int]:
    """Count the gaps and repeats in the shards' sequence numbers.

    They begin at 1, or at BEGIN in a shard that was a target (its sources have what came before),
    and end with END in a source.
    """
    first = {mark.shard: mark.seq for mark in marks if mark.kind == "BEGIN"}
    last = {mark.shard: mark.seq for mark in marks if mark.kind == "END"}
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


def over_the_hop(log: list[Row], marks: list[Mark]) -> int:
    """Count source rows at or after the hop, target rows before it, and missing marks."""
    wrong = 0
    ended = {mark.shard for mark in marks if mark.kind == "END"}
    begun = {mark.shard: mark.hop_time_us for mark in marks if mark.kind == "BEGIN"}
    hops = {(m.sources, m.targets, m.hop_time_us) for m in marks if m.kind == "BEGIN"}
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
        wrong += not _holds(row["shard"], customer)
        if row["op"] == "INSERT":
            wrong += code in owner
            owner[code] = customer
        elif row["op"] == "DELETE":
            wrong += owner.pop(code, None) != customer and code in moved
        moved.add(code)
    return wrong


def _holds(shard: str, customer_id: int) -> bool:
    return ShardName.parse(shard).key_range.contains(keyspace_id(customer_id))


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
