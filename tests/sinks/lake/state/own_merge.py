"""A user's own MERGE into a Delta table, as docs/current-state.md shows it."""

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

from shardstream import latest_changes, merge_condition, sequence_by
from tests.spark_consumers.patience import patiently

QUERY_S_MAX = 300
IS_NEWER = f"{sequence_by('source')} > {sequence_by('target')}"
MERGE = f"""
    MERGE INTO delta.`{{target}}` AS target USING {{changes}} AS source ON {merge_condition()}
    WHEN MATCHED AND source._deleted AND {IS_NEWER} THEN DELETE
    WHEN MATCHED AND {IS_NEWER} THEN UPDATE SET *
    WHEN NOT MATCHED AND NOT source._deleted THEN INSERT *
"""


def merge_what_is_there(
    spark: SparkSession, options: Mapping[str, str], target: str, checkpoint: str
) -> None:
    """Merge what is on Kafka; `options`: of format shardstream, `table` among them."""

    def merge(batch: DataFrame, batch_id: int) -> None:
        changes = latest_changes(batch)
        changes.drop("_deleted").limit(0).write.format("delta").mode("ignore").save(target)
        batch.sparkSession.sql(MERGE.replace("{target}", target), changes=changes)

    def run() -> bool | None:
        query = (
            spark.readStream.format("shardstream")
            .options(**options)
            .load()
            .writeStream.foreachBatch(merge)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        return query.awaitTermination(QUERY_S_MAX)

    assert patiently(run)
