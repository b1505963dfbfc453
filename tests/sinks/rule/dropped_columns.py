"""A table of which two shards drop a column, one after the other: a batch per step."""

from collections.abc import Sequence

from tests.sinks.rule.batches import change, statement
from topics.records.table_shape import Column, TableShape, ValueKind
from topics.records.vevent import Row, VEvent

ID = Column("id", ValueKind.LONG, "bigint")
GONE = Column("gone", ValueKind.STRING, "varchar(20)")
NOTE = Column("note", ValueKind.STRING, "varchar(20)")
NUMBER = Column("gone", ValueKind.LONG, "bigint")
OLD = TableShape("shop", "orders", (ID, GONE, NOTE), (0,))
NEW = TableShape("shop", "orders", (ID, NOTE), (0,))
AS_NUMBER = TableShape("shop", "orders", (ID, NOTE, NUMBER), (0,))
DROP = "ALTER TABLE orders DROP COLUMN gone"
ADD = "ALTER TABLE orders ADD COLUMN gone VARCHAR(20)"
HOMES = {"-80": b"\x10", "80-": b"\x90"}


def insert(shard: str, seq: int, row: Row, shape: TableShape = OLD) -> VEvent:
    """A new row, of which shard and seq make the time."""
    return change(shard, seq, 100 * seq, None, row, ids=(None, HOMES.get(shard)), shape=shape)


def dropped(shard: str, seq: int, text: str = DROP) -> VEvent:
    """A statement, by default the one that drops the column."""
    return statement(shard, seq, 100 * seq, text)


FIRST: Sequence[VEvent] = (
    insert("-80", 1, {"id": 1, "gone": "a", "note": "x"}),
    insert("80-", 2, {"id": 2, "gone": "b", "note": "y"}),
)
