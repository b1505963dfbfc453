"""A table whose primary key gets another scale on one shard, beside a table that stays."""

from collections.abc import Sequence
from decimal import Decimal

from tests.sinks.rule.batches import ORDERS, change
from topics.records.table_shape import Column, TableShape, ValueKind
from topics.records.vevent import VEvent

NOTE = Column("note", ValueKind.STRING, "varchar(20)")


def prices(precision: int, scale: int) -> TableShape:
    """The table with a DECIMAL key."""
    sql_type = f"decimal({precision},{scale})"
    key = Column("price", ValueKind.DECIMAL, sql_type, precision, scale)
    return TableShape("shop", "prices", (key, NOTE), (0,))


FIRST: Sequence[VEvent] = (
    change("-80", 1, 100, None, {"id": 1, "value": 1}),
    change("-80", 2, 200, None, {"price": Decimal("1.50"), "note": "a"}, shape=prices(10, 2)),
)
# More digits before the point leave the key's text as it is.
WIDER: Sequence[VEvent] = (
    change("-80", 3, 300, None, {"id": 2, "value": 2}),
    change("-80", 4, 400, None, {"price": Decimal("1.50"), "note": "b"}, shape=prices(12, 2)),
)
FINER: Sequence[VEvent] = (
    change("-80", 5, 500, None, {"id": 3, "value": 3}),
    change("-80", 6, 600, None, {"price": Decimal("1.5000"), "note": "c"}, shape=prices(12, 4)),
)
REFUSED = (
    r"shop.prices: the primary key is \(price decimal\(12,4\)\) in one version of the table and "
    r"\(price decimal\(12,2\)\) in another, .* naming the others with --table"
)
OTHERS = (f"{ORDERS.database}.{ORDERS.table}",)
