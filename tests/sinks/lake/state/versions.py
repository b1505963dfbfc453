"""Reads histories as delta-rs does."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

Version = dict[str, Any]


def place(folder: Path) -> str:
    """Return where the history of the orders of a target is."""
    return str(folder / "_shardstream_history" / "shop" / "orders")


def versions(folder: Path) -> list[Version]:
    """Return all rows of the history, by key and time; none if there is no history yet."""
    path = place(folder)
    if not DeltaTable.is_deltatable(path):
        return []
    rows: list[Version] = pa.table(DeltaTable(path).scan()).to_pylist()
    return sorted(rows, key=lambda r: (r["_key"], r["_from_us"], r["_to_us"] or 2**62))


def as_of(rows: Iterable[Version], time_us: int) -> dict[str, Version]:
    """Return the rows that were visible at a time, by key."""
    found = [
        row
        for row in rows
        if row["_from_us"] <= time_us and (row["_to_us"] is None or time_us < row["_to_us"])
    ]
    by_key = {row["_key"]: row for row in found}
    assert len(by_key) == len(found), "versions of a key overlap"
    return by_key


def values(rows: Iterable[Version], time_us: int) -> dict[str, int]:
    """Return the values that were visible at a time, by key."""
    return {key: row["value"] for key, row in as_of(rows, time_us).items()}


def current(rows: Iterable[Version]) -> dict[str, int]:
    """Return the values that are visible, by key."""
    return values((row for row in rows if row["_to_us"] is None), 2**62)
