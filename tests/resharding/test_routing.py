"""Which changes go to which target: properties over generated histories, and their SQL."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from event_token import KeyRange
from resharding.apply.literals import literal_writer
from resharding.apply.statements import ReshardTargetTable, StatementBuilder
from resharding.errors import DefinitionChanged, DoesNotApply
from resharding.routing import SEQUENCE_COLUMNS, Delete, Routes, Upsert
from tests.generated import examples
from tests.resharding.apply.records import SHAPE, event
from topics.keyspace.topology import TableVindex
from topics.keyspace.vindexes import vindex_named
from topics.records.table_shape import Column, TableShape, ValueKind
from topics.records.vevent import EventType, Op, Row, VEvent

ROUTES = Routes([TableVindex("shop", "orders", ("user",), "hash")])
TILINGS = (("-",), ("-80", "80-"), ("-55", "55-aa", "aa-"), ("-01", "01-8040", "8040-c0", "c0-"))


def test_rows_of_a_sequence_are_passed_over() -> None:
    """B18: a MariaDB sequence needs no vindex; a table that only looks like one does."""
    columns = tuple(Column(name, ValueKind.LONG, "bigint") for name in SEQUENCE_COLUMNS)
    row: Row = dict.fromkeys(SEQUENCE_COLUMNS, 1)
    sequence = TableShape("shop", "ids", columns, ())
    table = TableShape("shop", "ids", columns, (0,))

    changed = event(Op.INSERT, None, row, table="ids", shape=sequence)
    assert ROUTES.changes(changed, KeyRange.parse("-")) == []
    with pytest.raises(DoesNotApply, match=r"table shop\.ids has no vindex"):
        ROUTES.changes(event(Op.INSERT, None, row, table="ids", shape=table), KeyRange.parse("-"))


def order(key: int, user: int) -> Row:
    """A row of `shop.orders`."""
    return {"id": key, "user": user}


@dataclass
class _Model:
    """Tables as mappings by key: the sources' rows, and the targets' as the log implies them."""

    targets: dict[str, dict[int, Row]]
    rows: dict[int, Row]

    def log(self, record: VEvent) -> None:
        """Give the record to every target."""
        for target, rows in self.targets.items():
            for change in ROUTES.changes(record, KeyRange.parse(target)):
                key = int(str(change.row["id"]))
                if isinstance(change, Upsert):
                    rows[key] = change.row
                elif rows.get(key, {}).get("user") == change.row["user"]:
                    del rows[key]


@given(
    tiling=st.sampled_from(TILINGS),
    steps=st.lists(
        st.tuples(
            st.sampled_from(("write", "copy", "delete", "rekey")),
            st.integers(0, 9),
            st.integers(-20, 20),
        ),
        max_size=40,
    ),
)
def test_targets_hold_their_part(
    tiling: tuple[str, ...], steps: list[tuple[str, int, int]]
) -> None:
    """After any history of changes, moves and copied rows each target has exactly its range."""
    model = _Model({target: {} for target in tiling}, {})
    rows = model.rows
    for step, key, user in steps:
        before, after = rows.get(key), order(key, user)
        if step == "write":
            model.log(event(Op.UPDATE if before else Op.INSERT, before, after))
            rows[key] = after
        elif before is None:
            continue
        elif step == "copy":
            model.log(event(Op.READ, None, before))
        elif step == "delete":
            model.log(event(Op.DELETE, before, None))
            del rows[key]
        elif user not in rows:
            rows[user] = {**before, "id": user}
            del rows[key]
            model.log(event(Op.UPDATE, before, rows[user]))

    hashed = vindex_named("hash")
    for target, found in model.targets.items():
        within = KeyRange.parse(target)
        assert found == {
            key: row
            for key, row in rows.items()
            if within.contains(hashed.keyspace_id(row["user"]))
        }


def test_one_target_sees_a_move_as_delete_or_insert() -> None:
    """A row whose sharding column changes leaves one range and enters the other."""
    hashed = vindex_named("hash")
    low = next(n for n in range(100) if hashed.keyspace_id(n) < b"\x80")
    high = next(n for n in range(100) if hashed.keyspace_id(n) >= b"\x80")
    before, after = order(1, low), order(1, high)
    moved = event(Op.UPDATE, before, after)

    assert ROUTES.changes(moved, KeyRange.parse("-80")) == [Delete("shop", "orders", before)]
    assert ROUTES.changes(moved, KeyRange.parse("80-")) == [Upsert("shop", "orders", after)]
    assert ROUTES.changes(moved, KeyRange.parse("-")) == [Upsert("shop", "orders", after)]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"table": "strangers"}, "shop.strangers has no vindex"),
        ({"after": {"id": 1}}, "binlog_row_image=FULL"),
        ({"after": {"id": 1, "user": None}}, "no keyspace id"),
        ({"shape": TableShape("shop", "orders", SHAPE.columns)}, "no primary key"),
        ({"shape": TableShape("shop", "orders", SHAPE.columns, (0,), 1)}, "system-versioned"),
        (
            {
                "shape": TableShape("shop", "orders", (SHAPE.columns[0],), (0,)),
                "after": {"id": 1},
            },
            "no column user",
        ),
    ],
)
def test_rows_that_have_no_target_stop(changed: dict[str, Any], says: str) -> None:
    """A record that cannot be routed is an error that names its position."""
    record = event(Op.INSERT, None, **{"after": {"id": 1, "user": 2}, **changed})

    with pytest.raises(DoesNotApply, match=r"shard -, .*:7, seq 7, .* reshard cancel") as caught:
        ROUTES.changes(record, KeyRange.parse("-"))
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("statement", "stops"),
    [
        ("ALTER TABLE shop.orders ADD x INT", True),
        ("alter table `Orders` drop column x", True),
        ("TRUNCATE orders", True),
        ("RENAME TABLE a TO b, orders TO orders_old", True),
        ("DROP DATABASE IF EXISTS shop", True),
        ("ALTER SCHEMA `shop` CHARACTER SET latin1", True),
        ("CREATE TABLE shop.other (id INT)", False),
        ("ALTER TABLE orders_old ADD x INT", False),
        ("GRANT SELECT ON shop.orders TO reader", False),
        ("ALTER USER writer ACCOUNT LOCK", False),
        ("CREATE OR REPLACE USER orders@'%'", False),
        ("/* x */ DROP /* y */ USER orders", False),
        ("TRUNCATE user", False),
        ("TRUNCATE/**/orders", True),
        ('TRUNCATE TABLE "orders"', True),
        ("/*!50000 TRUNCATE orders */", True),
        ("ALTER TABLE x COMMENT 'orders'", False),
        ("CREATE TABLE _shardstream.plan (orders INT)", False),
        ("DROP TABLE _shardstream.plan, shop.orders", True),
        ("ALTER TABLE _shardstream.journal ADD COLUMN orders INT", False),
        ("ALTER TABLE orders RENAME TO _shardstream.journal", True),
        ("ALTER TABLE", False),
        ("CREATE DEFINER=`root`@`127.0.0.1` TRIGGER shop.t BEFORE INSERT ON orders ...", False),
        ("DROP TRIGGER IF EXISTS shop.orders", False),
        ("create or replace event orders ON SCHEDULE EVERY 1 DAY DO DELETE FROM orders", False),
        ("CREATE DEFINER=`a b`@`%` TRIGGER t BEFORE INSERT ON orders ...", True),
        ("CREATE TABLE event LIKE orders", True),
    ],
)
def test_statements_on_resharded_tables_stop(statement: str, stops: bool) -> None:
    """Only a statement that names a resharded table, or its whole database, stops the applier."""
    record = event(Op.NONE, None, None, type=EventType.DDL, statement=statement, table="")
    if not stops:
        ROUTES.check_statement(record)
        return
    with pytest.raises(DefinitionChanged, match=f"--accept-ddl {record.gtid}"):
        ROUTES.check_statement(record)


@pytest.mark.parametrize(
    ("table", "statement"),
    [
        ("user", "TRUNCATE user"),
        ("role", "TRUNCATE TABLE role"),
        ("a$b", "ALTER TABLE a$b DROP COLUMN x"),
        ("user", "RENAME TABLE user TO other"),
    ],
)
def test_tables_may_be_called_anything(table: str, statement: str) -> None:
    """A7: a table named like an account word, or with a $, is recognized."""
    routes = Routes([TableVindex("shop", table, ("id",), "hash")])
    record = event(Op.NONE, None, None, type=EventType.DDL, statement=statement, table="")

    with pytest.raises(DefinitionChanged, match="a statement changes shop"):
        routes.check_statement(record)


@pytest.mark.parametrize(
    ("statement", "emptied"),
    [
        ("TRUNCATE orders", True),
        ("TRUNCATE TABLE `shop` . `orders` WAIT 5", True),
        ("DROP TABLE IF EXISTS a, Orders /* generated by server */", True),
        ("SET STATEMENT lock_wait_timeout=1 FOR DROP TABLE shop.orders", True),
        ("CREATE OR REPLACE TABLE orders (id INT)", True),
        ("DROP DATABASE IF EXISTS `shop`", True),
        ("CREATE OR REPLACE SCHEMA shop", True),
        ("DROP TABLE other.orders, a", False),
        ("DROP TEMPORARY TABLE orders", False),
        ("ALTER TABLE orders TRUNCATE PARTITION p", False),
        ("CREATE TABLE orders (id INT)", False),
        ("RENAME TABLE orders TO a", False),
        (r"DROP TABLE `a\` , orders, `b\`", True),
        ("DROP TABLE", False),
        ("DROP TABLE orders,", False),
        ("DROP DATABASE", False),
        ("TRUNCATE", False),
        ("", False),
    ],
)
def test_statements_that_leave_no_row(statement: str, *, emptied: bool) -> None:
    """In a merge the rows of one source go, if the statement surely leaves none of them."""
    record = event(Op.NONE, None, None, type=EventType.DDL, statement=statement, table="")

    assert ROUTES.emptied(record) == ([("shop", "orders")] if emptied else [])
    if emptied:
        with pytest.raises(DefinitionChanged, match="Leave the targets as they are"):
            ROUTES.check_statement(record, is_merge=True)


def test_statements_keep_the_order_of_changes() -> None:
    """Consecutive changes of one kind share a statement; order is kept."""
    target = ReshardTargetTable("shop", "orders", ("id", "user"), frozenset(), "user")
    builder = StatementBuilder(lambda _d, _t: target, rows_max=2, packet_bytes_max=10_000)
    record = event(Op.INSERT, None, {"id": 1, "user": 1})
    for kind, key in ((Upsert, 1), (Upsert, 2), (Upsert, 3), (Delete, 1), (Upsert, 1)):
        builder.add(kind("shop", "orders", {"id": key, "user": 5}), record)

    assert [statement.sql for statement in builder.take()] == [
        "REPLACE INTO `shop`.`orders` (`id`, `user`) VALUES (1, 5), (2, 5)",
        "REPLACE INTO `shop`.`orders` (`id`, `user`) VALUES (3, 5)",
        "DELETE FROM `shop`.`orders` WHERE (`id` = 1 AND `user` = 5)",
        "REPLACE INTO `shop`.`orders` (`id`, `user`) VALUES (1, 5)",
    ]
    assert builder.take() == []


def test_rows_too_large_for_the_server_stop() -> None:
    """A row too large for a packet is an error that names the setting to raise."""
    shape = TableShape(
        "shop", "orders", (*SHAPE.columns, Column("b", ValueKind.BYTES, "blob")), (0,)
    )
    target = ReshardTargetTable("shop", "orders", ("id", "user", "b"), frozenset(), "user")
    builder = StatementBuilder(lambda _d, _t: target, packet_bytes_max=1_000)
    row: Row = {"id": 1, "user": 1, "b": bytes(1_000)}
    builder.add(Upsert("shop", "orders", row), event(Op.INSERT, None, row, shape=shape))

    with pytest.raises(DoesNotApply, match="raise max_allowed_packet"):
        builder.take()


@pytest.mark.parametrize(
    ("text", "decimals"),
    [
        ('{"a": 1.5, "b": [1.0, 18446744073709551615, -0.0, 1e300]}', []),
        ('{"a b\\"": [1, 12.50]}', ['$."a b\\""[1]', "12.50"]),
        ("18446744073709551616", ["$", "18446744073709551616"]),
        ("0.10000000000000000001", ["$", "0.10000000000000000001"]),
    ],
)
def test_decimals_inside_json_are_set_as_decimals(text: str, decimals: list[str]) -> None:
    """JSON numbers that a double would change are set as decimals; others are left alone."""
    literal = literal_writer(Column("j", ValueKind.JSON, "json")).write(text)

    assert ("JSON_SET" in literal) is bool(decimals)
    if decimals:
        path, number = decimals
        assert literal.endswith(f", _utf8mb4 x'{path.encode().hex()}', {number})")


@given(value=st.datetimes(), is_whole=st.booleans())
@settings(max_examples=examples(200))
def test_times_are_written_as_python_writes_them(value: datetime, *, is_whole: bool) -> None:
    """DATETIME and TIMESTAMP of any year, with and without microseconds."""
    given_value = value.replace(microsecond=0) if is_whole else value
    for kind, time in (
        (ValueKind.DATETIME, given_value),
        (ValueKind.TIMESTAMP, given_value.replace(tzinfo=UTC)),
    ):
        literal = literal_writer(Column("t", kind, kind.value)).write(time)
        assert literal == f"'{given_value.isoformat(' ')}'"
