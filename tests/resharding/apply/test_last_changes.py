"""What is left of many transactions leaves a target as all of them do, in any cut."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from event_token import KeyRange
from resharding.apply.last_changes import LastChanges, Section
from resharding.routing import Change, Delete, Routes, Upsert
from tests.resharding.apply.records import SHAPE, event
from topics.keyspace.topology import TableVindex
from topics.keyspace.vindexes import vindex_named
from topics.records.table_shape import Column, TableShape, ValueKind
from topics.records.vevent import Op, Row, VEvent

COLUMNS = (
    Column("id", ValueKind.STRING, "varchar(9)"),
    Column("user", ValueKind.LONG, "bigint"),
    Column("code", ValueKind.LONG, "bigint"),
)
UNIQUE = TableShape("shop", "orders", COLUMNS, (0,))
ROUTES = Routes([TableVindex("shop", "orders", ("user",), "hash")])
HASH = vindex_named("hash")
# Of different case: the server takes them for the same key.
KEYS = st.sampled_from(["a", "A", "b", "B", "c", "d"])
USERS = st.integers(0, 3)
CODES = st.one_of(st.none(), st.integers(0, 2))


def slot(row: Row) -> str:
    """The key as the server compares it."""
    return str(row["id"]).casefold()


class Source:
    """The rows of a source, and the records of their changes."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.records: list[VEvent] = []
        self.states: list[dict[str, Row]] = [{}]

    def write(self, before: Row | None, after: Row | None) -> None:
        """Change a row if keys and codes stay unique."""
        others = [row for row in self.rows.values() if row is not before]
        if after is not None and any(
            slot(row) == slot(after) or (row["code"] is not None and row["code"] == after["code"])
            for row in others
        ):
            return
        if before is not None:
            del self.rows[slot(before)]
        if after is not None:
            self.rows[slot(after)] = after
        op = Op.UPDATE if before and after else Op.INSERT if after else Op.DELETE
        self.records.append(event(op, before, after, shape=UNIQUE))
        self.states.append(dict(self.rows))


@dataclass
class History:
    """Records of a copy and of changes, cut into batches; from `exact_at` on nothing is ahead."""

    records: list[VEvent]
    states: list[dict[str, Row]]
    exact_at: int
    cuts: list[int]


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Rows that are there before, then changes; the copy's rows are newer than their place."""
    source = Source()
    old_changes = draw(st.integers(0, 4))
    for _ in range(old_changes + draw(st.integers(1, 14))):
        key = draw(KEYS)
        before = source.rows.get(key.casefold())
        after: Row | None = {"id": key, "user": draw(USERS), "code": draw(CODES)}
        if before is not None and draw(st.booleans()):
            after = None
        source.write(before, after)
    old = min(old_changes, len(source.records))
    changes, states = source.records[old:], source.states[old:]
    place = draw(st.integers(0, len(changes)))
    seen = draw(st.integers(place, len(changes)))
    copied = [event(Op.READ, None, row, shape=UNIQUE) for row in states[seen].values()]
    records = changes[:place] + copied + changes[place:]
    all_states = states[: place + 1] + [states[place]] * len(copied) + states[place + 1 :]
    cuts = draw(st.sets(st.integers(1, max(1, len(records))), max_size=6))
    return History(
        records,
        all_states,
        seen + len(copied),
        sorted({min(cut, len(records)) for cut in cuts} | {len(records)}),
    )


class Target:
    """The target's rows, as its server changes them."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}

    def apply(self, change: Change) -> None:
        row = change.row
        if isinstance(change, Upsert):  # REPLACE: by every unique key
            code = row["code"]
            self.rows = {
                key: there
                for key, there in self.rows.items()
                if key != slot(row) and (code is None or there["code"] != code)
            }
            self.rows[slot(row)] = row
        elif self.rows.get(slot(row), {}).get("user") == row["user"]:
            del self.rows[slot(row)]


def sections_of(
    changes: LastChanges, records: list[VEvent], key_range: KeyRange
) -> Iterator[Section]:
    """What is left of the records."""
    for record in records:
        for change in ROUTES.changes(record, key_range):
            changes.add(change, record)
    yield from changes.take()


@pytest.mark.parametrize("target_range", ["-", "-80"])
@given(history=histories())
def test_what_is_left_is_as_good_as_all(target_range: str, history: History) -> None:
    """Behind the copy, each cut finds exactly the sources' rows: moves, swaps, case, rows ahead."""
    key_range = KeyRange.parse(target_range)
    changes, target, done = LastChanges(lambda _event: "user", is_merge=False), Target(), 0
    for cut in history.cuts:
        for section in sections_of(changes, history.records[done:cut], key_range):
            for change, record in section.changes:
                assert record.shard == section.source
                target.apply(change)
        done = cut
        if cut >= history.exact_at:
            wanted = {
                key: row
                for key, row in history.states[cut].items()
                if key_range.contains(HASH.keyspace_id(row["user"]))
            }
            assert target.rows == wanted


def test_sections_of_two_sources() -> None:
    """All deletes go first, and the newest record of a source is the origin of its changes.

    Every update deletes the row as it was, since an insert replaces nothing.
    """
    changes = LastChanges(lambda _event: "user", is_merge=True)
    rows: list[Row] = [{"id": key, "user": key} for key in range(5)]
    records = [
        event(Op.INSERT, None, rows[0], shard="-80", seq=1),
        event(Op.DELETE, rows[1], None, shard="80-", seq=1),
        event(Op.INSERT, None, rows[4], shard="-80", seq=2),
        event(Op.INSERT, None, rows[2], shard="80-", seq=2),
        event(Op.DELETE, rows[3], None, shard="80-", seq=3),
        event(Op.UPDATE, rows[0], {"id": 0, "user": 9}, shard="-80", seq=3),
    ]
    found = list(sections_of(changes, records, KeyRange.parse("-")))

    assert [
        (s.source, s.following, [(c.row["id"], c.row["user"]) for c, _ in s.changes]) for s in found
    ] == [
        ("-80", 1, [(0, 0)]),
        ("80-", 1, [(1, 1), (3, 3)]),
        ("-80", 0, [(0, 9), (4, 4)]),
        ("80-", 0, [(2, 2)]),
    ]
    assert all(isinstance(c, Delete) is (s in found[:2]) for s in found for c, _ in s.changes)
    assert [s.newest.seq for s in found] == [3] * len(found)
    assert changes.take() == []


def test_the_same_key_in_two_sources() -> None:
    """The last change of a row is that of its source, whatever another source does with the key."""
    changes = LastChanges(lambda _event: "user", is_merge=True)
    ours: Row = {"id": 1, "user": 1}
    theirs: Row = {"id": 1, "user": 2}
    records = [
        event(Op.INSERT, None, theirs, shard="80-"),
        event(Op.DELETE, ours, None, shard="-80"),
        event(Op.INSERT, None, ours, shard="-80"),
    ]
    found = list(sections_of(changes, records, KeyRange.parse("-")))

    assert [(s.source, [(type(c), c.row) for c, _ in s.changes]) for s in found] == [
        ("-80", [(Delete, ours)]),
        ("80-", [(Upsert, theirs)]),
        ("-80", [(Upsert, ours)]),
    ]


def test_a_table_of_another_version() -> None:
    """Changes of another version of a table are told apart; equal ones of two logs are not."""
    changes = LastChanges(lambda _event: "user", is_merge=False)
    row: Row = {"id": 1, "user": 1}
    record = event(Op.INSERT, None, row)
    assert not changes.has_other_shape(record)
    changes.add(Upsert("shop", "orders", row), record)

    same = TableShape("shop", "orders", SHAPE.columns, (0,))
    assert not changes.has_other_shape(event(Op.INSERT, None, row, shape=same))
    assert changes.has_other_shape(event(Op.INSERT, None, row, shape=UNIQUE))
