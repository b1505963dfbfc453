"""Records of one table, made without a log."""

from typing import Any

from topics.records.table_shape import Column, TableShape, ValueKind
from topics.records.vevent import EventType, Op, Row, TokenText, VEvent

SHAPE = TableShape(
    "shop",
    "orders",
    (Column("id", ValueKind.LONG, "bigint"), Column("user", ValueKind.LONG, "bigint")),
    (0,),
)


def event(op: Op, before: Row | None, after: Row | None, **changes: Any) -> VEvent:
    """A record of the table `shop.orders` in the log of shard `-`."""
    fields: dict[str, Any] = {
        "type": EventType.ROW,
        "seq": 7,
        "token_text": TokenText(1, "-", "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-7"),
        "commit_us": 1,
        "gtid": "3e11fa47-71ca-11e1-9e33-c80aa9429562:7",
        "row_index": 0,
        "last": True,
        "database": "shop",
        "table": "orders",
        "op": op,
        "keyspace_id_before": None,
        "keyspace_id_after": None,
        "before": before,
        "after": after,
        "statement": None,
        "shape": SHAPE,
        "shard": "-",
        "offset": 70,
        **changes,
    }
    return VEvent(**fields)
