import json
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from event_token.errors import UsageError
from spark_consumers.source import micro_batches
from spark_consumers.source.batch_query import stream_start
from spark_consumers.source.data_source import ShardstreamSource
from spark_consumers.source.options import SourceOptions
from spark_consumers.source.read_tasks import schema_ids_of
from tests.spark_consumers.patience import SLOW_WORKER, patiently
from tests.spark_consumers.queries import (
    QUERY_S_MAX,
    beating,
    merged_order,
    run_available,
    seqs,
    wait_until,
)
from tests.spark_consumers.shop import T0_US, Change, OrderWriter, Shop
from tests.topics.shard_writer import CELL_US
from topics.errors import LogShrank
from topics.kafka.client import open_admin
from topics.kafka.provisioning import provision_shard
from topics.names import ShardTopics
from topics.records.vevent import Row
from topics.stream.progress_feed import TAKE_MAX


def test_batches_are_bounded_disjoint_and_whole(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    """Batches have at most maxRowsPerBatch rows; together they have every row once, in order."""
    shop.write(60)

    batches = run_available(shop.stream(spark, maxRowsPerBatch="50"), tmp_path)

    rows = [row for batch in batches for row in batch]
    assert len(batches) >= 3
    assert max(map(len, batches)) <= 50
    assert rows == merged_order(rows)
    assert seqs(rows) == {"-80": list(range(1, 61)), "80-": list(range(1, 61))}
    assert {row.late for row in rows} == {False}


def test_restart_goes_on_from_the_checkpoint(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    """A second run reads only the rows written since; a third one reads none."""
    shop.write(20)
    first = run_available(shop.stream(spark), tmp_path)
    shop.write(15)
    second = run_available(shop.stream(spark), tmp_path)
    third = run_available(shop.stream(spark), tmp_path)

    assert seqs([row for batch in first for row in batch])["-80"] == list(range(1, 21))
    assert seqs([row for batch in second for row in batch])["80-"] == list(range(21, 36))
    assert third == []


def test_silent_shard_holds_back_only_what_is_ahead_of_it(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    """A shard that is behind holds back only rows that are newer than its head."""
    shop.write(10)
    shop.write(10, shards=("-80",))

    held = run_available(shop.stream(spark), tmp_path)
    shop.writers["80-"].promise(shop.now_us)
    released = run_available(shop.stream(spark), tmp_path)

    assert seqs([r for b in held for r in b]) == {
        "-80": list(range(1, 11)),
        "80-": list(range(1, 11)),
    }
    assert seqs([r for b in released for r in b]) == {"-80": list(range(11, 21))}


def test_big_ranges_are_split_over_tasks(spark: SparkSession, shop: Shop, tmp_path: Path) -> None:
    """Several tasks read a large range of one shard, each row once."""
    shop.write(25_000, shards=("-80",), chunk=5_000)
    shop.writers["80-"].promise(shop.now_us)

    frame = shop.batch(spark, maxRowsPerTask="11000", columns="shard,seq,offset,timestamp_us")
    rows = patiently(frame.collect)

    assert frame.rdd.getNumPartitions() >= 2
    assert seqs(rows) == {"-80": list(range(1, 25_001))}


def test_batch_read_between_times(spark: SparkSession, shop: Shop) -> None:
    """spark.read returns the rows of [start, end) by token time."""
    shop.write(50)

    start, end = (f"us:{T0_US + cells * CELL_US}" for cells in (1, 3))
    rows = patiently(shop.batch(spark, start=start, end=end).collect)

    assert seqs(rows) == {"-80": list(range(11, 31)), "80-": list(range(11, 31))}


def test_typed_table(spark: SparkSession, shop: Shop) -> None:
    """A14: with option table images are structs with the table's types, and statements come too."""
    statement = "CREATE TABLE other (id INT)"
    after: Row = {"id": 7, "note": "x", "price": Decimal("12.50")}
    shop.writers["-80"].write(
        [
            Change(T0_US, after=after),
            Change(T0_US + 1, statement=statement),
        ]
    )
    for writer in shop.writers.values():
        writer.promise(T0_US + CELL_US)

    columns = "seq,before,after,op,statement"
    rows = patiently(shop.batch(spark, table="shop.orders", columns=columns).collect)

    assert [row.asDict(recursive=True) for row in rows] == [
        {"before": None, "after": after, "op": "INSERT", "seq": 1, "statement": None},
        {"before": None, "after": None, "op": "NONE", "seq": 2, "statement": statement},
    ]


def test_statement_and_json_text(spark: SparkSession, shop: Shop) -> None:
    """Without option table images are JSON text and statements are rows."""
    shop.writers["-80"].write(
        [
            Change(T0_US, after={"id": 7, "note": None, "price": Decimal("12.50")}),
            Change(T0_US + 1, statement="CREATE TABLE other (id INT)"),
        ]
    )
    for writer in shop.writers.values():
        writer.promise(T0_US + CELL_US)

    rows = patiently(shop.batch(spark).orderBy("seq").collect)

    assert [(row.type, row.after, row.key, row.statement) for row in rows] == [
        ("ROW", '{"id":7,"note":null,"price":"12.50"}', "[7]", None),
        ("DDL", None, None, "CREATE TABLE other (id INT)"),
    ]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"colums": "seq"}, "unknown options colums"),
        ({"table": "orders"}, "not database.table"),
        ({"table": "shop.missing"}, "no row of shop.missing"),
        ({"mode": "max_hold"}, "maxHoldMs"),
        ({"start": "nonsense"}, "not a stream position"),
    ],
)
def test_bad_options_are_named(
    spark: SparkSession, shop: Shop, more: dict[str, str], message: str
) -> None:
    """Bad options are refused by name before anything is read."""
    with pytest.raises(PySparkException, match=message):
        patiently(lambda: shop.batch(spark, **more).collect())


def test_max_hold_goes_on_and_marks_late_rows(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    """A silent shard is skipped after maxHoldMs; its later rows come once, marked late."""
    shop.write(10)
    late_us = shop.now_us
    shop.write(10, shards=("-80",))
    rows: list[Any] = []
    writer = (
        shop.stream(spark, mode="max_hold", maxHoldMs="2000")
        .writeStream.foreachBatch(lambda frame, _batch_id: rows.extend(frame.collect()))
        .option("checkpointLocation", str(tmp_path))
    )
    query = patiently(writer.start)

    def wait_rows(count: int) -> None:
        def has_rows() -> bool:
            nonlocal query
            if SLOW_WORKER in str(query.exception()):
                query = patiently(writer.start)
            return len(rows) == count

        wait_until(has_rows, lambda: query.exception() or query.lastProgress)

    try:
        wait_rows(30)
        shop.writers["80-"].write([Change(late_us, after={"id": 1, "note": None})])
        wait_rows(31)
    finally:
        query.stop()

    assert seqs(rows) == {"-80": list(range(1, 21)), "80-": list(range(1, 12))}
    assert [(row.shard, row.seq) for row in rows if row.late] == [("80-", 11)]


def test_available_now_ends_behind_a_silent_shard(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    """B9: a query ends although one shard lags and another is thousands of cells ahead."""
    shop.write(10)
    lead = shop.writers["-80"]
    for chunk in range(7):
        first_us = shop.now_us + chunk * 1_000 * CELL_US
        lead.write(
            [
                Change(first_us + i * CELL_US, after={"id": i, "note": "", "price": None})
                for i in range(1_000)
            ]
        )
    end_offset = lead.end_offset()
    lead.producer.begin_transaction()
    for _ in range(2 * TAKE_MAX):  # more progress than a reader takes at once
        lead.head_us += CELL_US
        lead.produce_progress(lead.progress((), end_offset))
    lead.producer.commit_transaction(QUERY_S_MAX)

    rows = [row for batch in run_available(shop.stream(spark), tmp_path) for row in batch]

    assert seqs(rows) == {"-80": list(range(1, 11)), "80-": list(range(1, 11))}


def test_trigger_once_ends_while_heads_move(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    """B11: the end of a query with trigger once is what is on Kafka when it is first planned."""
    shop.write(30)

    with beating(list(shop.writers.values())):
        batches = run_available(shop.stream(spark), tmp_path, "once")

    rows = [row for batch in batches for row in batch]
    assert {shard: len(found) for shard, found in seqs(rows).items()} == {"-80": 30, "80-": 30}


def test_everything_available_has_an_end_while_heads_move(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B11: a batch without a limit ends at what is on Kafka when it is planned."""
    # With fast heartbeats each poll finds one within the usual time.
    monkeypatch.setattr(micro_batches, "POLL_S_MAX", 5.0)
    shop.write(30)
    source = ShardstreamSource(shop.options())
    reader = source.streamReader(source.schema())
    start = reader.initialOffset()
    ends: list[dict[str, object]] = []
    planning = threading.Thread(
        target=lambda: ends.append(reader.latestOffset(start, ReadAllAvailable())), daemon=True
    )

    with beating(list(shop.writers.values())):
        planning.start()
        planning.join(QUERY_S_MAX)
        has_ended = not planning.is_alive()
    planning.join(QUERY_S_MAX)
    reader.stop()

    assert has_ended
    assert {part.task.part.rows for part in reader.partitions(start, ends[0])} == {30}


def test_a_log_that_was_recreated_is_not_continued(shop: Shop) -> None:
    """F09: The offset of a checkpoint tells a topic from one that replaced it."""
    shop.write(10)
    source = ShardstreamSource(shop.options())
    reader = source.streamReader(source.schema())
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    reader.stop()
    topics = ShardTopics(shop.keyspace, "80-")
    admin = open_admin(shop.config)
    for future in admin.delete_topics([topics.log, topics.progress]).values():
        future.result(QUERY_S_MAX)
    provision_shard(shop.config, topics)
    shop.writers["80-"] = OrderWriter(shop.config, shop.keyspace, "80-")
    shop.write(20)
    reader = source.streamReader(source.schema())

    with pytest.raises(LogShrank, match="80-: the topic was deleted and created again"):
        reader.latestOffset(json.loads(json.dumps(end)), ReadAllAvailable())
    reader.stop()


def test_a_checkpoint_of_another_key_range_is_refused(shop: Shop) -> None:
    """F41: The rows that a wider range adds would be missing up to there, without an error."""
    shop.write(10)
    source = ShardstreamSource(shop.options(keyRange="-80"))
    reader = source.streamReader(source.schema())
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    same = reader.latestOffset(json.loads(json.dumps(end)), ReadAllAvailable())
    reader.stop()
    source = ShardstreamSource(shop.options(keyRange="-40"))
    reader = source.streamReader(source.schema())

    with pytest.raises(UsageError, match="of the key range -80, and this one reads -40"):
        reader.latestOffset(json.loads(json.dumps(end)), ReadAllAvailable())
    reader.stop()
    assert same == end


def test_a_silent_shard_is_warned_of(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """C1: a shard that holds the frontier back is a warning, once, which Spark's log shows."""
    monkeypatch.setattr(micro_batches, "STALL_MS", QUERY_S_MAX * 1_000)
    shop.write(10)
    shop.write(10, ("-80",))
    options = SourceOptions.parse(shop.options())
    schema_ids = schema_ids_of(options.kafka, None)
    planning = micro_batches.BatchPlanning(options, schema_ids)
    position = stream_start(options, schema_ids)

    def waits_for_one_shard() -> bool:
        nonlocal position
        position = planning.next_end(position, None) or position
        return planning.waiting is not None and set(planning.waiting.shards) == {"80-"}

    wait_until(waits_for_one_shard, lambda: planning.waiting)
    monkeypatch.setattr(micro_batches, "STALL_MS", 0)
    planning.next_end(position, None)
    planning.next_end(position, None)
    planning.close()

    warnings = [r.getMessage() for r in caplog.records if r.name == "shardstream.spark"]
    assert len(warnings) == 1
    assert f"keyspace {shop.keyspace}: the stream is waiting for 80-: shard 80- is" in warnings[0]
