import json
import random
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
from spark_consumers.source.data_source import ShardstreamSource, schema_ids_of
from spark_consumers.source.micro_batches import stream_start
from spark_consumers.source.options import SourceOptions
from tests.spark_consumers.patience import SLOW_WORKER, patiently
from tests.spark_consumers.queries import (
    QUERY_S_MAX,
    beating,
    merged_order,
    run_available,
    seqs,
)
from tests.spark_consumers.shop import T0_US, Change, OrderWriter, Shop
from tests.topics.shard_writer import CELL_US
from tests.waiting import wait_for
from topics.errors import LogShrank
from topics.kafka.client import open_admin
from topics.kafka.provisioning import provision_shard
from topics.names import ShardTopics
from topics.records.vevent import Row
from topics.stream.progress_feed import TAKE_MAX


@pytest.mark.full
def test_a_stream_is_read_once_over_restarts(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    """Batches have at most maxRowsPerBatch rows; together they have every row once, in order.

    A restart reads only what came since. A shard that is behind holds back only rows that are newer
    than its head. B11: with trigger once the end is what is on Kafka when it is first planned. B9:
    a query ends although one shard lags and another is thousands of cells ahead.
    """
    ahead, behind = shop.writers.values()
    shop.write(60)
    batches = run_available(shop.stream(spark, maxRowsPerBatch="50"), tmp_path)

    rows = [row for batch in batches for row in batch]
    assert len(batches) >= 3
    assert max(map(len, batches)) <= 50
    assert rows == merged_order(rows)
    assert seqs(rows) == {"-80": list(range(1, 61)), "80-": list(range(1, 61))}
    assert {row.late for row in rows} == {False}

    shop.write(15)
    shop.write(10, shards=("-80",))
    held = run_available(shop.stream(spark), tmp_path)
    behind.promise(shop.now_us)
    with beating([ahead, behind]):
        released = run_available(shop.stream(spark), tmp_path, "once")

    assert seqs([row for batch in held for row in batch]) == {
        "-80": list(range(61, 76)),
        "80-": list(range(61, 76)),
    }
    assert seqs([row for batch in released for row in batch]) == {"-80": list(range(76, 86))}

    run_far_ahead(ahead)
    batches = run_available(shop.stream(spark), tmp_path)
    assert [row for batch in batches for row in batch] == []


def run_far_ahead(writer: OrderWriter) -> None:
    """Write rows of thousands of cells, and more progress than a reader takes at once."""
    first_us = writer.head_us + CELL_US
    for cell in range(0, 7_000, 1_000):
        times = range(first_us + cell * CELL_US, first_us + (cell + 1_000) * CELL_US, CELL_US)
        writer.write([Change(at_us, after={"id": 1, "note": "", "price": None}) for at_us in times])
    end_offset = writer.end_offset()
    writer.producer.begin_transaction()
    for _ in range(2 * TAKE_MAX):
        writer.head_us += CELL_US
        writer.produce_progress(writer.progress((), end_offset))
    writer.producer.commit_transaction(QUERY_S_MAX)


@pytest.mark.full
def test_records_in_parts_are_rows_as_any(spark: SparkSession, shop: Shop, tmp_path: Path) -> None:
    """Queries join parts, also where a batch or a task begins or ends beside them."""
    notes: dict[str, list[str]] = {shard: [] for shard in shop.writers}
    chance = random.Random(5)
    for i in range(20):
        for shard, writer in shop.writers.items():
            writer.message_bytes_max = 3_000
            size = chance.choice((10, 2_480, 3_000, 9_000, 30_000))
            note = chance.randbytes(size).hex()
            notes[shard].append(note)
            after: Row = {"id": i, "note": note, "price": None}
            writer.write([Change(shop.now_us, after=after)])
        shop.now_us += CELL_US // 2
    for writer in shop.writers.values():
        assert len(writer.in_parts) > 5
        writer.promise(shop.now_us + CELL_US)
    columns = "shard,seq,offset,timestamp_us,late,after"

    batches = run_available(
        shop.stream(spark, maxRowsPerBatch="7", maxRowsPerTask="2", columns=columns), tmp_path
    )
    whole = patiently(shop.batch(spark, columns=columns, maxRowsPerTask="3").collect)

    for rows in ([row for batch in batches for row in batch], merged_order(whole)):
        assert rows == merged_order(rows)
        assert seqs(rows) == {shard: list(range(1, 21)) for shard in shop.writers}
        for shard, wanted in notes.items():
            found = [json.loads(row.after)["note"] for row in rows if row.shard == shard]
            assert found == wanted
    assert len(batches) > 5


def test_big_ranges_are_split_over_tasks(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tasks read a large range of one shard, each row once."""
    monkeypatch.setattr(micro_batches, "BOUND_ROWS_MIN", 10)
    shop.write(100, shards=("-80",))
    shop.writers["80-"].promise(shop.now_us)
    source = ShardstreamSource(shop.options(maxRowsPerTask="40", columns="shard,seq"))
    reader = source.reader(source.schema())

    tasks = reader.partitions()
    found = [batch.to_pylist() for task in tasks for batch in reader.read(task)]

    assert len(tasks) == 3
    assert seqs([row for rows in found for row in rows]) == {"-80": list(range(1, 101))}


@pytest.mark.full
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
        ({"mode": "max_hold"}, "maxHoldMs"),
        ({"start": "nonsense"}, "not a stream position"),
    ],
)
def test_bad_options_are_named(more: dict[str, str], message: str) -> None:
    """Bad options are refused by name before anything is read."""
    with pytest.raises(UsageError, match=message):
        ShardstreamSource({"keyspace": "shop", "kafka.bootstrap.servers": "b:1", **more})


def test_a_missing_table_is_named_through_spark(spark: SparkSession, shop: Shop) -> None:
    """What the source refuses is in Spark's error."""
    with pytest.raises(PySparkException, match=r"no row of shop\.missing"):
        patiently(lambda: shop.batch(spark, table="shop.missing").collect())


@pytest.mark.full
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

        wait_for("it has rows", has_rows, lambda: query.exception() or query.lastProgress)

    try:
        wait_rows(30)
        shop.writers["80-"].write([Change(late_us, after={"id": 1, "note": None})])
        wait_rows(31)
    finally:
        query.stop()

    assert seqs(rows) == {"-80": list(range(1, 21)), "80-": list(range(1, 12))}
    assert [(row.shard, row.seq) for row in rows if row.late] == [("80-", 11)]


@pytest.mark.full
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

    wait_for("it waits for one shard", waits_for_one_shard, lambda: planning.waiting)
    monkeypatch.setattr(micro_batches, "STALL_MS", 0)
    planning.next_end(position, None)
    planning.next_end(position, None)
    planning.close()

    warnings = [r.getMessage() for r in caplog.records if r.name == "shardstream.spark"]
    assert len(warnings) == 1
    assert f"keyspace {shop.keyspace}: the stream is waiting for 80-: shard 80- is" in warnings[0]
