"""Rewrites a table with other types or names of columns, in one commit.

A file's values have the type that the table had when it was written, and not every reader widens
them. Such ALTERs are rare and rewrite the source's table as well.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from deltalake import Schema

from event_token.errors import Retry
from spark_consumers.applying.shard_columns import Dropped, cleared
from spark_consumers.current_state.create import (
    DELETION_VECTORS,
    FEATURES_PROTOCOL,
    new_table,
    open_table,
)
from spark_consumers.current_state.files import read_file, write_file
from spark_consumers.current_state.log import CLOSED, Action, commit_path, serialized
from spark_consumers.current_state.query.merging import conformed
from spark_consumers.current_state.storage import Storage


def rewrite(
    url: str,
    options: Mapping[str, str],
    schema: pa.Schema,
    renames: Mapping[str, str],
    *,
    dropped: Sequence[Dropped] = (),
    marks: Mapping[str, int] | None = None,
) -> None:
    """Give a table, if there is one, the columns of a schema. Retry when another commit came first.

    `renames`: columns that get another name (old: new). `dropped`: columns that lose the values of
    rows that are older than these changes. `marks`: of the commit.
    """
    table = open_table(url, options)
    if table is None:
        return
    snapshot = table.snapshot
    wider = new_table(url, options, schema, snapshot.buckets)
    now_ms = int(time.time() * 1000)
    metadata = {**snapshot.metadata, "schemaString": Schema.from_arrow(schema).to_json()}
    actions: list[Action] = [{"metaData": metadata}]
    actions += [
        {"txn": {"appId": mark, "version": number, "lastUpdated": now_ms}}
        for mark, number in (marks or {}).items()
    ]
    actions += _protocol(snapshot.protocol, wider.snapshot.protocol)
    files = (*snapshot.files.values(), *snapshot.closed.values())
    actions += [file.removal(now_ms, data_change=False) for file in files]
    for bucket in range(snapshot.buckets):
        rows = _as(schema, renames, table.read(table.everything([bucket])))
        for column, at in dropped:
            rows = cleared(rows, column, at)
        staged = wider.stage(None, rows, compact=False)
        actions += [file.action(data_change=False) for file in staged.added]
    for file in snapshot.closed.values():
        rows = _as(schema, renames, read_file(table.storage, file.path, table.schema))
        written = write_file(table.storage, *file.bucket, rows, CLOSED)
        actions.append(written.action(data_change=False))
    actions.append({"commitInfo": {"timestamp": now_ms, "operation": "ALTER TABLE"}})
    storage = Storage(url, options)
    if not storage.create(commit_path(snapshot.version + 1), serialized(actions)):
        raise Retry(f"{url}: another program wrote to the table while its columns were changed")


def _protocol(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[Action]:
    """Return the action that a table needs whose new types are a feature that it lacks."""
    has = {side: set(stored.get(side) or ()) for side in ("readerFeatures", "writerFeatures")}
    missing = {*wanted["writerFeatures"]} - {DELETION_VECTORS} - has["writerFeatures"]
    if not missing:
        return []
    features = {side: sorted(names | missing) for side, names in has.items()}
    return [{"protocol": {**FEATURES_PROTOCOL, **features}}]


def _as(schema: pa.Schema, renames: Mapping[str, str], rows: pa.Table) -> pa.Table:
    names = [renames.get(name, name) for name in rows.column_names]
    return conformed(rows.rename_columns(names), schema)
