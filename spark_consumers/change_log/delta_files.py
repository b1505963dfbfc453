"""Opens a change log and reads its files. Needs no Spark."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from pyarrow import fs

from event_token.errors import Halt, UsageError

# The mark (Delta application transaction) of the format of columns, marks and commit information;
# tables whose last commit is older than the mark have format 1.
FORMAT_MARK = "shardstream.format"
FORMAT = 1
# The columns that every change log has: the order of the merged stream, and what tells a repeat.
PLACE_COLUMNS = ("timestamp_us", "shard", "seq", "offset")
# Rows taken from a file at a time.
_BATCH_ROWS = 65_536


def open_changelog(target: str, storage_options: Mapping[str, str]) -> DeltaTable:
    """Open the newest version of a change log.

    UsageError when there is none, or another Delta table, whose files mean something else; Halt on
    a format of another release.
    """
    try:
        table = DeltaTable(target, storage_options=dict(storage_options))
    except TableNotFoundError as error:
        raise UsageError(
            f"{target} is not a Delta table: no change log was written there"
        ) from error
    missing = set(PLACE_COLUMNS) - {field.name for field in table.schema().fields}
    if missing:
        raise UsageError(
            f"{target} is a Delta table, but no change log: it has no column "
            f"{', '.join(sorted(missing))}. Name the --target of `shardstream changelog`"
        )
    check_format(table)
    return table


def check_format(table: DeltaTable) -> None:
    """Raise Halt if another release has written a change log in a format of its own."""
    found = table.transaction_version(FORMAT_MARK)
    if found not in {None, FORMAT}:
        raise Halt(
            f"{table.table_uri}: format {found} of the change log is not known: use the release "
            "that wrote it"
        )


def read_batches(
    table: DeltaTable,
    storage_options: Mapping[str, str],
    columns: Sequence[str],
    only: ds.Expression | None = None,
    paths: Sequence[str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of files, in any order; columns that a file lacks are null.

    `paths`: of the files that are read; None: all.
    """
    target = table.table_uri
    handler: Any = DeltaStorageHandler(target, dict(storage_options))
    if paths is None:
        paths = pa.table(table.get_add_actions(flatten=True))["path"].to_pylist()
    schema = pa.schema(table.schema().to_arrow())
    wanted = [name for name in columns if name in schema.names]
    found = ds.dataset(
        paths,
        schema=schema,
        format="parquet",
        filesystem=fs.PyFileSystem(handler),
    )
    yield from found.to_batches(columns=wanted, filter=only, batch_size=_BATCH_ROWS)


def file_bounds(table: DeltaTable, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Return the path of each file with `min.` and `max.` of columns, None where nothing tells."""
    actions = pa.table(table.get_add_actions(flatten=True))
    names = ["path", *(f"{end}.{column}" for end in ("min", "max") for column in columns)]
    found = actions.select([name for name in names if name in actions.column_names])
    return [dict.fromkeys(names) | file for file in found.to_pylist()]
