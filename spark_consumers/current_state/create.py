"""Creates tables and opens them."""

import time
import uuid
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, Schema

from event_token.errors import UsageError
from spark_consumers.current_state.files import KEY
from spark_consumers.current_state.key_index import IndexMemory
from spark_consumers.current_state.log import (
    BUCKETS_SETTING,
    Action,
    Snapshot,
    commit_path,
    serialized,
)
from spark_consumers.current_state.storage import Storage, written_by_delta_rs
from spark_consumers.current_state.stored_table import StoredTable

DELETION_VECTORS = "deletionVectors"
# The versions of the protocol that list features by name.
FEATURES_PROTOCOL = {"minReaderVersion": 3, "minWriterVersion": 7}
# What this process has read of the logs of tables: the next batch reads on from there.
_newest: dict[str, Snapshot] = {}


def create_table(
    url: str,
    options: Mapping[str, str],
    schema: pa.Schema,
    buckets: int,
    *,
    deletion_vectors: bool = True,
) -> None:
    """Create a table unless there is one. UsageError on columns or buckets that it cannot have."""
    storage = Storage(url, options)
    if Snapshot().newest(storage).version >= 0:
        return
    first = _first(schema, buckets)
    if not deletion_vectors:
        with written_by_delta_rs(url):
            DeltaTable.create(
                url,
                schema,
                mode="ignore",
                configuration={BUCKETS_SETTING: str(buckets)},
                storage_options=storage.options,
                raise_if_key_not_exists=False,
            )
        return
    actions: list[Action] = [
        {"protocol": first.protocol},
        {"metaData": first.metadata},
        {"commitInfo": {"timestamp": int(time.time() * 1000), "operation": "CREATE TABLE"}},
    ]
    storage.create(commit_path(0), serialized(actions))


def open_table(
    url: str, options: Mapping[str, str], memory: IndexMemory | None = None
) -> StoredTable | None:
    """Return the newest version of a table, None if there is none.

    `memory`: for its keys, which tables may share; None: some of its own.
    """
    storage = Storage(url, options)
    snapshot = _newest.get(url, Snapshot()).newest(storage)
    _newest[url] = snapshot
    return StoredTable(storage, snapshot, memory) if snapshot.version >= 0 else None


def new_table(url: str, options: Mapping[str, str], schema: pa.Schema, buckets: int) -> StoredTable:
    """Return a table that is yet to be created: rows can be staged for it."""
    return StoredTable(Storage(url, options), _first(schema, buckets))


def _first(schema: pa.Schema, buckets: int) -> Snapshot:
    if KEY not in schema.names:
        raise UsageError(f"a table of current rows needs a column {KEY}")
    if buckets < 1 or buckets & (buckets - 1):
        raise UsageError(f"the number of buckets must be a power of two, not {buckets}")
    metadata: dict[str, Any] = {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": Schema.from_arrow(schema).to_json(),
        "partitionColumns": [],
        "createdTime": int(time.time() * 1000),
        "configuration": {
            "delta.enableDeletionVectors": "true",
            BUCKETS_SETTING: str(buckets),
        },
    }
    features = [DELETION_VECTORS]
    if any(pa.types.is_timestamp(f.type) and f.type.tz is None for f in schema):
        features.append("timestampNtz")
    protocol = {**FEATURES_PROTOCOL, "readerFeatures": features, "writerFeatures": features}
    return Snapshot(-1, metadata, protocol)


def add_columns(url: str, options: Mapping[str, str], schema: pa.Schema) -> None:
    """Add the columns that a table lacks; rows that it has get nulls."""
    table = DeltaTable(url, storage_options=dict(options))
    present = {field.name for field in table.schema().fields}
    missing = [f for f in Schema.from_arrow(schema).fields if f.name not in present]
    if missing:
        with written_by_delta_rs(url):
            table.alter.add_columns(missing)
