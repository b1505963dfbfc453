"""How the columns of a sink's table follow the versions of the source's table."""

from dataclasses import replace
from datetime import date
from decimal import Decimal

import pyarrow as pa
import pytest

from sinks.rule.columns import (
    AddColumn,
    KnownTable,
    Rename,
    Widen,
    known_names,
    plan,
    united,
    widest,
)
from sinks.rule.homes import META
from sinks.rule.policy import OnTypeChange, RowPolicy
from sinks.rule.task_changes import FollowedTables, TableChanges
from tests.sinks.rule.batches import Source, change, no_copies, statement
from topics.errors import ShapeConflict
from topics.records.table_shape import Column, TableShape, ValueKind
from topics.records.vevent import InvalidDate, Row, VEvent

ID = Column("id", ValueKind.LONG, "bigint")
NAME = ("shop", "orders")


def text(name: str, size: int = 20) -> Column:
    return Column(name, ValueKind.STRING, f"varchar({size})")


def number(name: str) -> Column:
    return Column(name, ValueKind.INT, "int")


def big(name: str) -> Column:
    return Column(name, ValueKind.LONG, "bigint")


def table(*columns: Column, key: tuple[int, ...] = (0,)) -> TableShape:
    return TableShape(*NAME, (ID, *columns), key)


def inserts(*versions: tuple[str, TableShape, Row]) -> list[VEvent]:
    """An INSERT per version: (shard, version, row)."""
    return [
        change(shard, i, 100 + i, None, {"id": i, **row}, shape=shape)
        for i, (shard, shape, row) in enumerate(versions, start=1)
    ]


def values_of(changes: TableChanges) -> list[dict[str, object]]:
    """The columns of the table, without ours, by id."""
    own = [name for name in changes.rows.schema.names if name not in META.names]
    found: list[dict[str, object]] = changes.rows.select(own).to_pylist()
    return sorted(found, key=lambda row: str(row["id"]))


def following(
    shape: TableShape,
    renames: dict[str, str] | None = None,
    on_type_change: OnTypeChange = OnTypeChange.STOP,
) -> FollowedTables:
    known = {NAME: KnownTable(shape, renames or {})}
    return FollowedTables(known, RowPolicy(on_type_change=on_type_change), on_unlogged=no_copies)


def test_an_added_column_is_null_where_a_shard_lacks_it() -> None:
    """ADD COLUMN: added; rows of a shard that was not altered yet have NULL."""
    old, new = table(text("a")), table(text("a"), number("b"))
    events = inserts(("-80", new, {"a": "x", "b": 1}), ("80-", old, {"a": "y"}))

    [changes] = Source().changes(events, following(old))

    assert values_of(changes) == [{"id": 1, "a": "x", "b": 1}, {"id": 2, "a": "y", "b": None}]
    assert plan(old, changes.shape) == [AddColumn(number("b"))]


def test_a_dropped_column_stays_and_is_null() -> None:
    """DROP COLUMN: kept, NULL from then on."""
    stored, new = table(text("a"), number("b")), table(number("b"))

    [changes] = Source().changes(inserts(("-80", new, {"b": 1})), following(stored))

    assert values_of(changes) == [{"id": 1, "a": None, "b": 1}]
    assert plan(stored, changes.shape) == []


@pytest.mark.parametrize(
    "ddl",
    [
        "ALTER TABLE orders RENAME COLUMN a TO b",
        "ALTER TABLE shop.orders CHANGE COLUMN `a` `b` varchar(20) NOT NULL",
        "alter online table if exists orders change if exists a b varchar(20), algorithm=instant",
    ],
)
def test_a_renamed_column_keeps_its_values(ddl: str) -> None:
    """RENAME: the statement makes it one, also for rows of the batch that came before it."""
    old, new = table(text("a")), table(text("b"))
    [first] = inserts(("-80", old, {"a": "x"}))
    after = change("-80", 3, 120, None, {"id": 3, "b": "z"}, shape=new)
    other = change("80-", 1, 130, None, {"id": 4, "a": "w"}, shape=old)

    [changes] = Source().changes(
        [first, statement("-80", 2, 110, ddl), after, other], following(old)
    )

    assert [row["b"] for row in values_of(changes)] == ["x", "z", "w"]
    assert changes.shape == new
    assert changes.renames == (("-80", "a", "b"),)
    assert plan(old, changes.shape, changes.renames) == [Rename("a", "b")]
    assert known_names({}, changes.renames) == {"a": "b"}


def test_a_statement_may_name_a_column_in_any_case() -> None:
    """RENAME: columns are told apart without their case, on a shard that is altered later too."""
    old, new = table(text("a")), table(text("b"))
    first = statement("-80", 2, 110, "ALTER TABLE orders RENAME COLUMN A TO b")
    second = statement("80-", 2, 120, "ALTER TABLE orders CHANGE A b VARCHAR(20)")

    [changes] = Source().changes(
        [first, *inserts(("80-", old, {"a": "w"})), second], following(old)
    )
    [later] = Source().changes([second], following(new, {"a": "b"}))

    assert [row["b"] for row in values_of(changes)] == ["w"]
    assert changes.shape == new
    assert plan(old, changes.shape, changes.renames) == [Rename("a", "b")]
    assert known_names({}, changes.renames) == {"a": "b"}
    assert later.renames == (("80-", "a", "b"),)


def test_a_column_may_change_the_case_of_its_name() -> None:
    """RENAME: the name that the statement gives is the one that the target gets."""
    ddl = statement("-80", 2, 110, "ALTER TABLE orders RENAME COLUMN A TO A1, CHANGE B b INT")
    old = table(text("a"), number("B"))

    [changes] = Source().changes([ddl], following(old))

    assert plan(old, changes.shape, changes.renames) == [Rename("a", "A1"), Rename("B", "b")]


def test_a_shard_that_renames_later_changes_nothing() -> None:
    """RENAME: rows of the old name go on in the new column, before and after the statement."""
    old, new = table(text("a")), table(text("b"))
    events = [
        *inserts(("80-", old, {"a": "w"})),
        statement("80-", 2, 110, "ALTER TABLE orders RENAME COLUMN a TO b"),
        change("80-", 3, 120, None, {"id": 3, "b": "z"}, shape=new),
    ]

    [changes] = Source().changes(events, following(new, {"a": "b"}))

    assert [row["b"] for row in values_of(changes)] == ["w", "z"]
    assert plan(new, changes.shape, changes.renames) == []


def test_a_new_column_of_an_old_name_is_another_column() -> None:
    """RENAME, then ADD of the old name: a version that has both names has two columns."""
    both = table(text("b"), text("a"))

    [changes] = Source().changes(
        inserts(("-80", both, {"b": "x", "a": "y"})), following(table(text("b")), {"a": "b"})
    )

    assert values_of(changes) == [{"id": 1, "b": "x", "a": "y"}]
    assert plan(table(text("b")), changes.shape) == [AddColumn(text("a"))]


def test_without_its_statement_a_renamed_column_is_dropped_and_added() -> None:
    """RENAME: without the statement the names tell two columns."""
    stored = table(text("a"))

    [changes] = Source().changes(inserts(("-80", table(text("b")), {"b": "x"})), following(stored))

    assert values_of(changes) == [{"id": 1, "a": None, "b": "x"}]
    assert plan(stored, changes.shape) == [AddColumn(text("b"))]


@pytest.mark.parametrize("name", ["b", "B"])
def test_columns_that_swap_their_names_stop_by_name(name: str) -> None:
    """RENAME: by name nobody can tell which rows are from before the statement."""
    ddl = f"ALTER TABLE orders RENAME COLUMN a TO b, RENAME COLUMN {name} TO a"

    place = "shop.orders, shard -80: a statement gives a column the name"
    with pytest.raises(ShapeConflict, match=place):
        Source().changes([statement("-80", 2, 110, ddl)], following(table(text("a"), text("b"))))


def test_names_that_another_table_swaps_are_no_concern() -> None:
    """RENAME: a sink that does not follow the table, or has no row of it yet, goes on."""
    ddl = "ALTER TABLE {} RENAME COLUMN a TO b, RENAME COLUMN b TO a"
    others = [statement("-80", 2, 110, ddl.format(name)) for name in ("users", "_orders_gho")]

    [changes] = Source().changes(
        [*others, *inserts(("-80", table(text("a")), {"a": "x"}))],
        replace(following(table(text("a"))), policy=RowPolicy(tables=("shop.orders",))),
    )
    again = Source().changes([statement("-80", 2, 110, ddl.format("orders"))])

    assert values_of(changes) == [{"id": 1, "a": "x"}]
    assert again == []


def test_renames_follow_each_other() -> None:
    """RENAME a to b, b to c, and back: every name that the column had leads to the last one."""
    assert known_names({"a": "b"}, [("-80", "b", "c")]) == {"a": "c", "b": "c"}
    assert known_names({"a": "b"}, [("-80", "b", "a")]) == {"b": "a"}


WIDER = [
    (number("n"), big("n")),
    (Column("n", ValueKind.FLOAT, "float"), Column("n", ValueKind.DOUBLE, "double")),
    (text("n", 10), text("n", 40)),
    (text("n", 10), Column("n", ValueKind.STRING, "text")),
    (Column("n", ValueKind.INT, "smallint"), number("n")),
    (Column("n", ValueKind.INT, "smallint"), Column("n", ValueKind.INT, "smallint unsigned")),
    (
        Column("n", ValueKind.DECIMAL, "decimal(8,2)", 8, 2),
        Column("n", ValueKind.DECIMAL, "decimal(12,2)", 12, 2),
    ),
    (
        Column("n", ValueKind.DECIMAL, "decimal(8,2)", 8, 2),
        Column("n", ValueKind.DECIMAL, "decimal(10,4)", 10, 4),
    ),
    (
        Column("n", ValueKind.ENUM, "enum('a')", labels=("a",)),
        Column("n", ValueKind.ENUM, "enum('a','b')", labels=("a", "b")),
    ),
    (Column("n", ValueKind.ENUM, "enum('a')", labels=("a",)), text("n")),
    (Column("n", ValueKind.DATETIME, "datetime"), Column("n", ValueKind.DATETIME, "datetime(6)")),
]


@pytest.mark.parametrize(("narrow", "wide"), WIDER)
def test_a_wider_type_widens_the_column_and_is_never_narrowed(narrow: Column, wide: Column) -> None:
    """Wider type: the column takes it, whichever version comes first."""
    assert widest(narrow, wide) == wide
    assert widest(wide, narrow) == wide
    assert plan(table(narrow), table(wide)) == [Widen(narrow, wide)]
    assert plan(table(wide), table(narrow)) == []


def test_rows_of_a_narrower_version_have_the_wide_type() -> None:
    """Wider type: an older version met later, on a shard altered later, is cast."""
    stored = table(big("n"), Column("d", ValueKind.DECIMAL, "decimal(12,2)", 12, 2))
    late = table(number("n"), Column("d", ValueKind.DECIMAL, "decimal(8,2)", 8, 2))

    [changes] = Source().changes(
        inserts(("80-", late, {"n": 7, "d": Decimal("1.50")})), following(stored)
    )

    assert changes.shape == stored
    assert changes.rows.schema.field("n").type == pa.int64()
    assert values_of(changes) == [{"id": 1, "n": 7, "d": Decimal("1.50")}]


OTHER = [
    (text("n"), number("n")),
    (Column("n", ValueKind.DECIMAL, "decimal(30,2)", 30, 2), number("n")),
    (
        Column("n", ValueKind.DECIMAL, "decimal(30,2)", 30, 2),
        Column("n", ValueKind.DECIMAL, "decimal(30,20)", 30, 20),
    ),
    (
        Column("n", ValueKind.DECIMAL, "decimal(38,2)", 38, 2),
        Column("n", ValueKind.DECIMAL, "decimal(40,2)", 40, 2),
    ),
    (Column("n", ValueKind.DATETIME, "datetime"), Column("n", ValueKind.TIMESTAMP, "timestamp")),
    (big("n"), Column("n", ValueKind.UNSIGNED_LONG, "bigint unsigned")),
]


@pytest.mark.parametrize(("a", "b"), OTHER)
def test_any_other_type_stops_by_name(a: Column, b: Column) -> None:
    """Any other type: no type holds both, whether one shard was altered or two differ at once."""
    for one, other in ((a, b), (b, a)):
        with pytest.raises(ShapeConflict, match=r"shop.orders: column 'n' is .* no type holds"):
            united(table(one), table(other))


def test_any_other_type_goes_on_in_a_new_column_where_that_is_accepted() -> None:
    """Any other type, `new-column`: `n__v2`; a shard that was not altered goes on in `n`."""
    stored, new = table(text("n")), table(number("n"))
    source = Source()
    accept = following(stored, on_type_change=OnTypeChange.NEW_COLUMN)

    [changes] = source.changes(inserts(("-80", new, {"n": 7}), ("80-", stored, {"n": "x"})), accept)

    assert values_of(changes) == [
        {"id": 1, "n": None, "n__v2": 7},
        {"id": 2, "n": "x", "n__v2": None},
    ]
    assert plan(stored, changes.shape) == [AddColumn(number("n__v2"))]
    [again] = source.changes(inserts(("-80", table(big("n")), {"n": 8})), following(changes.shape))
    assert values_of(again) == [{"id": 1, "n": None, "n__v2": 8}]
    assert plan(changes.shape, again.shape) == [Widen(number("n__v2"), big("n__v2"))]


def test_a_new_column_never_takes_the_name_of_another_one() -> None:
    """Any other type, `new-column`: the table has a column `n__v2` of its own."""
    stored, new = table(text("n"), number("n__v2")), table(number("n"), number("n__v2"))

    found = united(stored, new, OnTypeChange.NEW_COLUMN)

    assert plan(stored, found) == [AddColumn(number("n__v3"))]


@pytest.mark.parametrize(
    ("kinds", "types", "is_refused"),
    [
        (["datetime", "datetime"], ("datetime", "datetime(3)"), True),
        (["timestamp", "timestamp"], ("timestamp(6)", "timestamp"), True),
        (["time", "time"], ("time", "time(1)"), True),
        (["float", "double"], ("float", "double"), True),
        (["bytes", "bytes"], ("binary(4)", "binary(8)"), True),
        (["string", "string"], ("char(36)", "uuid"), True),
        (["string", "string"], ("inet6", "varchar(39)"), True),
        (["string", "string"], ("uuid", "uuid"), False),
        (["bytes", "bytes"], ("varbinary(4)", "binary(8)"), True),
        (["bytes", "bytes"], ("varbinary(4)", "varbinary(8)"), False),
        (["datetime", "datetime"], ("datetime(3)", "datetime(3)"), False),
        (["int", "long"], ("int", "bigint"), False),
    ],
)
def test_a_type_that_changes_the_text_of_keys_stops(
    kinds: list[str], types: tuple[str, str], is_refused: bool
) -> None:
    """`10:00:00` becomes `10:00:00.000`: the row would stay beside itself under another key."""
    stored, version = (
        TableShape(*NAME, (Column("at", ValueKind(kind), sql_type), number("a")), (0,))
        for kind, sql_type in zip(kinds, types, strict=True)
    )

    if is_refused:
        with pytest.raises(ShapeConflict, match=r"shop\.orders: the primary key is \(at "):
            united(stored, version)
    else:
        assert united(stored, version).columns[0].kind is ValueKind(kinds[1])


@pytest.mark.parametrize(
    "version",
    [
        table(text("a"), key=(0, 1)),
        TableShape(*NAME, (text("id"), text("a")), (0,)),
        TableShape(*NAME, (text("a"), ID), (0,)),
    ],
)
@pytest.mark.parametrize("on_type_change", OnTypeChange)
def test_another_primary_key_stops_by_name(
    version: TableShape, on_type_change: OnTypeChange
) -> None:
    """Key changed: rows could not be told apart, so no option accepts it."""
    with pytest.raises(ShapeConflict, match=r"shop.orders: the primary key is \(.*and \(id bigint"):
        united(table(text("a")), version, on_type_change)


def test_a_key_may_become_wider_and_be_renamed() -> None:
    """Key: a wider type has the same key texts, and a new name the same values."""
    narrow = TableShape(*NAME, (number("id"), text("a")), (0,))
    renamed = TableShape(*NAME, (big("order_id"), text("a")), (0,))
    ddl = statement("-80", 2, 110, "ALTER TABLE orders CHANGE id order_id BIGINT")
    after = change("-80", 3, 120, None, {"order_id": 3, "a": "x"}, shape=renamed)

    [changes] = Source().changes([ddl, after], following(narrow))

    assert plan(narrow, changes.shape, changes.renames) == [
        Rename("id", "order_id"),
        Widen(number("order_id"), big("order_id")),
    ]


def test_the_order_of_columns_does_not_matter() -> None:
    """Order of columns: they belong together by name."""
    stored, turned = table(text("a"), number("b")), table(number("b"), text("a"))

    [changes] = Source().changes(inserts(("-80", turned, {"a": "x", "b": 1})), following(stored))

    assert (changes.shape, plan(stored, changes.shape)) == (stored, [])
    assert values_of(changes) == [{"id": 1, "a": "x", "b": 1}]


def test_two_shards_with_different_types_get_the_widest_common_one() -> None:
    """Two types at once: neither is the text of the other's, both are text."""
    one = table(Column("n", ValueKind.ENUM, "enum('a')", labels=("a",)))
    other = table(Column("n", ValueKind.JSON, "json"))

    [changes] = Source().changes(inserts(("-80", one, {"n": "a"}), ("80-", other, {"n": "[]"})))

    assert [row["n"] for row in values_of(changes)] == ["a", "[]"]
    assert changes.shape.columns[1] == Column("n", ValueKind.STRING, "longtext")


def test_an_invalid_date_is_null_beside_its_text() -> None:
    """Off-calendar dates: a text column appears with the first one, and stays."""
    shape = table(Column("day", ValueKind.DATE, "date"))
    source = Source()
    day = date(2026, 1, 2)

    [plain] = source.changes(inserts(("-80", shape, {"day": day})))
    [found] = source.changes(
        inserts(("-80", shape, {"day": InvalidDate("2024-02-00")}), ("-80", shape, {"day": day})),
        following(shape),
    )
    [later] = source.changes(inserts(("-80", shape, {"day": day})), following(found.shape))

    assert plain.shape == shape
    assert values_of(found) == [
        {"id": 1, "day": None, "day__text": "2024-02-00"},
        {"id": 2, "day": day, "day__text": None},
    ]
    assert plan(shape, found.shape) == [
        AddColumn(Column("day__text", ValueKind.STRING, "text")),
    ]
    assert values_of(later) == [{"id": 1, "day": day, "day__text": None}]


@pytest.mark.parametrize("name", ["day__text", "Day__TEXT"])
def test_the_text_of_a_date_never_goes_into_another_column(name: str) -> None:
    """Off-calendar dates: a table that has the text column's name for itself stops by name."""
    shape = table(Column("day", ValueKind.DATE, "date"), text(name))
    row: Row = {"day": InvalidDate("0000-00-00"), name: "mine"}

    with pytest.raises(ShapeConflict, match=r"shop.orders: column 'day' has an invalid date"):
        Source().changes(inserts(("-80", shape, row)))


def test_a_partial_image_leaves_the_text_of_a_date_that_it_lacks() -> None:
    """Off-calendar dates: date and text are absent together, and present together."""
    stored = table(
        text("a"),
        Column("day", ValueKind.DATE, "date"),
        Column("day__text", ValueKind.STRING, "text"),
    )
    version = table(text("a"), Column("day", ValueKind.DATE, "date"))
    event = change("-80", 1, 100, {"id": 1}, {"a": "x"}, shape=version)

    [changes] = Source().changes([event], following(stored))

    assert changes.rows["_absent"].to_pylist() == [["day", "day__text"]]


def test_an_absent_column_has_the_name_that_it_has_now() -> None:
    """Partial images of a version from before a rename name the renamed column."""
    event = change("80-", 1, 100, {"id": 1}, {"n": 1}, shape=table(text("a"), number("n")))

    [changes] = Source().changes([event], following(table(text("b"), number("n")), {"a": "b"}))

    assert changes.rows["_absent"].to_pylist() == [["b"]]


def test_a_shard_that_renames_twice_later_changes_nothing() -> None:
    """Its rows between the two renames go where those of the other shard went."""
    made = known_names({}, [("-80", "a", "b"), ("-80", "b", "c")])

    assert made == {"a": "c", "b": "c"}
    assert known_names(made, [("80-", "A", "B")]) == made
    assert known_names(made, [("80-", "A", "B"), ("80-", "B", "C")]) == made
    assert known_names(made, [("-80", "c", "a")]) == {"b": "a", "c": "a"}
