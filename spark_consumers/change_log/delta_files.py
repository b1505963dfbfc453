"""Opens a change log and reads its files. Needs no Spark."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from pyarrow import fs

from event_token.errors import UsageError

# Rows taken from a file at a time.
_BATCH_ROWS = 65_536


def open_changelog(target: str, storage_options: Mapping[str, str]) -> DeltaTable:
    """Open the newest version of a change log. UsageError when there is none."""
    try:
        return DeltaTable(target, storage_options=dict(storage_options))
    except TableNotFoundError as error:
        raise UsageError(
            f"{target} is not a Delta table: no change log was written there"
        ) from error


def read_batches(
    table: DeltaTable,
    storage_options: Mapping[str, str],
    columns: Sequence[str],
    only: ds.Expression | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all files, in any order; columns that a file lacks are null."""
    target = table.table_uri
    handler: Any = DeltaStorageHandler(target, dict(storage_options))
    actions = pa.table(table.get_add_actions(flatten=True))
    schema = pa.schema(table.schema().to_arrow())
    wanted = [name for name in columns if name in schema.names]
    found = ds.dataset(
        actions["path"].to_pylist(),
        schema=schema,
        format="parquet",
        filesystem=fs.PyFileSystem(handler),
    )
    yield from found.to_batches(columns=wanted, filter=only, batch_size=_BATCH_ROWS)
