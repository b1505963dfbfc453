"""The state of all tables as of a time, as a DataFrame: for change logs larger than one machine.

Spark groups the changes by key and applies the rule of `spark_consumers.applying` to each group,
so it gives what `replay.replay_changelog` gives.
"""

from collections.abc import Collection, Iterable, Iterator
from functools import partial
from itertools import groupby
from operator import itemgetter

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as sf

from spark_consumers.applying.homes import Version, add_version, live_homes
from spark_consumers.applying.tables import (
    CHANGE_COLUMNS,
    STATEMENT_COLUMNS,
    STATEMENT_TYPES,
    Change,
    Statements,
    versions_of,
)

KEY = ("database", "table", "key_text")
RESULT = "shard string, database string, table_name string, key_text string, row string, seq bigint"


def state_as_of(log: DataFrame, timestamp_us: int, accept_skip: Collection[str] = ()) -> DataFrame:
    """Return the rows (JSON text `row`) that were visible before `timestamp_us`.

    `log` is a change log. Columns: shard, database, table_name, key_text, row, seq; `shard` and
    `seq` are those of the row's last change. Tables without a primary key are left out
    (`replay_changelog` has them). CannotApply as there, at once for a SKIP that is not in
    `accept_skip`, else when the result is computed.
    """
    before = log.where(sf.col("timestamp_us") < timestamp_us)
    statements = Statements(accept_skip)
    is_statement = sf.col("type").isin(*STATEMENT_TYPES)
    for record in before.where(is_statement).select(*_present(log, STATEMENT_COLUMNS)).collect():
        statements.add(record.asDict())
    changes = before.where("type = 'ROW' AND key IS NOT NULL")
    columns = _present(log, CHANGE_COLUMNS)
    now = changes.select(*columns, sf.col("key").alias("key_text"))
    moved = changes.where("old_key IS NOT NULL").select(
        *columns, sf.col("old_key").alias("key_text")
    )
    by_key = now.unionByName(moved).repartition(*KEY).sortWithinPartitions(*KEY)
    # mapInArrow would need pandas, which nothing else here does.
    visible = by_key.rdd.mapPartitions(partial(_visible_rows, statements))
    return log.sparkSession.createDataFrame(visible, RESULT)


def _present(log: DataFrame, columns: Iterable[str]) -> list[str]:
    """Change logs of earlier releases lack some columns."""
    return [name for name in columns if name in log.columns]


def _visible_rows(
    statements: Statements, changes: Iterable[Row]
) -> Iterator[tuple[str, str, str, str, str, int]]:
    """Yield the visible row of each key; the changes of a key are neighbours."""
    dicts = (change.asDict() for change in changes)
    for (database, table, key), of_key in groupby(dicts, itemgetter(*KEY)):
        statements.check({(database, table)})
        for visible in live_homes(_versions(statements, key, of_key))[:1]:
            yield visible.shard, database, table, key, str(visible.row), visible.seq


def _versions(statements: Statements, key: str, changes: Iterable[Change]) -> list[Version]:
    found: list[Version] = []
    for change in changes:
        database, table = str(change["database"]), str(change["table"])
        for at, version in versions_of(change):
            if at == key and not statements.is_removed(database, table, version):
                add_version(found, version)
    return found
