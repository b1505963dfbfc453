"""The cases of the ordering rule, one test each, on the sink that the others are compared with."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from sinks.rule.homes import KEY
from tests.sinks.rule.batches import ORDERS, Source, change, statement
from tests.sinks.rule.reference_sink import ReferenceTable
from topics.errors import CannotApply
from topics.records.table_shape import Column, TableShape, ValueKind
from topics.records.vevent import Row, VEvent

LOW, HIGH = b"\x10", b"\xf0"
NOTES = TableShape(
    "shop", "orders", (*ORDERS.columns, Column("note", ValueKind.STRING, "varchar(20)")), (0,)
)
# A row of a batch that is late or a possible duplicate, or an event that is neither.
Item = VEvent | dict[str, object]


def row(value: int, key: int = 1) -> Row:
    return {"id": key, "value": value}


class Shop:
    """A sink and the source of its batches."""

    def __init__(self) -> None:
        self.source = Source()
        self.sink = ReferenceTable()

    def batch(self, *items: Item) -> None:
        """Apply a batch."""
        for changes in self.source.changes(items):
            self.sink.apply(changes)

    def late(self, event: VEvent) -> dict[str, object]:
        """The row of a late event."""
        return self.source.rows([event], late=True)[0]

    def doubtful(self, event: VEvent) -> dict[str, object]:
        """The row of an event that may be a duplicate."""
        return self.source.rows([event], doubtful=True)[0]

    @property
    def values(self) -> dict[str, object]:
        """The visible value of each key."""
        visible = self.sink.visible()
        return {key: found["value"] for key, found in visible.items() if isinstance(found, dict)}


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.mark.parametrize("ids", [(LOW, HIGH), (None, None)])
@pytest.mark.parametrize("cuts", [(), (1,), (2,), (3,), (1, 2, 3), (1, 3)])
def test_a_move_under_skewed_clocks_keeps_the_row(
    shop: Shop, ids: tuple[bytes | None, bytes | None], cuts: Sequence[int]
) -> None:
    """A's clock is 10 ms ahead: its late UPDATE and DELETE leave the row that moved to B."""
    low, high = ids
    log = [
        change("-80", 1, 100_000, None, row(1), ids=(None, low)),
        change("80-", 1, 108_000, None, row(2), ids=(None, high)),
        change("-80", 2, 113_000, row(1), row(3), ids=(low, low)),
        change("-80", 3, 119_000, row(3), None, ids=(low, None)),
    ]

    for begin, end in zip((0, *cuts), (*cuts, len(log)), strict=True):
        shop.batch(*log[begin:end])

    assert shop.values == {"[1]": 2}


def test_a_hidden_row_comes_back_when_the_newer_home_is_deleted(shop: Shop) -> None:
    """The visible row is the newest live home; a TRUNCATE of its shard shows the other one too."""
    shop.batch(change("-80", 1, 100, None, row(1), ids=(None, LOW)))
    shop.batch(change("80-", 1, 108, None, row(2), ids=(None, HIGH)))
    assert shop.values == {"[1]": 2}

    shop.batch(statement("80-", 2, 120, "TRUNCATE orders"))

    assert shop.values == {"[1]": 1}


def test_a_late_row_that_is_older_than_what_is_stored_is_dropped(shop: Shop) -> None:
    """Late row: rules 1 and 2 against the stored row of its home; counted."""
    shop.batch(change("80-c0", 7, 200, None, row(2), ids=(None, b"\x90")))

    shop.batch(shop.late(change("80-", 9, 150, None, row(1), ids=(None, b"\x90"))))

    assert (shop.values, shop.sink.dropped) == ({"[1]": 2}, 1)


def test_a_late_row_that_is_newer_than_what_is_stored_is_applied(shop: Shop) -> None:
    """Late row: it is behind the frontier, not behind its own row."""
    shop.batch(change("80-", 7, 100, None, row(1), ids=(None, HIGH)))

    shop.batch(shop.late(change("80-", 8, 150, row(1), row(2), ids=(HIGH, HIGH))))

    assert (shop.values, shop.sink.dropped) == ({"[1]": 2}, 0)


def test_a_late_row_that_is_older_than_a_tombstone_is_dropped(shop: Shop) -> None:
    """Late row: a deleted row does not come back."""
    shop.batch(change("80-c0", 7, 200, row(2), None, ids=(b"\x90", None)))

    shop.batch(shop.late(change("80-", 9, 150, None, row(1), ids=(None, b"\x90"))))

    assert (shop.values, shop.sink.dropped) == ({}, 1)


def test_a_late_row_beside_newer_ones_of_its_batch(shop: Shop) -> None:
    """Late row: within a batch, too, the newest of a home wins."""
    newer = change("80-c0", 7, 200, None, row(2), ids=(None, b"\x90"))
    older = shop.late(change("80-", 9, 150, None, row(1), ids=(None, b"\x90")))

    shop.batch(older, newer)

    assert shop.values == {"[1]": 2}


def test_a_possible_duplicate_is_dropped_where_tokens_prove_it(shop: Shop) -> None:
    """possible_duplicate: its origin is the change that is stored."""
    original = change("80-", 7, 200, None, row(2), ids=(None, b"\x90"))
    token = replace(original.token_text, shard="80-c0", origin=original.token_text)
    again = replace(original, shard="80-c0", seq=1, token_text=token)
    shop.batch(original)

    shop.batch(shop.doubtful(again))

    assert (shop.values, shop.sink.dropped) == ({"[1]": 2}, 1)


def test_a_possible_duplicate_that_nothing_decides_is_applied(shop: Shop) -> None:
    """possible_duplicate: UNKNOWN applies, because it comes later in the stream."""
    shop.batch(change("80-", 7, 200, None, row(2), ids=(None, b"\x90")))

    shop.batch(shop.doubtful(change("80-c0", 1, 200, None, row(3), ids=(None, b"\x90"))))

    assert shop.values == {"[1]": 3}


@pytest.mark.parametrize("home", [HIGH, None])
def test_a_hop_changes_nothing(shop: Shop, home: bytes | None) -> None:
    """Hop: the target of a split goes on with the rows of its source, without a comparison."""
    shop.batch(change("80-", 7, 100, None, row(1), ids=(None, home)))
    shop.batch(change("c0-", 1, 200, row(1), row(2), ids=(home, home)))
    assert (shop.values, len(shop.sink.live())) == ({"[1]": 2}, 1)

    shop.batch(change("c0-", 2, 300, row(2), None, ids=(home, None)))

    assert (shop.values, shop.sink.settled) == ({}, 0)


def test_a_delete_leaves_a_tombstone_and_an_insert_after_it_a_row(shop: Shop) -> None:
    """DELETE: the plain view hides the tombstone; it does not hide a new row."""
    shop.batch(change("80-", 7, 100, None, row(1), ids=(None, HIGH)))
    shop.batch(change("80-", 8, 110, row(1), None, ids=(HIGH, None)))
    assert shop.values == {}
    assert [version.seq for version in shop.sink.side["[1]"]] == [8]

    shop.batch(change("80-", 9, 120, None, row(3), ids=(None, HIGH)))

    assert shop.values == {"[1]": 3}


def test_a_batch_that_is_applied_again_changes_nothing(shop: Shop) -> None:
    """Replay: within one log `seq` decides; a contested key that is settled again stays."""
    first = change("-80", 1, 100, None, row(1), ids=(None, LOW))
    moved = [
        change("80-", 1, 108, None, row(2), ids=(None, HIGH)),
        change("-80", 2, 113, row(1), None, ids=(LOW, None)),
    ]
    shop.batch(first)
    shop.batch(*moved)
    before = (shop.sink.main.copy(), {k: list(v) for k, v in shop.sink.side.items()})

    shop.batch(*moved)

    assert (shop.sink.main, shop.sink.side) == before


def test_truncate_removes_the_rows_at_home_on_its_shard(shop: Shop) -> None:
    """TRUNCATE: rows whose home lies in the shard's range, whichever log they are from."""
    shop.batch(
        change("80-", 1, 100, None, row(1, 1), ids=(None, HIGH)),
        change("80-", 2, 100, None, row(1, 2), ids=(None, b"\x90")),
        change("-80", 1, 100, None, row(1, 3), ids=(None, LOW)),
    )

    shop.batch(
        statement("c0-", 1, 200, "TRUNCATE orders"),
        change("c0-", 2, 300, None, row(4, 4), ids=(None, HIGH)),
    )

    assert shop.values == {"[2]": 1, "[3]": 1, "[4]": 4}


@pytest.mark.parametrize(("shard", "kept"), [("80-", []), ("c0-", []), ("-80", ["[1]"])])
def test_truncate_without_keyspace_ids_goes_by_key_ranges(
    shop: Shop, shard: str, kept: list[str]
) -> None:
    """TRUNCATE: of rows without a keyspace id those go whose shard's range overlaps."""
    shop.batch(change("80-", 1, 100, None, row(1)))

    shop.batch(statement(shard, 2, 200, "DROP TABLE orders"))

    assert list(shop.values) == kept


def test_a_late_truncate_leaves_rows_that_are_newer(shop: Shop) -> None:
    """TRUNCATE: rows that its log wrote after it, and rows of later times, stay."""
    shop.batch(
        change("80-", 3, 200, None, row(1, 1), ids=(None, HIGH)),
        change("c0-", 1, 250, None, row(1, 2), ids=(None, HIGH)),
        change("80-", 1, 100, None, row(1, 3), ids=(None, HIGH)),
    )

    shop.batch(statement("80-", 2, 200, "TRUNCATE orders"))

    assert set(shop.values) == {"[1]", "[2]"}


def noted(value: int, note: str) -> Row:
    return {"id": 1, "value": value, "note": note}


@pytest.mark.parametrize("cuts", [(), (1,), (2,), (1, 2)])
def test_a_partial_image_is_laid_over_the_stored_row(shop: Shop, cuts: Sequence[int]) -> None:
    """Partial image (MINIMAL, NOBLOB): columns that are present replace those of the row."""
    log = [
        change("-80", 1, 100, None, noted(1, "a"), ids=(None, LOW), shape=NOTES),
        # MINIMAL: only the key before, only what was set after, and so no keyspace ids.
        change("-80", 2, 110, {"id": 1}, {"note": "b"}, shape=NOTES),
        change("-80", 3, 120, {"id": 1}, {"value": 3}, shape=NOTES),
    ]

    for begin, end in zip((0, *cuts), (*cuts, len(log)), strict=True):
        shop.batch(*log[begin:end])

    assert shop.sink.visible() == {"[1]": noted(3, "b")}


def test_partial_images_of_a_batch_are_one_change(shop: Shop) -> None:
    """Partial image: what none of a key's images has stays absent."""
    [changes] = shop.source.changes(
        [
            change("-80", 2, 110, {"id": 1}, {"value": 2}, shape=NOTES),
            change("-80", 3, 120, {"id": 1}, {"value": 3}, shape=NOTES),
        ]
    )

    [found] = changes.rows.to_pylist()
    assert (found["id"], found["value"], found["note"]) == (1, 3, None)
    assert (found["_absent"], found["_seq"]) == (["note"], 3)


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("deleted", [True, False])
def test_a_partial_image_without_a_stored_row_stops_by_name(
    shop: Shop, *, deleted: bool, together: bool
) -> None:
    """Partial image: no stored row, or a tombstone: table, key, shard and seq are named."""
    first = change("-80", 2, 110, noted(1, "a"), None, ids=(LOW, None), shape=NOTES)
    event = change("-80", 3, 120, {"id": 1}, {"note": "b"}, shape=NOTES)
    rows = [first, event] if deleted else [event]
    if not together:
        shop.batch(*rows[:-1])
        rows = rows[-1:]

    with pytest.raises(CannotApply, match=r"shop.orders, key \[1\], shard -80, seq 3"):
        shop.batch(*rows)


def test_a_whole_image_of_an_update_needs_no_stored_row(shop: Shop) -> None:
    """Partial image: MINIMAL leaves out columns before; if all are there after, that suffices."""
    shop.batch(change("-80", 2, 110, {"id": 1}, noted(1, "a"), ids=(None, LOW), shape=NOTES))

    assert shop.sink.visible() == {"[1]": noted(1, "a")}


@pytest.mark.parametrize(
    ("before", "after", "ids"),
    [
        ({"id": 1}, {"id": 2, "note": "b"}, (None, None)),
        (noted(1, "a"), {"id": 1, "value": 2}, (LOW, HIGH)),
    ],
)
def test_a_partial_image_that_moves_its_row_stops_by_name(
    shop: Shop, before: Row, after: Row, ids: tuple[bytes | None, bytes | None]
) -> None:
    """Partial image: the other columns lie at another key or home, so they cannot be taken."""
    event = change("-80", 3, 120, before, after, ids=ids, shape=NOTES)

    with pytest.raises(CannotApply, match=r"shard -80, seq 3.* moves it.*binlog_row_image=FULL"):
        shop.batch(event)


def test_a_partial_image_that_may_move_a_row_within_its_shard_replaces_it(shop: Shop) -> None:
    """Partial image: without the keyspace id before, the row of the shard is the one that moved."""
    shop.batch(change("-80", 1, 100, None, noted(1, "a"), ids=(None, LOW), shape=NOTES))

    shop.batch(change("-80", 2, 110, {"id": 1}, {"value": 2}, ids=(None, b"\x20"), shape=NOTES))

    assert [version.row for version in shop.sink.live()] == [noted(2, "a")]


def test_two_live_rows_of_one_key_are_both_kept(shop: Shop) -> None:
    """Same key on two shards: the newest is visible, and the sink can tell the key and shards."""
    [changes] = shop.source.changes(
        [
            change("-80", 1, 100, None, row(1), ids=(None, LOW)),
            change("80-", 1, 108, None, row(2), ids=(None, HIGH)),
        ]
    )

    assert changes.rows[KEY].to_pylist() == ["[1]", "[1]"]
    shop.sink.apply(changes)
    assert (shop.values, len(shop.sink.live())) == ({"[1]": 2}, 2)
