from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_consumers.sink_query.frame import SINK_COLUMNS
from spark_consumers.source.read_tasks import schema_ids_of
from spark_consumers.table_topics.batch_writer import Message
from spark_consumers.table_topics.envelope.options import EnvelopeOptions
from spark_consumers.table_topics.envelope.table_encoder import TableEncoder
from spark_consumers.table_topics.moves import Place, RecentHomes
from spark_consumers.table_topics.task_rows import DUPLICATE_HEADER, LATE_HEADER, TableMessages
from tests.spark_consumers.shop import Shop


def rows_of(spark: SparkSession, shop: Shop) -> pa.Table:
    """What is on Kafka as a task gets it."""
    rows = shop.batch(spark, columns=",".join((*SINK_COLUMNS, "offset"))).toArrow()
    return rows.append_column("route", rows["key_hash"])


def messages_of(shop: Shop, rows: pa.Table, homes: RecentHomes) -> Iterator[Message]:
    """The messages of one task."""
    envelope = EnvelopeOptions(prefix=shop.keyspace, keyspace=shop.keyspace)

    def fetch(place: Place) -> bytes:
        raise AssertionError(place)

    encoders = TableMessages(
        schema_ids_of(shop.config, None).text_of,
        {},
        open_encoder=lambda shape: TableEncoder(shape, envelope),
        ensure_topic=lambda _: None,
        fetch=fetch,
    )
    return encoders.messages(rows, homes)


@pytest.mark.parametrize(
    ("column", "header"), [("late", LATE_HEADER), ("possible_duplicate", DUPLICATE_HEADER)]
)
def test_late_and_repeated_rows_are_marked_by_a_header(
    spark: SparkSession, shop: Shop, column: str, header: str
) -> None:
    """A consumer can tell a row that comes out of order, or perhaps a second time."""
    shop.write(2)
    rows = rows_of(spark, shop)
    flags = pa.array([i == 1 for i in range(len(rows))])
    number = rows.schema.get_field_index(column)
    marked = rows.set_column(number, column, flags)

    found = list(messages_of(shop, marked, RecentHomes()))

    in_order = marked.sort_by([(n, "ascending") for n in ("timestamp_us", "shard", "seq")])
    assert [message.headers for message in found] == [
        [(header, b"1")] if flag else [] for flag in in_order[column].to_pylist()
    ]


def test_inserts_are_remembered_where_rows_can_move(spark: SparkSession, shop: Shop) -> None:
    """A table without a vindex on its key, on two shards: its rows may have two homes."""
    shop.write(3)
    homes = RecentHomes()

    assert len(list(messages_of(shop, rows_of(spark, shop), homes))) == 6
    assert len(homes.to_json()) == 6
