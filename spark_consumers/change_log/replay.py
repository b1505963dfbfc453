"""Replays a change log into the tables that it describes, in this process. Needs no Spark.

Changes are applied in any order by the rule of `spark_consumers.applying`. Memory: the rows of the
result and a tombstone per deleted key. `state.state_as_of` does the same on a Spark cluster.
"""

from collections.abc import Collection, Mapping

import pyarrow.dataset as ds

from spark_consumers.applying.tables import (
    CHANGE_COLUMNS,
    STATEMENT_COLUMNS,
    STATEMENT_TYPES,
    AppliedTable,
    Applier,
    Statements,
)
from spark_consumers.change_log.delta_files import open_changelog, read_batches


def replay_changelog(
    target: str,
    *,
    until_us: int | None = None,
    accept_skip: Collection[str] = (),
    storage_options: Mapping[str, str] | None = None,
) -> dict[tuple[str, str], AppliedTable]:
    """Return the tables of the keyspace, by database and name, as they were before `until_us`.

    None: at the end of the log. The log must begin with the tables empty or copied. CannotApply
    (a Halt) when the log cannot tell what became of a table: it holds partial row images
    (binlog_row_image other than FULL), a statement such as RENAME TABLE, or a SKIP whose GTID is
    not in `accept_skip`.
    """
    options = storage_options or {}
    table = open_changelog(target, options)
    is_before = ds.scalar(value=True) if until_us is None else ds.field("timestamp_us") < until_us
    statements = Statements(accept_skip)
    is_statement = is_before & ds.field("type").isin(STATEMENT_TYPES)
    for batch in read_batches(table, options, STATEMENT_COLUMNS, is_statement):
        for record in batch.to_pylist():
            statements.add(record)
    applier = Applier(statements)
    is_row = is_before & (ds.field("type") == "ROW")
    for batch in read_batches(table, options, CHANGE_COLUMNS, is_row):
        applier.apply(batch.to_pylist())
    return applier.finish()
