"""Parquet files of rows: one bucket each, sorted by key."""

import io
import time
import uuid
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from spark_consumers.current_state.log import BUCKET, DataFile
from spark_consumers.current_state.storage import Storage

KEY = "_key"
Rows = npt.NDArray[np.int64]
# A reader that looks for one key reads one group of rows.
GROUP_ROWS = 128 * 1024


def write_file(
    storage: Storage, bucket: int, buckets: int, rows: pa.Table, kind: str = BUCKET
) -> DataFile:
    """Write rows of one bucket; they are sorted by key. `kind`: the first letter of its name."""
    path = f"{kind}{bucket:03}of{buckets:03}-{uuid.uuid4()}.parquet"
    content = io.BytesIO()
    # Keys and numbers hardly repeat: a dictionary would be built for nothing.
    texts = [f.name for f in rows.schema if pa.types.is_string(f.type) and f.name != KEY]
    pq.write_table(
        rows, content, compression="zstd", use_dictionary=texts, row_group_size=GROUP_ROWS
    )
    found = content.getvalue()
    storage.write(path, found)
    return DataFile(path, len(found), rows.num_rows, int(time.time() * 1000))


def read_file(
    storage: Storage, path: str, schema: pa.Schema, columns: Sequence[str] | None = None
) -> pa.Table:
    """Return all rows of a file, deleted ones too, typed as the table is now.

    Columns that the table got later are null.
    """
    wanted = schema if columns is None else pa.schema([schema.field(name) for name in columns])
    parquet = storage.parquet(path)
    present = set(parquet.schema_arrow.names)
    found = parquet.read(columns=[name for name in wanted.names if name in present])
    return as_schema(found, wanted)


def as_schema(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with the columns of a schema; those that they lack are null."""
    present = set(rows.schema.names)
    columns = [
        rows[field.name].cast(field.type)
        if field.name in present
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)
