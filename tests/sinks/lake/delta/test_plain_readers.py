"""What programs that know no deletion vectors can read of a table (docs/current-state.md)."""

from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaProtocolError

from tests.repository import ROOT
from tests.sinks.lake.delta.lake_rows import Batch, Lake, row

PAGE = ROOT / "docs" / "current-state.md"


def test_deleted_rows_do_not_come_back(tmp_path: Path) -> None:
    """Readers that know no vectors refuse as documented; Arrow gives the present rows to others."""
    lake = Lake(str(tmp_path / "orders")).create()
    for number in range(3):
        lake.run(number, Batch([row(n, number) for n in range(20)], ["[1]"]))
    table = DeltaTable(lake.url)

    for read in (table.to_pyarrow_table, table.to_pyarrow_dataset, table.to_pandas):
        with pytest.raises(DeltaProtocolError) as refused:
            read()
        said = " ".join(str(refused.value).split()).removeprefix("The ").rstrip(".")
        assert f"... {said}" in " ".join(PAGE.read_text().split())
    rows = pa.table(table.scan())
    [(found,)] = duckdb.execute("SELECT count(*) FROM rows").fetchall()
    assert found == rows.num_rows == len(lake.read())
