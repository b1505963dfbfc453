"""What is left of many transactions leaves a target as all of them do, in any cut."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from event_token import KeyRange
from resharding.apply.last_changes import LastChanges, Section
from resharding.apply.routing import Change, Delete, Routes, Upsert
from tests.resharding.apply.test_routing import SHAPE, event
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


def source_of(row: Row) -> str:
    """A merge: half of the users come from each source."""
    return "-80" if int(str(row["user"])) % 2 else "80-"


class Sources:
    """The rows of both sources, unique across them, and the records of their changes."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.records: list[VEvent] = []
        self.states: list[dict[str, Row]] = [{}]

    def write(self, before: Row | None, after: Row | None) -> None:
        """Change a row if keys and codes stay unique; a row that moves is deleted and inserted."""
        others = [row for row in self.rows.values() if row is not before]
        if after is not None and any(
            slot(row) == slot(after) or (row["code"] is not None and row["code"] == after["code"])
            for row in others
        ):
            return
        if before is not None and after is not None and source_of(before) != source_of(after):
            self.write(before, None)
            self.write(None, after)
            return
        if before is not None:
            del self.rows[slot(before)]
        if after is not None:
            self.rows[slot(after)] = after
        op = Op.UPDATE if before and after else Op.INSERT if after else Op.DELETE
        where = source_of(after or before or {})
        self.records.append(event(op, before, after, shape=UNIQUE, shard=where))
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
    sources = Sources()
    old_changes = draw(st.integers(0, 4))
    for _ in range(old_changes + draw(st.integers(1, 14))):
        key = draw(KEYS)
        before = sources.rows.get(key.casefold())
        after: Row | None = {"id": key, "user": draw(USERS), "code": draw(CODES)}
        if before is not None and draw(st.booleans()):
            after = None
        sources.write(before, after)
    old = min(old_changes, len(sources.records))
    changes, states = sources.records[old:], sources.states[old:]
    place = draw(st.integers(0, len(changes)))
    seen = draw(st.integers(place, len(changes)))
    copied = [
        event(Op.READ, None, row, shape=UNIQUE, shard=source_of(row))
        for row in states[seen].values()
    ]
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
    changes, target, done = LastChanges(lambda _d, _t: "user"), Target(), 0
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


def row_of(user: int) -> Row:
    """The row `a` of a user."""
    return {"id": "a", "user": user, "code": None}


@pytest.mark.parametrize(
    ("records", "left"),
    [
        # Its user changes in place, then it goes: the delete that is left names both.
        ([("80-", 0, 2), ("80-", 2, None)], None),
        # It moves to the other source and goes there.
        ([("80-", 0, None), ("-80", None, 1), ("-80", 1, None)], None),
        # The clock of the source that it leaves is ahead: its delete comes late, and names it.
        ([("-80", None, 1), ("80-", 0, None)], 1),
        ([("-80", None, 1), ("80-", 0, 2), ("-80", 1, 3), ("80-", 2, None)], 3),
    ],
)
def test_what_becomes_of_one_row(
    records: list[tuple[str, int | None, int | None]], left: int | None
) -> None:
    """A row that is on the target, and changes and moves within one batch."""
    changes, target = LastChanges(lambda _d, _t: "user"), Target()
    target.rows = {"a": row_of(0)}
    taken = []
    for source, old, new in records:
        before, after = (None if user is None else row_of(user) for user in (old, new))
        op = Op.UPDATE if before and after else Op.INSERT if after else Op.DELETE
        taken.append(event(op, before, after, shape=UNIQUE, shard=source))
    for section in sections_of(changes, taken, KeyRange.parse("-")):
        for change, _ in section.changes:
            target.apply(change)

    assert target.rows == ({} if left is None else {"a": row_of(left)})


def test_sections_of_two_sources() -> None:
    """All deletes go first, and the newest record of a source is the origin of its changes."""
    changes = LastChanges(lambda _d, _t: "user")
    rows: list[Row] = [{"id": key, "user": key} for key in range(4)]
    records = [
        event(Op.INSERT, None, rows[0], shard="-80", seq=1),
        event(Op.DELETE, rows[1], None, shard="80-", seq=1),
        event(Op.INSERT, None, rows[2], shard="80-", seq=2),
        event(Op.DELETE, rows[3], None, shard="80-", seq=3),
    ]
    found = list(sections_of(changes, records, KeyRange.parse("-")))

    assert [(s.source, s.newest.seq, s.is_last) for s in found] == [
        ("80-", 3, False),
        ("-80", 1, True),
        ("80-", 3, True),
    ]
    kinds = [[(type(change), change.row["id"]) for change, _ in s.changes] for s in found]
    assert kinds == [[(Delete, 1), (Delete, 3)], [(Upsert, 0)], [(Upsert, 2)]]
    assert changes.take() == []


def test_a_table_of_another_version() -> None:
    """Changes of another version of a table are told apart; equal ones of two logs are not."""
    changes = LastChanges(lambda _d, _t: "user")
    row: Row = {"id": 1, "user": 1}
    record = event(Op.INSERT, None, row)
    assert not changes.has_other_shape(record)
    changes.add(Upsert("shop", "orders", row), record)

    same = TableShape("shop", "orders", SHAPE.columns, (0,))
    assert not changes.has_other_shape(event(Op.INSERT, None, row, shape=same))
    assert changes.has_other_shape(event(Op.INSERT, None, row, shape=UNIQUE))
