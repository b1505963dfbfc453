"""What is left of many transactions leaves a target as all of them do, in any cut."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from event_token import KeyRange
from resharding.apply.last_changes import KeyUse, LastChanges, Section
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
    changes, target, done = LastChanges(lambda _event: KeyUse("user")), Target(), 0
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


@dataclass
class Skewed:
    """Records of two sources as they are merged where one's clock is wrong, and the rows there."""

    records: list[VEvent]
    rows: dict[str, Row]
    cuts: list[int]


@st.composite
def skewed(draw: st.DrawFn, *, apart: bool) -> Skewed:
    """Changes, of which those of one source come too early; `apart`: with one unique key only."""
    sources = Sources()
    keys, codes = (st.sampled_from("abcd"), st.none()) if apart else (KEYS, CODES)
    for _ in range(draw(st.integers(3, 12))):
        key = draw(keys)
        before = sources.rows.get(key.casefold())
        after: Row | None = {"id": key, "user": draw(USERS), "code": draw(codes)}
        if before is not None and draw(st.booleans()):
            after = None
        sources.write(before, after)
    ahead = draw(st.sampled_from([-2.5, -1.5, 1.5, 2.5]))
    at = {id(r): i + ahead * (r.shard == "-80") for i, r in enumerate(sources.records)}
    records = sorted(sources.records, key=lambda record: at[id(record)])
    cuts = draw(st.sets(st.integers(1, len(records)), max_size=4))
    return Skewed(records, sources.rows, sorted(cuts | {len(records)}))


@pytest.mark.parametrize("apart", [False, True])
@given(data=st.data())
def test_clocks_that_differ(*, apart: bool, data: st.DataObject) -> None:
    """Where change by change in merged order is right in spite of the clocks, batches are too."""
    merged = data.draw(skewed(apart=apart))
    one_by_one, target, done = Target(), Target(), 0
    for record in merged.records:
        for change in ROUTES.changes(record, KeyRange.parse("-")):
            one_by_one.apply(change)
    assume(one_by_one.rows == merged.rows)
    changes = LastChanges(lambda _event: KeyUse("user", apart))
    for cut in merged.cuts:
        for section in sections_of(changes, merged.records[done:cut], KeyRange.parse("-")):
            for change, _ in section.changes:
                target.apply(change)
        done = cut

    assert target.rows == merged.rows


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
    changes, target = LastChanges(lambda _event: KeyUse("user")), Target()
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


@pytest.mark.parametrize("apart", [False, True])
def test_sections_of_two_sources(*, apart: bool) -> None:
    """All deletes go first, and the newest record of a source is the origin of its changes.

    Upserts whose rows may be in each other's way follow in the order of the last changes.
    """
    changes = LastChanges(lambda _event: KeyUse("user", apart))
    rows: list[Row] = [{"id": key, "user": key} for key in range(5)]
    records = [
        event(Op.INSERT, None, rows[0], shard="-80", seq=1),
        event(Op.DELETE, rows[1], None, shard="80-", seq=1),
        event(Op.INSERT, None, rows[4], shard="-80", seq=2),
        event(Op.INSERT, None, rows[2], shard="80-", seq=2),
        event(Op.DELETE, rows[3], None, shard="80-", seq=3),
        event(Op.UPDATE, rows[0], rows[0], shard="-80", seq=3),
    ]
    found = list(sections_of(changes, records, KeyRange.parse("-")))

    upserts: list[tuple[str, int, list[int]]] = [("-80", 0, [4, 0]), ("80-", 0, [2])]
    if not apart:
        upserts = [("-80", 1, [4]), ("80-", 0, [2]), ("-80", 0, [0])]
    assert [(s.source, s.following, [c.row["id"] for c, _ in s.changes]) for s in found] == [
        ("80-", 1, [1, 3]),
        *upserts,
    ]
    assert all(isinstance(c, Delete) is (s is found[0]) for s in found for c, _ in s.changes)
    assert [s.newest.seq for s in found] == [3] * len(found)
    assert changes.take() == []


def test_a_table_of_another_version() -> None:
    """Changes of another version of a table are told apart; equal ones of two logs are not."""
    changes = LastChanges(lambda _event: KeyUse("user"))
    row: Row = {"id": 1, "user": 1}
    record = event(Op.INSERT, None, row)
    assert not changes.has_other_shape(record)
    changes.add(Upsert("shop", "orders", row), record)

    same = TableShape("shop", "orders", SHAPE.columns, (0,))
    assert not changes.has_other_shape(event(Op.INSERT, None, row, shape=same))
    assert changes.has_other_shape(event(Op.INSERT, None, row, shape=UNIQUE))
