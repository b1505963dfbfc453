"""What a reader asks for of a stream, compared with plain sets of rows."""

import operator
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from event_token.errors import UsageError
from producers.filters.conditions import RuleError
from shardstream.commands.tail import event_line
from shardstream.stream_filter import Images, StreamFilter, parse_columns
from tests.generated import examples
from tests.producers.filters.answers import ALL, Answers
from topics.errors import RowImageMissing
from topics.keyspace.vindexes import vindex_named
from topics.records.table_shape import Column, TableShape, ValueKind
from topics.records.vevent import (
    IMAGES,
    EventType,
    InvalidDate,
    Op,
    Row,
    TokenText,
    Value,
    VEvent,
)

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
ORDERS = TableShape(
    "shop",
    "orders",
    (
        Column("id", ValueKind.LONG, "bigint"),
        Column("total", ValueKind.DECIMAL, "decimal(8,2)", 8, 2),
        Column("Note", ValueKind.STRING, "varchar(9)"),
        Column("day", ValueKind.DATE, "date"),
        Column("at", ValueKind.TIMESTAMP, "timestamp(3)"),
        Column("took", ValueKind.TIME, "time"),
    ),
    (0,),
)
# By column, some values, each as a constant of a condition and as a reader gets it.
VALUES: Mapping[str, Mapping[str, Value]] = {
    "id": {"1": 1, "2": 2, "3": 3},
    "total": {"-1.50": Decimal("-1.50"), "0": Decimal(0), "9.99": Decimal("9.99")},
    "Note": {"''": "", "'a'": "a", "'b'": "b", "'ä'": "ä"},
    "day": {"'1969-12-31'": date(1969, 12, 31), "'2024-02-29'": date(2024, 2, 29)},
    "at": {
        "'2024-02-29 12:00:00.125'": datetime(2024, 2, 29, 12, 0, 0, 125_000, UTC),
        "'2024-03-01'": datetime(2024, 3, 1, tzinfo=UTC),
    },
    "took": {"'-01:00:00'": timedelta(hours=-1), "'00:00:01'": timedelta(seconds=1)},
}
OPERATORS = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
ROW_OPS = (Op.INSERT, Op.UPDATE, Op.DELETE, Op.READ)
# A row, and whether the condition is true of it; None: unknown.
Truth = Callable[[Row], bool | None]


def event(
    op: Op,
    before: Row | None,
    after: Row | None,
    shape: TableShape = ORDERS,
    ids: tuple[bytes | None, bytes | None] = (None, None),
) -> VEvent:
    """A change of a row."""
    return VEvent(
        type=EventType.ROW,
        seq=1,
        token_text=TokenText(1, "-", f"{UUID}:1"),
        commit_us=1,
        gtid=f"{UUID}:1",
        row_index=0,
        last=True,
        database=shape.database,
        table=shape.table,
        op=op,
        keyspace_id_before=ids[0],
        keyspace_id_after=ids[1],
        before=before,
        after=after,
        statement=None,
        shape=shape,
        shard="-",
        offset=7,
    )


def named(column: str) -> str:
    """A column as a condition names it; text with the collation that the log does not have."""
    return "note COLLATE utf8mb4_bin" if column == "Note" else column


@st.composite
def comparisons(draw: st.DrawFn) -> tuple[str, Truth]:
    """`column operator constant`, IN, BETWEEN or IS NULL, as text and as a function."""
    column = draw(st.sampled_from(sorted(VALUES)))
    constants = st.sampled_from(sorted(VALUES[column]))
    form = draw(st.sampled_from([*OPERATORS, "<=>", "IN", "BETWEEN", "IS NULL"]))
    low, high = draw(constants), draw(constants)
    values = VALUES[column]

    constant: Any = values[low]

    def known(test: Callable[[Any], bool]) -> Truth:
        return lambda row: None if row[column] is None else test(row[column])

    if form == "IS NULL":
        return f"{column} IS NULL", lambda row: row[column] is None
    if form == "<=>":
        return f"{named(column)} <=> {low}", lambda row: row[column] == values[low]
    if form == "IN":
        members = [values[low], values[high]]
        return f"{named(column)} IN ({low}, {high})", known(lambda value: value in members)
    if form == "BETWEEN":
        first: Any = values[low]
        last: Any = values[high]
        text = f"{named(column)} BETWEEN {low} AND {high}"
        return text, known(lambda value: first <= value <= last)
    return f"{named(column)} {form} {low}", known(lambda value: OPERATORS[form](value, constant))


def negated(term: tuple[str, Truth]) -> tuple[str, Truth]:
    """NOT: unknown stays unknown."""
    text, truth = term
    return f"NOT ({text})", lambda row: None if (found := truth(row)) is None else not found


def joined(word: str, terms: list[tuple[str, Truth]]) -> tuple[str, Truth]:
    """AND is the least of the truths, OR the greatest, with unknown between false and true."""
    order = {False: 0, None: 1, True: 2}
    choose = min if word == "AND" else max
    text = f" {word} ".join(f"({text})" for text, _ in terms)
    return text, lambda row: choose((truth(row) for _, truth in terms), key=order.__getitem__)


conditions = st.recursive(
    comparisons(),
    lambda inner: st.one_of(
        inner.map(negated),
        st.builds(joined, st.sampled_from(("AND", "OR")), st.lists(inner, min_size=2, max_size=3)),
    ),
    max_leaves=5,
)
rows = st.fixed_dictionaries(
    {
        name: st.sampled_from(list(values.values())) | (st.nothing() if name == "id" else st.none())
        for name, values in VALUES.items()
    }
)


def changes(history: list[tuple[Row, bool]]) -> list[VEvent]:
    """What a log has of a table: each row is put over that of its key, moved to it, or deleted."""
    table: dict[Value, Row] = {}
    found = []
    for row, moves in history:
        key = row["id"]
        other = next((each for each in table if each != key), None)
        if key in table and moves:
            found.append(event(Op.DELETE, table.pop(key), None))
        elif key not in table and moves and other is not None:
            found.append(event(Op.UPDATE, table.pop(other), row))  # by another key
            table[key] = row
        else:
            before = table.get(key)
            op = Op.INSERT if before is None else Op.UPDATE
            found.append(event(op, before, row))
            table[key] = row
    return found


def replayed(events: list[VEvent]) -> dict[Value, Row]:
    """The table that a reader keeps of what it gets, by the keys alone."""
    table: dict[Value, Row] = {}
    for each in events:
        if each.before is not None:
            del table[each.before["id"]]
        if each.after is not None:
            assert each.after["id"] not in table
            table[each.after["id"]] = each.after
    return table


@settings(max_examples=examples(300))
@given(
    condition=conditions,
    history=st.lists(st.tuples(rows, st.booleans()), max_size=12),
    columns=st.sets(st.sampled_from(sorted(VALUES))),
    images=st.sampled_from(Images),
)
def test_a_reader_of_a_condition_keeps_the_rows_of_which_it_is_true(
    condition: tuple[str, Truth], history: list[tuple[Row, bool]], columns: set[str], images: Images
) -> None:
    """Whatever enters and leaves: replayed, the stream is the rows that the WHERE finds."""
    where, truth = condition
    asked = () if images is Images.NONE else tuple(sorted(columns))
    chosen = StreamFilter(columns=asked, where=where, images=images)
    log = changes(history)

    got = [found for each in log if (found := chosen.apply(each)) is not None]

    kept = {"id"} if images is Images.NONE else {"id", *(asked or VALUES)}
    assert replayed(got) == {
        key: {name: value for name, value in row.items() if name in kept}
        for key, row in replayed(log).items()
        if truth(row) is True
    }
    for each in got:
        shown = {"id"} if images is not Images.BOTH else kept
        assert each.before is None or each.before.keys() == shown
        assert each.shape is not None
        assert {column.name for column in each.shape.columns} == kept
        assert [each.shape.columns[i].name for i in each.shape.primary_key] == ["id"]


@settings(max_examples=examples(200))
@given(condition=conditions, before=rows, after=rows, op=st.sampled_from(ROW_OPS))
def test_each_event_is_chosen_by_its_images(
    condition: tuple[str, Truth], before: Row, after: Row, op: Op
) -> None:
    """An update is a DELETE where only the row before passes, an INSERT where only the other."""
    where, truth = condition
    has_before, has_after = IMAGES[op]
    change = event(op, before if has_before else None, after if has_after else None)

    found = StreamFilter(where=where).apply(change)

    was = has_before and truth(before) is True
    passes = has_after and truth(after) is True
    if not was and not passes:
        assert found is None
        return
    assert found is not None
    ops = {(True, True): Op.UPDATE, (True, False): Op.DELETE, (False, True): Op.INSERT}
    assert found.op is (Op.READ if op is Op.READ else ops[was, passes])
    assert found.before == (before if was else None)
    assert found.after == (after if passes else None)
    assert (found.seq, found.token_text, found.shape) == (1, change.token_text, ORDERS)


def value_of(raw: Any, column: Column) -> Value:
    """What readers get of a raw value."""
    match column.kind:
        case ValueKind.DECIMAL:
            return Decimal(raw).scaleb(-column.scale)
        case ValueKind.DATE | ValueKind.TIMESTAMP if isinstance(raw, str):
            return InvalidDate(raw)
        case ValueKind.DATE:
            return date(1970, 1, 1) + timedelta(days=raw)
        case ValueKind.TIMESTAMP:
            return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=raw)
        case ValueKind.TIME:
            return timedelta(microseconds=raw)
        case _:
            found: Value = raw
            return found


NUMBERS_AND_TIMES = [each for each in ALL if each.column.kind is not ValueKind.STRING]


@pytest.mark.parametrize("answers", NUMBERS_AND_TIMES, ids=lambda answers: answers.sql_type)
def test_values_of_the_log_are_compared_as_servers_compare_them(answers: Answers) -> None:
    """The answers of real servers to each condition; what rules refuse is refused here, too."""
    column = answers.column.column
    shape = TableShape("shop", "t", (column,))
    for where, kept in answers.kept.items():
        chosen = StreamFilter(where=where)
        found = {
            number
            for number, (_, raw) in answers.values.items()
            if chosen.apply(event(Op.INSERT, None, {"v": value_of(raw, column)}, shape)) is not None
        }
        assert found == kept, where
    for where in answers.refused:
        with pytest.raises(UsageError, match=r"table shop\.t: .*cannot be evaluated exactly"):
            StreamFilter(where=where).apply(event(Op.INSERT, None, {"v": None}, shape))


def row(**values: Value) -> Row:
    """A whole row of the table."""
    empty: Row = dict.fromkeys(VALUES)
    return {**empty, "id": 1, **values}


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"where": "nothing = 1"}, "there is no column nothing; there are id, total, Note"),
        ({"where": "in_keyrange('-80') AND no = 1"}, "there are id, total, Note, day, at, took$"),
        ({"where": "note = 'a'"}, "its collation is not in the log.*Note COLLATE"),
        ({"columns": ("id", "gone")}, "there is no column gone; there are id, total, Note"),
    ],
)
def test_what_a_table_cannot_answer_is_one_error(asked: dict[str, Any], said: str) -> None:
    """The table is named, and what there is."""
    with pytest.raises(UsageError, match=rf"^table shop\.orders: .*({said})"):
        StreamFilter(**asked).apply(event(Op.INSERT, None, row()))


def test_bad_conditions_are_refused_before_anything_is_read() -> None:
    """As those of filter rules are, by the same parser."""
    with pytest.raises(RuleError, match="the only function is in_keyrange"):
        StreamFilter(where="f(note)")
    with pytest.raises(UsageError, match="vindex 'md5' is not known"):
        StreamFilter(where="in_keyrange(id, 'md5', '-80')")
    for empty in ("", "  "):
        with pytest.raises(RuleError, match="cannot be parsed"):
            StreamFilter(where=empty)
    with pytest.raises(UsageError, match="images none leaves the primary key alone"):
        StreamFilter(columns=("total",), images=Images.NONE)


@pytest.mark.parametrize("images", [Images.NONE, Images.AFTER])
def test_a_table_without_a_key_has_no_images_of_it(images: Images) -> None:
    """Nobody could say which row it was."""
    keyless = replace(ORDERS, primary_key=())

    with pytest.raises(UsageError, match=f"no primary key, so images {images} cannot name"):
        StreamFilter(images=images).apply(event(Op.INSERT, None, row(), keyless))
    whole = event(Op.INSERT, None, row(), keyless)
    assert StreamFilter().apply(whole) is whole


def test_a_partial_image_stops_the_reader() -> None:
    """With binlog_row_image=MINIMAL a condition may need what is not there; nothing is guessed."""
    partial = event(Op.UPDATE, {"id": 1}, {"total": Decimal(1)})

    with pytest.raises(RowImageMissing, match=r"offset 7.* lacks column total"):
        StreamFilter(where="total > 0").apply(partial)
    cut = StreamFilter(columns=("total", "note")).apply(partial)
    assert cut is not None
    assert (cut.before, cut.after) == ({"id": 1}, {"total": Decimal(1)})


def test_a_key_range_is_that_of_the_keyspace_id() -> None:
    """The id in the record, or a vindex of a column; a row without an id stops the reader."""
    low, high = b"\x10", b"\x90"
    in_low = StreamFilter(where="in_keyrange('-80') AND id > 0")
    moved = in_low.apply(event(Op.UPDATE, row(), row(), ids=(low, high)))

    assert moved is not None
    assert (moved.op, moved.keyspace_id_before, moved.keyspace_id_after) == (Op.DELETE, low, None)
    assert in_low.apply(event(Op.INSERT, None, row(), ids=(None, high))) is None
    with pytest.raises(RowImageMissing, match="no keyspace id"):
        in_low.apply(event(Op.INSERT, None, row()))
    is_low = vindex_named("hash").keyspace_id(1) < b"\x80"
    by_column = StreamFilter(where="in_keyrange(id, 'hash', '-80')")
    assert (by_column.apply(event(Op.INSERT, None, row())) is not None) is is_low
    for where in ("in_keyrange(id, 'hash', '-80')", "NOT in_keyrange(id, 'hash', '-80')"):
        assert StreamFilter(where=where).apply(event(Op.INSERT, None, row(id=None))) is None
    # The one vindex that has a place for NULL.
    halves = [
        StreamFilter(where=f"in_keyrange(Note, 'xxhash', '{half}')") for half in ("-80", "80-")
    ]
    found = [each.apply(event(Op.INSERT, None, row(Note=None))) is not None for each in halves]
    assert sorted(found) == [False, True]


def test_the_text_of_an_update_has_what_may_have_changed() -> None:
    """Of a row before that has its key alone, every column may have, also one that is NULL now."""
    update = event(Op.UPDATE, row(Note="a", total=Decimal(1)), row(total=Decimal(1)))
    after = StreamFilter(columns=("Note", "total"), images=Images.AFTER).apply(update)

    assert event_line(update).plain.endswith(' shop.orders {"id": 1, "Note": null}')
    assert after is not None
    assert event_line(after).plain.endswith(' shop.orders {"id": 1, "total": "1", "Note": null}')


def test_statements_and_marks_always_pass() -> None:
    """They concern every reader."""
    ddl = replace(
        event(Op.INSERT, None, row()),
        type=EventType.DDL, op=Op.NONE, after=None, shape=None, statement="DROP TABLE shop.orders",
    )  # fmt: skip

    assert StreamFilter(columns=("gone",), where="gone = 1").apply(ddl) is ddl


def test_versions_of_a_table_are_told_apart() -> None:
    """Rows before and after an ALTER TABLE come to one filter, each with its own columns."""
    chosen = StreamFilter(columns=("NOTE",), where="id = 1")
    first = chosen.apply(event(Op.INSERT, None, row(Note="a")))
    swapped = replace(ORDERS, columns=(ORDERS.columns[2], ORDERS.columns[0]), primary_key=(1,))
    second = chosen.apply(event(Op.INSERT, None, {"Note": "b", "id": 1}, swapped))

    assert first is not None
    assert second is not None
    assert (first.after, second.after) == ({"id": 1, "Note": "a"}, {"id": 1, "Note": "b"})
    assert second.shape is not None
    assert [column.name for column in second.shape.columns] == ["Note", "id"]


def test_columns_are_names_with_commas() -> None:
    """Blanks around them do not count; an empty or repeated name is a mistake."""
    assert parse_columns("id, total") == ("id", "total")
    for text in ("", "id,", "id, ID"):
        with pytest.raises(UsageError, match="different names with commas"):
            parse_columns(text)
