"""The changes of a table's rows as a user's own MERGE takes them."""

import pytest
from pyspark.errors import SparkRuntimeException
from pyspark.sql import SparkSession

from event_token.errors import UsageError
from spark_consumers.latest_changes import latest_changes, sequence_by

SCHEMA = (
    "type string, op string, before struct<id:int,note:string>, after struct<id:int,note:string>, "
    "key string, old_key string, absent string, shard string, seq bigint, timestamp_us bigint, "
    "keyspace_id_before binary, keyspace_id_after binary, present_op string"
)
HERE, THERE = b"\x10", b"\x90"
Image = tuple[int, str] | None


def record(
    at: tuple[str, int, int],
    before: Image,
    after: Image,
    homes: tuple[bytes | None, bytes | None] = (None, None),
    absent: str | None = None,
) -> tuple[object, ...]:
    """A row of the source; `at`: shard, seq and time."""
    shard, seq, time_us = at
    image = after or before
    key = f"[{image[0]}]" if image else None
    old_key = f"[{before[0]}]" if before and after and before[0] != after[0] else None
    return ("ROW", "", before, after, key, old_key, absent, shard, seq, time_us, *homes, None)


@pytest.mark.full
def test_a_batch_has_the_last_change_of_each_key_and_home(spark: SparkSession) -> None:
    """A move by DELETE and INSERT, one by UPDATE, a key that changes, a table without homes."""
    records = [
        record(("80-", 5, 100), None, (1, "moved"), (None, THERE)),
        record(("-80", 7, 110), (1, "old"), None, (HERE, None)),
        record(("-80", 8, 110), (2, "old"), (2, "same shard"), (HERE, THERE)),
        record(("-80", 9, 120), None, (3, "first")),
        record(("-80", 10, 130), (3, "first"), (4, "renamed")),
        ("DDL", *(None,) * 12),
    ]

    found = latest_changes(spark.createDataFrame(records, SCHEMA)).collect()

    rows = {(r["_key"], bytes(r["_home"])): (r["note"], r["_seq"], r["_deleted"]) for r in found}
    assert len(found) == len(rows)
    assert rows == {
        ("[1]", THERE): ("moved", 5, False),
        ("[1]", HERE): ("old", 7, True),
        ("[2]", THERE): ("same shard", 8, False),
        ("[2]", HERE): ("old", 8, True),
        ("[3]", b""): ("first", 10, True),
        ("[4]", b""): ("renamed", 10, False),
    }
    assert sequence_by("s") == "struct(s._time_us, s._shard, s._seq)"


def test_what_cannot_be_merged_fails_by_name(spark: SparkSession) -> None:
    """Row images that lack columns, and rows without a key, must never be merged."""
    at = ("-80", 1, 100)
    partial = record(at, None, (1, "a"), absent='{"after":["price"]}')
    keyless = (*record(at, None, (1, "a"))[:4], None, *record(at, None, (1, "a"))[5:])

    for row, problem in ((partial, "lacks columns"), (keyless, "without a primary key")):
        with pytest.raises(SparkRuntimeException, match=problem):
            latest_changes(spark.createDataFrame([row], SCHEMA)).collect()
    as_text = spark.createDataFrame([], SCHEMA.replace("struct<id:int,note:string>", "string"))
    with pytest.raises(UsageError, match="option table, and columns before and after as structs"):
        latest_changes(as_text)
