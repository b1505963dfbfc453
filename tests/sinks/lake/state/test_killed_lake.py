"""Processes are killed before each write of a lake, and others go on."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from sinks.lake.state.layout import TablePlace
from tests.repository import ROOT
from tests.sinks.lake.state import killed_lake
from tests.sinks.lake.state.batch_queries import visible


def rows_at(url: str) -> list[dict[str, Any]]:
    """All rows of a table, in an order of their own."""
    return sorted(pa.table(DeltaTable(url).scan()).to_pylist(), key=str)


def test_kills_before_each_write_leave_the_rows(tmp_path: Path) -> None:
    """F30: Cut off before each file, commit, frontier and checkpoint, no batch loses a row."""
    command = [sys.executable, "-m", killed_lake.__name__, str(tmp_path)]
    subprocess.run(command, check=True, cwd=ROOT)

    places = [TablePlace(str(tmp_path / name), "shop", "orders") for name in ("killed", "whole")]
    killed, whole = (
        [rows_at(url) for url in (place.visible, place.hidden, place.history)] for place in places
    )
    assert killed == whole
    values: dict[str, set[int]] = {}
    for (key, _), row in killed_lake.new_history().rows.items():
        values.setdefault(f"[{key}]", set()).add(json.loads(row)["value"])
    found = visible(tmp_path / "killed")
    assert found.keys() == values.keys()
    assert all(found[key] in of for key, of in values.items())
    deaths = (tmp_path / "deaths").read_text().splitlines()
    assert {*killed_lake.KINDS, "create_table"} <= {*deaths}
