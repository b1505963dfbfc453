"""The demo's proof notices every kind of damage."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from shardstream.demo.proof import (
    SourceRows,
    coupons_in_two_places,
    marks_of,
    missing_and_repeated,
    out_of_order,
    over_the_hop,
    replay,
    rows_that_differ,
)
from shardstream.demo.shop import SHARDING_COLUMNS, keyspace_id

HOP_US = 110
KEYS = {"customers": ["id"], "coupons": ["code"]}
# By the vindex: customers of -80, of 80-c0 and of c0-.
LEFT, MIDDLE, RIGHT = (
    next(c for c in range(1, 100) if low <= keyspace_id(c) < high)
    for low, high in ((b"", b"\x80"), (b"\x80", b"\xc0"), (b"\xc0", b"\xff" * 9))
)

Row = dict[str, Any]
Log = list[Row]


def _row(shard: str, seq: int, timestamp_us: int, **fields: Any) -> Row:
    names = (
        *("table", "op", "before", "after", "key", "old_key", "absent", "token", "statement"),
        *("keyspace_id_before", "keyspace_id_after"),
    )
    empty = {"type": "ROW", "database": "shop", **dict.fromkeys(names)}
    place = {"shard": shard, "seq": seq, "offset": seq, "timestamp_us": timestamp_us}
    return {**empty, **place, **fields}


def _change(shard: str, seq: int, timestamp_us: int, table: str, **images: Row) -> Row:
    op = "UPDATE" if len(images) == 2 else "INSERT" if "after" in images else "DELETE"
    texts = {name: json.dumps(image) for name, image in images.items()}
    ids = {
        f"keyspace_id_{name}": keyspace_id(image[SHARDING_COLUMNS[table]])
        for name, image in images.items()
    }
    row = next(iter(images.values()))
    key = json.dumps([row[name] for name in KEYS[table]])
    return _row(shard, seq, timestamp_us, table=table, op=op, key=key, **texts, **ids)


def _mark(shard: str, seq: int, timestamp_us: int, kind: str) -> Row:
    hop_time_us = HOP_US if kind == "BEGIN" else None
    said = {
        "kind": kind,
        "sources": ["80-"],
        "targets": ["80-c0", "c0-"],
        "hop_time_us": hop_time_us,
    }
    return _row(shard, seq, timestamp_us, type="JOURNAL", statement=json.dumps(said))


def _split() -> Log:
    """Two customers and a coupon of `80-`, which is split; then the coupon goes to `-80`."""
    coupon = {"code": "C1", "customer_id": RIGHT}
    return [
        _change("80-", 1, 10, "customers", after={"id": MIDDLE, "name": "a"}),
        _change("80-", 2, 20, "customers", after={"id": RIGHT, "name": "b"}),
        _change("80-", 3, 30, "coupons", after=coupon),
        _mark("80-", 4, 105, "END"),
        _mark("80-c0", 31, HOP_US, "BEGIN"),
        _mark("c0-", 41, HOP_US, "BEGIN"),
        _change("c0-", 42, 120, "coupons", before=coupon),
        _change("-80", 1, 130, "coupons", after={"code": "C1", "customer_id": LEFT}),
        _change("80-c0", 32, 140, "customers", before={"id": MIDDLE}, after={"id": MIDDLE}),
    ]


def _found(log: Log) -> dict[str, int]:
    """What is wrong with a log that came in commits of three rows."""
    lost, repeated = missing_and_repeated(log, marks_of(log))
    changes = [row for row in log if row["type"] == "ROW"]
    found = {
        "lost": lost,
        "repeated": repeated,
        "older than a commit": out_of_order([log[i : i + 3] for i in range(0, len(log), 3)]),
        "over the hop": over_the_hop(log, marks_of(log)),
        "in two places": coupons_in_two_places(changes),
    }
    return {name: count for name, count in found.items() if count}


def test_a_split_without_fault_has_none() -> None:
    """Targets start at BEGIN, whatever their logs hold before it."""
    assert _found(_split()) == {}


def test_the_rows_of_a_source_are_the_targets_from_begin_on() -> None:
    """Each target takes those of its range; the source keeps none."""
    tables = replay(_split(), KEYS, ("-80", "80-c0", "c0-"))

    assert tables == {
        ("80-c0", "customers"): {(MIDDLE,): {"id": MIDDLE}},
        ("c0-", "customers"): {(RIGHT,): {"id": RIGHT, "name": "b"}},
        ("-80", "coupons"): {("C1",): {"code": "C1", "customer_id": LEFT}},
    }
    assert KEYS.keys() <= SHARDING_COLUMNS.keys()


def _without(*places: tuple[str, int]) -> Callable[[Log], Log]:
    return lambda log: [row for row in log if (row["shard"], row["seq"]) not in places]


def _with(at: int, row: Row) -> Callable[[Log], Log]:
    return lambda log: [*log[:at], row, *log[at:]]


@pytest.mark.parametrize(
    ("damage", "wrong"),
    [
        (_without(("80-", 2)), {"lost"}),
        (_without(("c0-", 42), ("-80", 1)), set()),  # what is missing at an end, the ledger knows
        (_with(2, _split()[1]), {"repeated", "older than a commit"}),
        (_with(6, _row("80-c0", 30, HOP_US)), {"repeated", "older than a commit"}),
        (_with(4, _row("80-", 5, 106)), {"repeated"}),
        (_with(6, _row("80-", 5, 115)), {"repeated", "over the hop"}),
        (_with(4, _row("c0-", 40, 106)), {"repeated", "over the hop"}),
        (_without(("80-", 4)), {"over the hop"}),
        (_without(("80-c0", 31)), {"over the hop", "lost"}),
        (lambda log: [*log[:5], log[8], *log[5:8]], {"older than a commit"}),
        (lambda log: [*log[:6], log[7], log[6], log[8]], {"in two places"}),
        (lambda log: [{**log[2], "shard": "-80", "seq": 1}], {"in two places"}),
    ],
)
def test_each_fault_is_found(damage: Callable[[Log], Log], wrong: set[str]) -> None:
    """A hole, a repeat, a target read before BEGIN, a source after END, time that runs back."""
    assert _found(damage(_split())).keys() == wrong


TYPES = {"id": "bigint", "tags": "set", "extra": "json", "weight": "float", "made": "timestamp"}
MADE = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)


def _as_pymysql_reads(customer: int) -> Row:
    extra, made = '{"a": [1]}', MADE.replace(tzinfo=None)
    return {"id": customer, "tags": "x,y", "extra": extra, "weight": 13.37, "made": made}


def _as_spark_or_psycopg_reads(customer: int) -> Row:
    weight = 13.369999885559082
    return {"id": customer, "tags": ["y", "x"], "extra": {"a": [1]}, "weight": weight, "made": MADE}


@pytest.mark.parametrize(
    ("held", "different"),
    [
        ([_as_spark_or_psycopg_reads(1), _as_spark_or_psycopg_reads(2)], 0),
        ([_as_spark_or_psycopg_reads(2)], 1),
        ([_as_spark_or_psycopg_reads(key) for key in (1, 2, 2)], 1),
        ([_as_spark_or_psycopg_reads(key) for key in (1, 2, 3)], 1),
        ([_as_spark_or_psycopg_reads(1), {**_as_spark_or_psycopg_reads(2), "tags": ["x"]}], 1),
        ([_as_spark_or_psycopg_reads(1), {**_as_spark_or_psycopg_reads(2), "made": None}], 1),
        ([], 2),
    ],
)
def test_tables_are_compared_by_value(held: Log, different: int) -> None:
    """Each row that lacks, is too many or has another value counts, whatever the driver."""
    rows = {("-80", "t"): {(1,): _as_pymysql_reads(1)}, ("80-", "t"): {(2,): _as_pymysql_reads(2)}}
    sources = SourceRows(rows, {"t": TYPES}, {"t": ["id"]})

    assert rows_that_differ(sources, {"t": held}.__getitem__) == different
