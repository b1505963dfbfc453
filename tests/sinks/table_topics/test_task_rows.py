from collections.abc import Iterable, Iterator
from dataclasses import replace

import pyarrow as pa
import pytest

from sinks.table_topics.batch_writer import Message
from sinks.table_topics.envelope.table_encoder import TableEncoder
from sinks.table_topics.moves import RecentHomes, RecordPlace
from sinks.table_topics.options import EnvelopeOptions
from sinks.table_topics.task_rows import DUPLICATE_HEADER, LATE_HEADER, TableMessages
from tests.sinks.rule.batches import ORDERS, Source, change, routed
from topics.errors import CannotApply
from topics.records.vevent import Row, VEvent

SHARDS = ("-80", "80-")


def orders(count: int) -> list[VEvent]:
    """As many new orders on each of two shards."""
    return [
        change(shard, seq, 100 * seq + i, None, {"id": 10 * seq + i, "value": 1})
        for seq in range(1, count + 1)
        for i, shard in enumerate(SHARDS)
    ]


def table_of(rows: Iterable[dict[str, object]]) -> pa.Table:
    """Rows of a source as a task gets them."""
    table = routed(rows, 1, 0)
    return table.append_column("offset", pa.array(range(len(table)), pa.int64()))


def messages_of(source: Source, rows: pa.Table, homes: RecentHomes) -> Iterator[Message]:
    """The messages of one task."""
    envelope = EnvelopeOptions(prefix="shop", keyspace="commerce")

    def fetch(place: RecordPlace) -> bytes:
        raise AssertionError(place)

    encoders = TableMessages(
        source.schema_ids.text_of,
        {},
        open_encoder=lambda shape: TableEncoder(shape, envelope),
        ensure_topic=lambda _: None,
        fetch=fetch,
    )
    return encoders.messages(rows, homes)


@pytest.mark.parametrize(
    ("name", "header"), [("late", LATE_HEADER), ("doubtful", DUPLICATE_HEADER)]
)
def test_late_and_repeated_rows_are_marked_by_a_header(name: str, header: str) -> None:
    """A consumer can tell a row that comes out of order, or perhaps a second time."""
    source = Source()
    rows = [
        row for i, event in enumerate(orders(2)) for row in source.rows([event], **{name: i == 1})
    ]

    found = list(messages_of(source, table_of(rows), RecentHomes()))

    assert [message.headers for message in found] == [[], [(header, b"1")], [], []]


def test_inserts_are_remembered_where_rows_can_move() -> None:
    """A table without a vindex on its key, on two shards: its rows may have two homes."""
    source, homes = Source(), RecentHomes()
    rows = table_of(source.rows(orders(3)))

    assert len(list(messages_of(source, rows, homes))) == 6
    assert len(homes.to_json()) == 6


def test_a_table_without_a_primary_key_is_refused_by_name() -> None:
    """Its messages would have no key; other tables can be named."""
    source = Source()
    keyless = replace(ORDERS, table="visits", primary_key=())
    row: Row = {"id": 1, "value": 1}
    found = [change("-80", i + 1, 100, None, row, shape=s) for i, s in enumerate((ORDERS, keyless))]

    with pytest.raises(CannotApply, match=r"shop\.visits, shard -80, seq 2: .* no primary key"):
        list(messages_of(source, table_of(source.rows(found)), RecentHomes()))
