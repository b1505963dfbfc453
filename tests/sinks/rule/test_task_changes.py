"""What a task makes of its rows: the last change of each key and home, and the statements."""

from dataclasses import replace

import pytest

from sinks.rule.columns import KnownTable
from sinks.rule.homes import ABSENT, COMPARE, DELETED, HOME, KEY, META, SEQ, SHARD
from sinks.rule.policy import OnTruncate, RowPolicy
from sinks.rule.task_changes import FollowedTables
from tests.sinks.rule.batches import ORDERS, Source, change, statement
from topics.errors import CannotApply, ShapeConflict
from topics.records.table_shape import Column, ValueKind
from topics.records.vevent import EventType, Row, VEvent

LOW, HIGH = b"\x10", b"\xf0"


def row(key: int, value: int | None) -> Row:
    return {"id": key, "value": value}


def rows_of(*events: VEvent) -> list[dict[str, object]]:
    """The rows of shop.orders that a batch leaves, sorted by key and home."""
    [changes] = Source().changes(events)
    found = changes.rows.to_pylist()
    assert changes.rows.schema.names == [*META.names, "id", "value"]
    return sorted(found, key=lambda each: (each[KEY], each[HOME] or b""))


def test_of_each_key_the_last_change_is_left() -> None:
    """INSERT, UPDATE and DELETE of keys: the last one in merged order, whatever order they have."""
    events = [
        change("-80", 3, 130, row(1, 2), row(1, 3), ids=(LOW, LOW)),
        change("-80", 1, 110, None, row(1, 1), ids=(None, LOW)),
        change("80-", 2, 125, row(2, 5), None, ids=(HIGH, None)),
        change("80-", 1, 120, None, row(2, 5), ids=(None, HIGH)),
        change("-80", 2, 120, row(1, 1), row(1, 2), ids=(LOW, LOW)),
        change("80-", 3, 140, None, row(3, None), ids=(None, HIGH)),
    ]

    first, second, third = rows_of(*events)

    assert (first[KEY], first[HOME], first[SHARD], first[SEQ]) == ("[1]", LOW, "-80", 3)
    assert (first["id"], first["value"], first[DELETED], first[ABSENT]) == (1, 3, False, None)
    assert (second[KEY], second[DELETED], second["id"], second["value"]) == ("[2]", True, 2, None)
    assert (third["id"], third["value"], third[COMPARE]) == (3, None, False)


def test_a_read_is_an_upsert() -> None:
    """A copied row is a row like any other."""
    [found] = rows_of(change("-80", 1, 100, None, row(1, 7), ids=(None, LOW), copied=True))

    assert (found["value"], found[DELETED]) == (7, False)


def test_a_changed_key_leaves_a_tombstone() -> None:
    """An UPDATE of the primary key deletes the old key and inserts the new one."""
    old, new = rows_of(change("-80", 1, 100, row(1, 7), row(2, 7), ids=(LOW, LOW)))

    assert (old[KEY], old[DELETED], old["id"], old["value"]) == ("[1]", True, 1, None)
    assert (new[KEY], new[DELETED], new["id"], new["value"]) == ("[2]", False, 2, 7)


@pytest.mark.parametrize("partitions", [1, 2, 16])
def test_each_half_of_a_changed_key_belongs_to_one_task(partitions: int) -> None:
    """The old and the new key come once, whether their tasks are the same or not."""
    found = Source().changes(
        [change("-80", 1, 100, row(i, 7), row(i + 100, 7)) for i in range(8)],
        partitions=partitions,
    )

    keys = [key for changes in found for key in changes.rows[KEY].to_pylist()]
    assert sorted(keys) == sorted(f"[{i + more}]" for i in range(8) for more in (0, 100))


def test_a_changed_home_leaves_a_tombstone_there() -> None:
    """An UPDATE of the sharding column deletes in the old home and inserts in the new one."""
    old, new = rows_of(change("-", 1, 100, row(1, 7), row(1, 8), ids=(LOW, HIGH)))

    assert (old[HOME], old[DELETED], old["value"]) == (LOW, True, None)
    assert (new[HOME], new[DELETED], new["value"]) == (HIGH, False, 8)


def test_rows_without_a_keyspace_id_have_the_lineage_of_their_shard_as_home() -> None:
    """Shards that came from each other share a home; others have one each."""
    found = rows_of(
        change("80-", 1, 100, None, row(1, 1)),
        change("80-c0", 1, 110, row(1, 1), row(1, 2)),
        change("-80", 1, 105, None, row(1, 3)),
    )

    assert [(each[SHARD], each["value"]) for each in found] == [("80-c0", 2), ("-80", 3)] or [
        (each[SHARD], each["value"]) for each in found
    ] == [("-80", 3), ("80-c0", 2)]


def test_late_rows_and_possible_duplicates_are_to_be_compared() -> None:
    """`_compare` is set for both, and for them alone."""
    source = Source()
    late = source.rows([change("-80", 1, 100, None, row(1, 1))], late=True)
    doubtful = source.rows([change("-80", 2, 100, None, row(2, 1))], doubtful=True)

    [changes] = source.changes([*late, *doubtful, change("-80", 3, 100, None, row(3, 1))])

    assert dict(
        zip(changes.rows[KEY].to_pylist(), changes.rows[COMPARE].to_pylist(), strict=True)
    ) == {"[1]": True, "[2]": True, "[3]": False}


def test_a_row_that_is_there_twice_is_left_once() -> None:
    """A possible duplicate from another log is dropped beside its original."""
    source = Source()
    original = change("c0-", 1, 300, row(1, 1), row(1, 2), ids=(HIGH, HIGH))
    token = replace(original.token_text, shard="e0-", origin=original.token_text)
    copied = replace(original, shard="e0-", seq=7, token_text=token)

    [changes] = source.changes(
        [*source.rows([copied], doubtful=True), *source.rows([original], doubtful=True)]
    )

    assert changes.rows[SHARD].to_pylist() == ["c0-"]


def test_a_table_without_a_primary_key_is_refused_by_name() -> None:
    """Its rows cannot be told apart; a sink that does not follow it is not stopped."""
    keyless = replace(ORDERS, table="visits", primary_key=())
    source = Source()
    event = change("-80", 1, 100, None, row(1, 1), shape=keyless)

    with pytest.raises(CannotApply, match=r"shop.visits has no primary key.*--table"):
        source.changes([event])
    assert source.changes([event], FollowedTables(policy=RowPolicy(tables=("shop.orders",)))) == []


def test_shadow_tables_are_left_out() -> None:
    """gh-ost's and pt-online-schema-change's tables, and their swap, do not concern a sink."""
    shadow = replace(ORDERS, table="_orders_gho")
    swap = "RENAME TABLE `shop`.`orders` TO `shop`.`_orders_del`, _orders_gho TO orders"

    [changes] = Source().changes(
        [
            change("-80", 1, 100, None, row(1, 1)),
            change("-80", 2, 100, None, row(1, 1), shape=shadow),
            statement("-80", 3, 100, swap),
            statement("-80", 4, 100, "DROP TABLE IF EXISTS _orders_del"),
            change("-80", 5, 100, None, row(2, 1)),
        ]
    )

    assert changes.table == "orders"
    assert changes.rows.num_rows == 2
    assert changes.removals == ()


@pytest.mark.parametrize(
    "statement_text",
    ["RENAME TABLE orders TO old", "ALTER TABLE orders DROP PARTITION p1"],
)
def test_what_is_not_logged_stops_by_name(statement_text: str) -> None:
    """A statement that changes rows without logging them names the table and the place."""
    events = [statement("-80", 3, 100, statement_text)]
    known = FollowedTables(known={("shop", "orders"): KnownTable(ORDERS)})

    with pytest.raises(CannotApply, match=r"shop.orders, shard -80, seq 3"):
        Source().changes(events, known)
    assert Source().changes(events) == []


def test_a_skip_stops_until_it_is_accepted() -> None:
    """SKIP: rows may be missing, so an operator must accept it."""
    skip = statement("-80", 3, 100, "{}", kind=EventType.SKIP)

    with pytest.raises(CannotApply, match="an operator skipped"):
        Source().changes([skip])
    assert (
        Source().changes([skip], FollowedTables(policy=RowPolicy(accept_skip=(skip.gtid,)))) == []
    )


def test_truncate_removes_rows_of_the_batch_and_is_handed_on() -> None:
    """TRUNCATE: rows at home on its shard that come before it are gone; later ones are there."""
    [changes] = Source().changes(
        [
            change("-80", 1, 100, None, row(1, 1), ids=(None, LOW)),
            change("80-", 1, 100, None, row(2, 1), ids=(None, HIGH)),
            statement("-80", 2, 110, "TRUNCATE orders"),
            change("-80", 3, 120, None, row(3, 1), ids=(None, LOW)),
        ]
    )

    assert sorted(changes.rows[KEY].to_pylist()) == ["[2]", "[3]"]
    assert [at.seq for at in changes.removals] == [2]


def test_statements_reach_tables_that_have_no_rows_in_the_batch() -> None:
    """TRUNCATE names its table; DROP DATABASE empties all tables that the sink has."""
    known = FollowedTables(known={("shop", "orders"): KnownTable(ORDERS)})

    for text, following in (("DROP DATABASE shop", known), ("TRUNCATE orders", None)):
        [changes] = Source().changes([statement("-80", 2, 110, text)], following, partitions=1)
        assert (changes.table, changes.rows.num_rows) == ("orders", 0)
        assert len(changes.removals) == 1


@pytest.mark.parametrize("text", ["TRUNCATE orders", "DROP DATABASE shop"])
def test_truncate_stops_a_sink_that_is_to_stop(text: str) -> None:
    """TRUNCATE, --on-truncate stop: shard and seq are named, where rows would be removed."""
    stop = FollowedTables(policy=RowPolicy(on_truncate=OnTruncate.STOP))
    known = replace(stop, known={("shop", "orders"): KnownTable(ORDERS)})
    empties = statement("-80", 2, 110, text)
    insert = change("-80", 1, 100, None, row(1, 1), ids=(None, LOW))
    told = r"shop.orders, shard -80, seq 2: .* --on-truncate apply"

    for events, following in (([empties], known), ([insert, empties], stop)):
        with pytest.raises(CannotApply, match=told):
            Source().changes(events, following, partitions=1)

    # Nothing is lost where a table is dropped before it is created and filled.
    later = change("-80", 3, 120, None, row(1, 1), ids=(None, LOW))
    [changes] = Source().changes([empties, later], stop, partitions=1)
    assert changes.rows.num_rows == 1


def test_statements_of_tables_that_are_not_followed_do_nothing() -> None:
    """--table leaves out a table that the target has: it is not emptied, and the sink goes on."""
    policy = RowPolicy(tables=("shop.users",))
    only = FollowedTables({("shop", "orders"): KnownTable(ORDERS)}, policy)
    stop = replace(policy, on_truncate=OnTruncate.STOP)
    statements = [
        statement("-80", 2, 110, "TRUNCATE orders"),
        statement("-80", 3, 110, "ALTER TABLE orders RENAME COLUMN value TO amount"),
    ]

    assert Source().changes(statements, only) == []
    assert Source().changes(statements, replace(only, policy=stop)) == []


def test_the_end_of_a_copy_is_told() -> None:
    """COPY_COMPLETED names the shards whose rows of the table are all there."""
    [changes] = Source().changes(
        [
            statement("80-", 2, 110, "{}", kind=EventType.COPY_COMPLETED, table="orders"),
            statement("-80", 2, 120, "{}", kind=EventType.COPY_COMPLETED, table="orders"),
        ]
    )

    assert (changes.table, changes.ended_copies) == ("orders", ("80-", "-80"))


def test_a_column_named_as_one_of_ours_is_refused() -> None:
    """A table with a column `_seq` cannot be kept beside our columns."""
    shape = replace(ORDERS, columns=(*ORDERS.columns, Column("_seq", ValueKind.INT, "int")))

    with pytest.raises(ShapeConflict, match=r"shop.orders has a column '_seq'"):
        Source().changes([change("-80", 1, 1, None, {**row(1, 1), "_seq": 1}, shape=shape)])


@pytest.mark.parametrize(
    ("text", "is_refused"),
    [
        ("RENAME TABLE orders_new TO orders", True),
        ("ALTER TABLE orders_new RENAME TO orders", True),
        ("RENAME TABLE orders TO orders_old", False),
        ("RENAME TABLE orders_new TO orders_old", False),
        ("ALTER TABLE orders ADD PRIMARY KEY (id)", False),
    ],
)
def test_rows_of_a_table_that_is_not_followed_do_not_come_in_silence(
    text: str, is_refused: bool
) -> None:
    """A followed table of which no row was met yet gets rows by a rename: they are in no batch."""
    source = Source()
    following = FollowedTables(policy=RowPolicy(tables=("shop.orders",)))
    renamed = [statement("-80", 1, 100, text)]

    if is_refused:
        with pytest.raises(CannotApply, match=r"shop\.orders, shard -80, seq 1: "):
            source.changes(renamed, following=following)
    else:
        assert source.changes(renamed, following=following) == []
