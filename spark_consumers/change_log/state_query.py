"""State as of a time, as a query over the change log: for Spark SQL and for DataFusion alike.

For each key of a shard the change with the greatest `seq` counts. An update that moves a row to
another key counts for both keys: it empties the old one. Tables without a primary key have no
such query (`replay.replay_changelog` has them), and partial row images (column `absent` not null)
give only the columns that the last change had.
"""


def state_as_of(log: str, timestamp_us: int) -> str:
    """Return SQL for the rows (JSON text `row`) that were there before `timestamp_us`.

    Columns: shard, database, table_name, key_text, row, seq. `log` is the name under which the
    change log is known in SQL.
    """
    changes = f"""
        SELECT log.shard, log.database, log.{{table}} AS table_name, log.{{key}} AS key_text,
               log.seq, {{row}} AS row
        FROM {log} AS log
        WHERE log.type = 'ROW' AND log.timestamp_us < {int(timestamp_us)}
          AND log.{{key}} IS NOT NULL
    """  # noqa: S608 - the name is the caller's own, the time a number
    now = changes.format(table="table", key="key", row="log.after")
    moved = changes.format(table="table", key="old_key", row="CAST(NULL AS STRING)")
    return f"""
        SELECT shard, database, table_name, key_text, row, seq FROM (
            SELECT *, row_number() OVER (
                PARTITION BY shard, database, table_name, key_text ORDER BY seq DESC
            ) AS place
            FROM ({now} UNION ALL {moved}) AS changes
        ) AS ranked
        WHERE place = 1 AND row IS NOT NULL
    """  # noqa: S608 - likewise
