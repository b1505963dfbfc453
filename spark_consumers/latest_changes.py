"""For users' own MERGE and AUTO CDC: the rows of format `shardstream` as changes of a table's rows.

A target keeps one row per primary key and home (the keyspace id), so that the DELETE with which a
row leaves a shard never removes the row that lives on another one. For as long as a row moves, both
of its homes are there.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from event_token.errors import UsageError
from sinks.rule.homes import DELETED, HOME, KEY, SEQ, SHARD, TIME
from topics.arrow.output_columns import PRESENT_OP
from topics.records.vevent import Op

_IDENTITY = (KEY, HOME)
_ORDER = (TIME, SHARD, SEQ)
_NEEDED = (
    *("type", "before", "after", "key", "old_key", "absent", "shard", "seq", "timestamp_us"),
    *("keyspace_id_before", "keyspace_id_after", PRESENT_OP),
)


def latest_changes(frame: DataFrame) -> DataFrame:
    """Return the last change of each key and home in a batch of format `shardstream`.

    `frame`: as `foreachBatch` passes it, read with option `table`; of a streaming frame all changes
    are returned, for AUTO CDC, which orders them itself. Columns: those of the table, then `_key`
    (JSON text of the primary key), `_home` (keyspace id, empty where the table has none), `_shard`,
    `_seq`, `_time_us` and `_deleted`. An UPDATE that changes the key or the home is a deletion of
    the old row too. Statements are left out.

    UsageError unless `frame` has the source's columns. Rows without a primary key, and row images
    that lack columns, fail the job.
    """
    types = dict(frame.dtypes)
    missing = [name for name in _NEEDED if name not in types]
    if missing or not types["after"].startswith("struct"):
        raise UsageError(
            f"latest_changes needs the rows of format shardstream with option table, and columns "
            f"{', '.join(missing or ['before and after as structs'])}"
        )
    is_history = f.col(PRESENT_OP).eqNullSafe(Op.NONE.value)
    rows = frame.where((f.col("type") == "ROW") & ~is_history)
    changes = rows.select(f.explode(_changes()).alias("change")).select("change.row.*", "change.*")
    changes = changes.drop("row")
    if frame.isStreaming:
        return changes
    last = f.max_by(f.struct("*"), f.expr(sequence_by()))
    return changes.groupBy(*_IDENTITY).agg(last.alias("last")).select("last.*")


def merge_condition(target: str = "target", source: str = "source") -> str:
    """Return the SQL condition on which a MERGE finds the row of a change, by the two aliases."""
    return " AND ".join(f"{target}.{name} = {source}.{name}" for name in _IDENTITY)


def sequence_by(alias: str = "") -> str:
    """Return the SQL expression that orders the changes of all shards; `alias`: of the rows.

    For AUTO CDC as it is. In a MERGE, what is stored is replaced or deleted only by what is newer:
    `sequence_by("source") > sequence_by("target")`.
    """
    prefix = f"{alias}." if alias else ""
    return f"struct({', '.join(prefix + name for name in _ORDER)})"


def _changes() -> Column:
    """Return an array: the change of the row, and the deletion of the one that it was before."""
    is_delete = f.col("after").isNull() | f.col(PRESENT_OP).eqNullSafe(Op.DELETE.value)
    homes = f.col("keyspace_id_before"), f.col("keyspace_id_after")
    is_moved = f.col("before").isNotNull() & (
        f.col("old_key").isNotNull() | f.coalesce(homes[0] != homes[1], f.lit(False))
    )
    now = _change(
        f.when(is_delete, f.col("before")).otherwise(f.col("after")),
        f.col("key"),
        f.when(is_delete, homes[0]).otherwise(homes[1]),
        is_delete,
    )
    old_key = f.coalesce("old_key", "key")
    before = _change(f.col("before"), old_key, homes[0], f.lit(True))
    return f.when(~is_delete & is_moved, f.array(now, before)).otherwise(f.array(now))


def _change(image: Column, key: Column, home: Column, is_deleted: Column) -> Column:
    whole = f.when(f.col("absent").isNull(), image).otherwise(
        f.raise_error(f.lit("a row image lacks columns: MERGE needs binlog_row_image=FULL"))
    )
    known = f.coalesce(key, f.raise_error(f.lit("a table without a primary key: MERGE needs one")))
    return f.struct(
        whole.alias("row"),
        known.alias(KEY),
        f.coalesce(home, f.lit(b"")).alias(HOME),
        f.col("shard").alias(SHARD),
        f.col("seq").alias(SEQ),
        f.col("timestamp_us").alias(TIME),
        is_deleted.alias(DELETED),
    )
