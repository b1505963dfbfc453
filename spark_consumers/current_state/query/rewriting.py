"""Rewrites a table with other types or names of columns, in one commit.

A file's values have the type that the table had when it was written, and not every reader widens
them. Such ALTERs are rare and rewrite the source's table as well.
"""

import time
from collections.abc import Mapping

import pyarrow as pa
from deltalake import Schema

from event_token.errors import Retry
from spark_consumers.current_state.create import new_table, open_table
from spark_consumers.current_state.log import commit_path, serialized
from spark_consumers.current_state.query.merging import conformed
from spark_consumers.current_state.storage import Storage


def rewrite(
    url: str, options: Mapping[str, str], schema: pa.Schema, renames: Mapping[str, str]
) -> None:
    """Give a table, if there is one, the columns of a schema. Retry when another commit came first.

    `renames`: columns that get another name (old: new).
    """
    table = open_table(url, options)
    if table is None:
        return
    snapshot = table.snapshot
    wider = new_table(url, options, schema, snapshot.buckets)
    now_ms = int(time.time() * 1000)
    metadata = {**snapshot.metadata, "schemaString": Schema.from_arrow(schema).to_json()}
    actions = [{"metaData": metadata}]
    actions += [file.removal(now_ms, data_change=False) for file in snapshot.files.values()]
    for bucket in range(snapshot.buckets):
        rows = table.read(table.everything([bucket]))
        names = [renames.get(name, name) for name in rows.column_names]
        staged = wider.stage(None, conformed(rows.rename_columns(names), schema), compact=False)
        actions += [file.action(data_change=False) for file in staged.added]
    actions.append({"commitInfo": {"timestamp": now_ms, "operation": "ALTER TABLE"}})
    storage = Storage(url, options)
    if not storage.create(commit_path(snapshot.version + 1), serialized(actions)):
        raise Retry(f"{url}: another program wrote to the table while its columns were changed")
