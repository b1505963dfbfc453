"""The rows that a sink's tasks get: all tables in one stream, divided by key without decoding.

A task owns keys: it sees every change of them, whatever shard, table or version a change is of, and
every record that is not a row (DDL, COPY_COMPLETED, SKIP, marks), because that may concern any key.
"""

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from event_token.errors import UsageError
from spark_consumers.applying.shadow_tables import SHADOW_TABLE
from spark_consumers.decoding.output_columns import PRESENT_OP, SINK_COLUMNS
from spark_consumers.sink_query.spark_errors import translated
from spark_consumers.source.data_source import SOURCE_FORMAT
from topics.records.vevent import EventType, Op

__all__ = ["LEFT_OUT", "PARTITIONS_MAX", "ROUTE", "SINK_COLUMNS", "routed", "sink_frame"]

# The hash by which a row came to its task; for other records the number of the task.
ROUTE = "route"
# The metric of a batch that names the tables whose rows it left out by rule, in column `tables`.
LEFT_OUT = "shardstream_left_out"
# Buckets of a lake are a power of two too, so a task has whole ones.
PARTITIONS_MAX = 1024


def sink_frame(
    spark: SparkSession,
    keyspace: str,
    options: Mapping[str, str],
    *,
    tables: Sequence[str] = (),
    token: bool = True,
    more: Sequence[str] = (),
) -> DataFrame:
    """Return the stream of a keyspace with SINK_COLUMNS and `more` of the source's columns.

    `token`: whether the sink needs that column. Of a system-versioned table the rows are its
    present ones, and their column op is what becomes of them.

    `options` are those of format `shardstream`. `tables` are the tables (`database.table`) whose
    rows are wanted, none: all but those in which gh-ost and pt-online-schema-change prepare an
    ALTER, which metric LEFT_OUT then names. Records other than rows are those of all tables.
    """
    columns = [name for name in (*SINK_COLUMNS, *more, PRESENT_OP) if token or name != "token"]
    source = {**options, "keyspace": keyspace, "columns": ",".join(columns)}
    frame = _present_rows(translated(spark.readStream.format(SOURCE_FORMAT).options(**source).load))
    is_row = f.col("type") == EventType.ROW.value
    name = f.concat_ws(".", "database", "table")
    if tables:
        return frame.where(~is_row | name.isin(*tables))
    is_shadow = is_row & f.col("table").rlike(SHADOW_TABLE)
    # As a column the name is found by compiled code; inside the aggregate it took twice as long.
    named = frame.withColumn(LEFT_OUT, f.when(is_shadow, name))
    seen = named.observe(LEFT_OUT, f.sort_array(f.collect_set(LEFT_OUT)).alias("tables"))
    return seen.where(f.col(LEFT_OUT).isNull()).drop(LEFT_OUT)


def _present_rows(frame: DataFrame) -> DataFrame:
    """Leave out what a system-versioned table keeps as history: the rest is as of other tables."""
    op = f.coalesce(PRESENT_OP, "op")
    is_history = f.col("type").eqNullSafe(EventType.ROW.value) & (op == Op.NONE.value)
    return frame.where(~is_history).withColumn("op", op).drop(PRESENT_OP)


def routed(frame: DataFrame, partitions: int) -> DataFrame:
    """Divide the rows of `sink_frame` over `partitions` tasks by key, and add column ROUTE.

    A row goes to task pmod(key_hash, partitions). One that changed its key comes a second time, to
    the task of its old key; ROUTE tells for which key it came. A row without a primary key goes to
    task 0, and every other record to each task. UsageError unless `partitions` is a power of two.
    """
    if not 1 <= partitions <= PARTITIONS_MAX or partitions & (partitions - 1):
        raise UsageError(
            f"--partitions {partitions}: must be a power of two, at most {PARTITIONS_MAX}"
        )
    key, old_key = f.col("key_hash"), f.col("old_key_hash")
    routes = (
        f.when(f.col("type") != EventType.ROW.value, f.sequence(f.lit(0), f.lit(partitions - 1)))
        .when(old_key.isNull() | (old_key == key), f.array(f.coalesce(key, f.lit(0))))
        .otherwise(f.array(key, old_key))
    )
    rows = frame.withColumn(ROUTE, f.explode(routes.cast("array<bigint>")))
    task = f.pmod(f.col(ROUTE), f.lit(partitions)).cast("int")
    return rows.repartitionById(partitions, task)
