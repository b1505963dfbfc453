"""What a source's table can become, as batches of changes, and what every sink makes of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal

from sinks.rule.policy import OnTypeChange
from tests.sinks.rule.batches import change, statement
from topics.records.table_shape import Column, TableShape, ValueKind
from topics.records.vevent import InvalidDate, Row, VEvent

ID = Column("id", ValueKind.LONG, "bigint")
TEXT = Column("a", ValueKind.STRING, "varchar(20)")
INT = Column("a", ValueKind.INT, "int")
BIG = Column("a", ValueKind.LONG, "bigint")
FLOAT = Column("a", ValueKind.FLOAT, "float")
DOUBLE = Column("a", ValueKind.DOUBLE, "double")
ENUM = Column("a", ValueKind.ENUM, "enum('x')", labels=("x",))
JSON = Column("a", ValueKind.JSON, "json")
DATE = Column("a", ValueKind.DATE, "date")
B = Column("b", ValueKind.STRING, "varchar(20)")
BOTH = ("-80", "80-")


@dataclass(frozen=True)
class SchemaChange:
    """Batches, and by id what is then in some columns; or the error that ends the last batch."""

    batches: Sequence[Sequence[VEvent]]
    columns: tuple[str, ...] = ()
    rows: Mapping[int, tuple[object, ...]] | None = None
    error: str | None = None
    absent: tuple[str, ...] = ()
    on_type_change: OnTypeChange = OnTypeChange.STOP
    drop_columns: bool = False


def table(*columns: Column, name: str = "orders", key: Column = ID) -> TableShape:
    """A version of the table."""
    return TableShape("shop", name, (key, *columns), (0,))


def row(shard: str, seq: int, shape: TableShape, **values: object) -> VEvent:
    """An INSERT of the row whose id is the seq."""
    after: Row = {"id": seq, **values}  # type: ignore[dict-item]
    return change(shard, seq, 100 * seq, None, after, shape=shape)


def ddl(shard: str, seq: int, text: str) -> VEvent:
    """A statement."""
    return statement(shard, seq, 100 * seq, text)


def widened(old: Column, new: Column, *values: object) -> SchemaChange:
    """One shard gets a wider column; a row of the other, which has the old one, comes last."""
    return SchemaChange(
        [
            [row("-80", 1, table(old), a=values[0])],
            [row("-80", 2, table(new), a=values[1])],
            [row("80-", 3, table(old), a=values[0])],
        ],
        ("a",),
        {1: (values[0],), 2: (values[1],), 3: (values[0],)},
    )


def decimal(precision: int, scale: int = 2) -> Column:
    """A DECIMAL."""
    return Column("a", ValueKind.DECIMAL, f"decimal({precision},{scale})", precision, scale)


NO_TYPE = r"shop.orders: column 'a' is .* no type holds both"
DROP_B = "ALTER TABLE orders DROP COLUMN b"
SHADOW = table(TEXT, name="_orders_gho")
SCHEMA_CHANGES: dict[str, SchemaChange] = {
    "add_column": SchemaChange(
        [
            [row("-80", 1, table(TEXT), a="x"), row("80-", 2, table(TEXT), a="y")],
            [row("-80", 3, table(TEXT, B), a="z", b="new"), row("80-", 4, table(TEXT), a="w")],
        ],
        ("a", "b"),
        {1: ("x", None), 2: ("y", None), 3: ("z", "new"), 4: ("w", None)},
    ),
    "drop_column_is_kept": SchemaChange(
        [
            [row("-80", 1, table(TEXT, B), a="x", b="old")],
            [ddl(shard, 5, DROP_B) for shard in BOTH],
            [row("-80", 6, table(TEXT), a="y")],
        ],
        ("a", "b"),
        {1: ("x", "old"), 6: ("y", None)},
    ),
    "drop_column_is_dropped": SchemaChange(
        [
            [row("-80", 1, table(TEXT, B), a="x", b="old")],
            [ddl(shard, 5, DROP_B) for shard in BOTH],
            [row("-80", 6, table(TEXT), a="y")],
        ],
        ("a",),
        {1: ("x",), 6: ("y",)},
        absent=("b",),
        drop_columns=True,
    ),
    "rename": SchemaChange(
        [
            [row("-80", 1, table(TEXT), a="x"), row("80-", 2, table(TEXT), a="y")],
            [ddl("-80", 3, "ALTER TABLE orders RENAME COLUMN a TO b")],
            [row("-80", 4, table(B), b="z"), row("80-", 5, table(TEXT), a="w")],
        ],
        ("b",),
        {1: ("x",), 2: ("y",), 4: ("z",), 5: ("w",)},
        absent=("a",),
    ),
    "rename_without_its_statement": SchemaChange(
        [[row("-80", 1, table(TEXT), a="x")], [row("-80", 2, table(B), b="z")]],
        ("a", "b"),
        {1: ("x", None), 2: (None, "z")},
    ),
    "wider_int": widened(INT, BIG, 7, 2**40),
    "wider_float": widened(FLOAT, DOUBLE, 0.5, 1e300),
    "wider_varchar": widened(TEXT, replace(TEXT, sql_type="varchar(400)"), "x", "y" * 300),
    "wider_decimal": widened(decimal(8), decimal(12), Decimal("1.50"), Decimal("1234567890.25")),
    "finer_decimal": widened(
        decimal(12), decimal(8, 4), Decimal("1234567890.25"), Decimal("1.2345")
    ),
    "another_type_stops": SchemaChange(
        [[row("-80", 1, table(TEXT), a="x")], [row("-80", 2, table(INT), a=2)]], error=NO_TYPE
    ),
    "another_type_in_a_new_column": SchemaChange(
        [[row("-80", 1, table(TEXT), a="x")], [row("-80", 2, table(INT), a=2)]],
        ("a", "a__v2"),
        {1: ("x", None), 2: (None, 2)},
        on_type_change=OnTypeChange.NEW_COLUMN,
    ),
    "another_key_stops": SchemaChange(
        [
            [row("-80", 1, table(TEXT), a="x")],
            [row("-80", 2, TableShape("shop", "orders", (ID, TEXT), (1,)), a="y")],
        ],
        error=r"shop.orders: the primary key is \(a varchar\(20\)\) .* naming the others with",
    ),
    "order_of_columns": SchemaChange(
        [
            [row("-80", 1, table(TEXT, B), a="x", b="1")],
            [row("-80", 2, table(B, TEXT), a="y", b="2")],
        ],
        ("a", "b"),
        {1: ("x", "1"), 2: ("y", "2")},
    ),
    "shadow_tables": SchemaChange(
        [
            [row("-80", 1, table(TEXT), a="x"), row("-80", 2, SHADOW, a="x")],
            [
                ddl("-80", 3, "RENAME TABLE orders TO _orders_del, _orders_gho TO orders"),
                row("-80", 4, table(TEXT, B), a="y", b="new"),
            ],
        ],
        ("a", "b"),
        {1: ("x", None), 4: ("y", "new")},
    ),
    "two_types_at_once": SchemaChange(
        [[row("-80", 1, table(ENUM), a="x"), row("80-", 2, table(TEXT), a="y")]],
        ("a",),
        {1: ("x",), 2: ("y",)},
    ),
    "two_types_at_once_stop": SchemaChange(
        [[row("-80", 1, table(INT), a=1), row("80-", 2, table(JSON), a="[]")]], error=NO_TYPE
    ),
    "invalid_dates": SchemaChange(
        [
            [row("-80", 1, table(DATE), a=date(2026, 1, 2))],
            [row("-80", 2, table(DATE), a=InvalidDate("2024-02-00"))],
        ],
        ("a", "a__text"),
        {1: (date(2026, 1, 2), None), 2: (None, "2024-02-00")},
    ),
}
