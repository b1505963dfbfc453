from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from event_token.errors import UsageError
from sinks.errors import ChangeLogConflict
from sinks.lake.change_log.delta_commit import SeqSpan, WrittenFile, check_disjoint
from spark_consumers.change_log import file_text, parse_file, run_changelog
from spark_consumers.sink_query import SinkProgress, run_query
from tests.spark_consumers.patience import patiently
from tests.spark_consumers.queries import run_now
from tests.spark_consumers.shop import Shop

COUNTS = st.integers(0, 2**62)
SPANS = st.dictionaries(st.text(max_size=8), st.builds(SeqSpan, COUNTS, COUNTS, COUNTS), max_size=3)
FILES = st.builds(WrittenFile, st.text(max_size=8), COUNTS, COUNTS, st.text(max_size=8))


@given(file=FILES, spans=SPANS)
def test_a_file_survives_the_way_through_spark(
    file: WrittenFile, spans: dict[str, SeqSpan]
) -> None:
    """What a task tells of its file reaches the commit as it was."""
    assert parse_file(file_text(file, spans)) == (file, spans)


@pytest.mark.parametrize("other", [SeqSpan(3, 9, 7), SeqSpan(1, 3, 3), SeqSpan(2, 2, 1)])
def test_a_batch_with_two_files_of_the_same_records_is_refused(other: SeqSpan) -> None:
    """If Spark kept both results of a task that ran twice, nothing of the batch is committed."""
    first = {"-80": SeqSpan(1, 3, 3)}
    check_disjoint([first, {"-80": SeqSpan(4, 9, 6)}, {"80-": other}])

    with pytest.raises(ChangeLogConflict, match="two files of a batch hold shard -80 from seq"):
        check_disjoint([{"80-": SeqSpan(1, 3, 3)}, {"-80": other}, first])


@pytest.mark.full
def test_nothing_lies_between_the_tasks_and_the_commit(
    spark: SparkSession, shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan has no exchange, and what Spark carries is one row for each file.

    Only repeated values get a dictionary there, rising numbers are differences, few have bounds.
    """
    shop.write(30)
    queries: list[StreamingQuery] = []

    def run_kept(writer: Callable[[], DataStreamWriter], *rest: Any) -> SinkProgress:
        def start(given: DataStreamWriter) -> StreamingQuery:
            queries.append(started(given))
            return queries[-1]

        started = DataStreamWriter.start
        monkeypatch.setattr(DataStreamWriter, "start", start)
        return run_query(writer, *rest)

    monkeypatch.setattr("spark_consumers.change_log.run_query", run_kept)
    log = str(tmp_path / "log")
    run_changelog(
        spark,
        shop.keyspace,
        log,
        str(tmp_path / "checkpoint"),
        shop.options(),
        trigger="availableNow",
    )

    [query] = queries
    plan = query._jsq.explainInternal(True)
    assert "shardstream_change_log_files" in plan
    assert "Exchange" not in plan
    rows = sum(each["numInputRows"] for each in query.recentProgress)
    files = DeltaTable(log).file_uris()
    assert rows == len(files) < DeltaTable(log).count() == 60
    check_encodings(files[0])


def check_encodings(file: str) -> None:
    """Columns are encoded by what they hold."""
    group = pq.read_metadata(file).row_group(0)
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    with_dictionary = {name for name, c in columns.items() if c.has_dictionary_page}
    assert {"table", "op", "gtid"} <= with_dictionary
    assert not with_dictionary & {"after", "key", "seq", "commit_us"}
    assert "DELTA_BINARY_PACKED" in columns["seq"].encodings
    assert {name for name, c in columns.items() if c.statistics} == {
        *("timestamp_us", "shard", "seq", "offset", "database", "table")
    }


@pytest.mark.full
def test_a_log_of_one_table_has_its_typed_columns(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    """With option table, images are structs, as format `shardstream` shows them."""
    shop.write(20)
    run_now(spark, shop, tmp_path, table="shop.orders")

    source = shop.options(table="shop.orders", start="earliest", keyspace=shop.keyspace)
    shown = patiently(spark.read.format("shardstream").options(**source).load)
    stored = spark.read.parquet(*DeltaTable(tmp_path / "log").file_uris())
    assert stored.schema.names == shown.schema.names
    keys = ("shard", "seq", "after.id", "after.note", "after.price")
    stored_rows, shown_rows = (patiently(frame.select(*keys).collect) for frame in (stored, shown))
    assert sorted(stored_rows, key=str) == sorted(shown_rows, key=str)
    assert stored.count() == 40


def test_a_log_needs_the_columns_of_its_order(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    """A list of columns without those that tell order and repeats is refused before a start."""
    with pytest.raises(UsageError, match="a change log needs timestamp_us, seq, offset as well"):
        run_now(spark, shop, tmp_path, columns="shard,after")
    assert not list(tmp_path.iterdir())
