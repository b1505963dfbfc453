import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from event_token import KeyRange
from event_token.errors import Halt, UsageError
from tests.generated import examples
from tests.spark_consumers.rows import (
    events,
    shapes,
    statement_event,
    typed_value,
)
from tests.topics.records.record_encoder import RecordEncoder
from tests.topics.schemas.memory_schema_ids import MemorySchemaIds
from topics.arrow.decoders import ArrowDecoder
from topics.arrow.output_columns import OutputColumns, choose_columns
from topics.errors import (
    CorruptRecord,
    HiddenValue,
    LogGap,
    LogRepeat,
    RowImageMissing,
    ShapeConflict,
)
from topics.reading.row_filters import ReadBeforeHop, in_key_range
from topics.records.event_json import event_to_json_dict
from topics.records.table_shape import Column, TableShape, ValueKind
from topics.records.vevent import EventType, InvalidDate, Op, Row, TokenText, VEvent

FIRST_SEQ = 7


def decode(
    found: list[VEvent],
    output: OutputColumns,
    schema_ids: MemorySchemaIds,
    key_range: KeyRange | None = None,
    seen: ReadBeforeHop | None = None,
) -> list[dict[str, object]]:
    encoder = RecordEncoder(schema_ids)
    decoder = ArrowDecoder(output, schema_ids.text_of, shard="-80", key_range=key_range)
    decoder.begin(found[0].seq, 0, seen)
    batch = decoder.decode([encoder.encode(e) for e in found], [e.offset for e in found])
    batch.validate(full=True)
    rows: list[dict[str, object]] = batch.to_pylist()
    return rows


@st.composite
def logs(draw: st.DrawFn) -> tuple[TableShape, list[VEvent]]:
    shape = draw(shapes())
    count = draw(st.integers(1, 6))
    return shape, [draw(events(shape, FIRST_SEQ + i)) for i in range(count)]


@settings(max_examples=examples(50))
@given(logs())
def test_typed_rows_equal_the_codecs(log: tuple[TableShape, list[VEvent]]) -> None:
    """Typed columns of every kind hold the codec's values, also null and absent ones."""
    shape, found = log
    rows = decode(found, choose_columns(None, shape, 0), MemorySchemaIds())

    for event, row in zip(found, rows, strict=True):
        for image, expected in (("before", event.before), ("after", event.after)):
            wanted = (
                None
                if expected is None
                else {c.name: typed_value(c, expected.get(c.name)) for c in shape.columns}
            )
            assert wanted == row[image]


@settings(max_examples=examples(50))
@given(logs())
def test_json_rows_and_envelope_equal_the_codecs(log: tuple[TableShape, list[VEvent]]) -> None:
    """JSON images and envelope columns equal the codec's event."""
    _, found = log
    rows = decode(found, choose_columns(None), MemorySchemaIds())

    for event, row in zip(found, rows, strict=True):
        expected = event_to_json_dict(event)
        for image in ("before", "after"):
            text = row[image]
            assert expected[image] == (None if text is None else json.loads(str(text)))
        assert event.token.to_string() == row["token"]
        for name in ("seq", "offset", "timestamp_us", "commit_us", "gtid", "row_index", "last"):
            assert getattr(event, name) == row[name]
        assert ("ROW", event.op.value, "shop", "orders", "-80", None, False) == (
            *(row[n] for n in ("type", "op", "database", "table", "shard", "statement", "late")),
        )


def key_of(event: VEvent, image: str) -> list[object] | None:
    shape, row = event.shape, event_to_json_dict(event)[image]
    if shape is None or row is None or not shape.primary_key:
        return None
    return [row[shape.columns[i].name] for i in shape.primary_key]


@settings(max_examples=examples(50))
@given(logs())
def test_keys_and_gaps_are_named(log: tuple[TableShape, list[VEvent]]) -> None:
    """`key` and `old_key` follow the row; `absent` and `invalid_dates` explain its nulls."""
    shape, found = log
    names = {c.name for c in shape.columns}
    asked = "key,old_key,absent,invalid_dates"
    rows = decode(found, choose_columns(asked), MemorySchemaIds())

    for event, row in zip(found, rows, strict=True):
        old, new = key_of(event, "before"), key_of(event, "after")
        assert (new or old) == (row["key"] and json.loads(str(row["key"])))
        moved = old if old and new and old != new else None
        assert moved == (row["old_key"] and json.loads(str(row["old_key"])))
        images = {"before": event.before, "after": event.after}
        lacking = {k: names - set(v) if v is not None else set() for k, v in images.items()}
        seen = json.loads(str(row["absent"])) if row["absent"] else {"before": [], "after": []}
        assert lacking == {k: set(v) for k, v in seen.items()}
        texts = {
            k: {n: t for n, t in (v or {}).items() if isinstance(t, InvalidDate)}
            for k, v in images.items()
        }
        seen = (
            json.loads(str(row["invalid_dates"]))
            if row["invalid_dates"]
            else {"before": {}, "after": {}}
        )
        assert texts == seen


@settings(max_examples=examples(50))
@given(logs(), st.data())
def test_any_choice_of_columns_gives_the_same_values(
    log: tuple[TableShape, list[VEvent]], data: st.DataObject
) -> None:
    """Skipping columns does not change the values of the others."""
    shape, found = log
    typed = shape if data.draw(st.booleans()) else None
    every = choose_columns(None, typed, 0)
    names = data.draw(st.lists(st.sampled_from(every.names), min_size=1, unique=True))
    if typed is not None:
        names += ["absent", "invalid_dates"]
    whole = decode(found, every, MemorySchemaIds())

    part = decode(found, choose_columns(",".join(names), typed, 0), MemorySchemaIds())

    assert [{n: row[n] for n in every.names if n in names} for row in whole] == part


def test_one_column_of_a_struct() -> None:
    """`after.name` reads that column alone."""
    shape = TableShape(
        "shop",
        "orders",
        (Column("id", ValueKind.INT, "int"), Column("name", ValueKind.STRING, "text")),
        (0,),
    )
    event = order_event(shape, {"id": 1, "name": "x"})

    rows = decode([event], choose_columns("seq,after.name", shape, 0), MemorySchemaIds())

    assert rows == [{"after": {"name": "x"}, "seq": FIRST_SEQ}]


def order_event(shape: TableShape, after: Row, seq: int = FIRST_SEQ) -> VEvent:
    event = statement_event(seq, "")
    return replace(
        event,
        type=EventType.ROW,
        op=Op.INSERT,
        table=shape.table,
        statement=None,
        after=after,
        shape=shape,
    )


def shape_with(*columns: Column) -> TableShape:
    return TableShape("shop", "orders", (Column("id", ValueKind.INT, "int"), *columns), (0,))


def test_a_skip_is_a_row_for_every_reader() -> None:
    """B3: a SKIP is a row of its type, also where only one table was asked for."""
    skip = replace(statement_event(FIRST_SEQ, '{"kind":"lost"}'), type=EventType.SKIP, database="")

    for shape in (None, shape_with()):
        columns = choose_columns("type,statement", shape, 0)
        rows = decode([skip], columns, MemorySchemaIds())
        assert rows == [{"type": "SKIP", "statement": '{"kind":"lost"}'}]


def test_two_versions_in_one_batch_merge() -> None:
    """F33: A column that a version lacks is null; a wider type takes values of a narrower one."""
    old = shape_with(Column("n", ValueKind.INT, "int"))
    new = shape_with(
        Column("n", ValueKind.LONG, "bigint"), Column("note", ValueKind.STRING, "text")
    )
    found = [
        order_event(old, {"id": 1, "n": -5}, FIRST_SEQ),
        order_event(new, {"id": 2, "n": 2**40, "note": "x"}, FIRST_SEQ + 1),
        order_event(old, {"id": 3, "n": None}, FIRST_SEQ + 2),
    ]

    rows = decode(found, choose_columns("after", new, 1), MemorySchemaIds())

    assert [row["after"] for row in rows] == [
        {"id": 1, "n": -5, "note": None},
        {"id": 2, "n": 2**40, "note": "x"},
        {"id": 3, "n": None, "note": None},
    ]


def test_types_that_do_not_merge_are_named() -> None:
    """F33: A change of type that would change values stops the query, naming both types."""
    old = shape_with(Column("n", ValueKind.STRING, "varchar(10)"))
    new = shape_with(Column("n", ValueKind.INT, "int"))

    with pytest.raises(ShapeConflict, match=r"'n' is varchar\(10\) .*, but int \(int32\)"):
        decode(
            [order_event(old, {"id": 1, "n": "x"})],
            choose_columns("after", new, 1),
            MemorySchemaIds(),
        )


def test_column_added_after_the_start_stops_the_query() -> None:
    """A column added after the start stops the query; it is not left out silently."""
    newer = shape_with(Column("note", ValueKind.STRING, "text"))
    schema_ids = MemorySchemaIds()
    schema_ids.register("the query's version")

    with pytest.raises(ShapeConflict, match="'note' was added after"):
        decode(
            [order_event(newer, {"id": 1, "note": "x"})],
            choose_columns("after", shape_with(), 0),
            schema_ids,
        )


def test_statements_stand_between_rows() -> None:
    """A14: a DDL statement is a separate row without images, typed or not."""
    shape = shape_with()
    found = [
        order_event(shape, {"id": 1}, FIRST_SEQ),
        statement_event(FIRST_SEQ + 1, 'ALTER TABLE orders ADD "x" INT'),
        order_event(shape, {"id": 2}, FIRST_SEQ + 2),
    ]

    general = decode(found, choose_columns(None), MemorySchemaIds())
    typed = decode(found, choose_columns(None, shape, 0), MemorySchemaIds())

    assert [r["statement"] for r in general] == [None, 'ALTER TABLE orders ADD "x" INT', None]
    assert [r["type"] for r in general] == ["ROW", "DDL", "ROW"]
    assert [r["after"] for r in general if r["type"] == "DDL"] == [None]
    assert [r["after"] for r in typed] == [{"id": 1}, None, {"id": 2}]
    assert [r["statement"] for r in typed] == [r["statement"] for r in general]


def test_typed_rows_leave_out_statements_on_other_tables() -> None:
    """A14: a record that names another table, as the mark of a reshard does, is left out."""
    shape = shape_with()
    mark = replace(statement_event(FIRST_SEQ, "{}"), database="_shardstream", table="journal")
    own = replace(statement_event(FIRST_SEQ + 1, "{}"), table="orders")

    rows = decode([mark, own], choose_columns("seq", shape, 0), MemorySchemaIds())

    assert rows == [{"seq": FIRST_SEQ + 1}]


@pytest.mark.parametrize(
    ("seq", "error", "message"),
    [
        (FIRST_SEQ + 2, LogGap, "seq 9 where 8 must be: 1 records are missing from the log"),
        (FIRST_SEQ, LogRepeat, "seq 7 where 8 must be: the log repeats a record"),
    ],
)
def test_gap_and_repeat_stop(seq: int, error: type[Halt], message: str) -> None:
    """A missing or repeated record is an error that names shard and offset."""
    found = [order_event(shape_with(), {"id": 1}, seq) for seq in (FIRST_SEQ, seq)]

    with pytest.raises(error, match=rf"shard -80, offset \d+: {message}"):
        decode(found, choose_columns(None), MemorySchemaIds())


@settings(max_examples=examples(50))
@given(shapes().flatmap(lambda shape: events(shape, FIRST_SEQ)), st.data())
def test_broken_bytes_stop_cleanly(event: VEvent, data: st.DataObject) -> None:
    """F32: A truncated record is an error that names its offset, never half a row."""
    schema_ids = MemorySchemaIds()
    value = RecordEncoder(schema_ids).encode(event)
    cut = data.draw(st.integers(0, len(value) - 1))
    decoder = ArrowDecoder(choose_columns(None), schema_ids.text_of, shard="-80")
    decoder.begin(FIRST_SEQ, 0)

    with pytest.raises(CorruptRecord, match=f"offset {event.offset}"):
        decoder.decode([value[:cut]], [event.offset])


def test_late_rows_are_marked() -> None:
    """Rows older than the start of the batch are late."""
    found = [order_event(shape_with(), {"id": 1})]
    schema_ids = MemorySchemaIds()
    value = RecordEncoder(schema_ids).encode(found[0])
    late = []
    for late_before_us in (found[0].timestamp_us, found[0].timestamp_us + 1):
        decoder = ArrowDecoder(choose_columns("late"), schema_ids.text_of, shard="-80")
        decoder.begin(FIRST_SEQ, late_before_us)
        late += decoder.decode([value], [0])["late"].to_pylist()

    assert late == [False, True]


SOURCE_TOKENS = st.sampled_from([None, "0-1-6", "0-1-7", "0-1-8"]).map(
    lambda position: None if position is None else TokenText(5, "-40", position).token
)


@settings(max_examples=examples(50))
@given(logs(), st.booleans(), st.data())
def test_behind_a_hop_without_marks_rows_are_those_of_a_subscriber(
    log: tuple[TableShape, list[VEvent]], typed: bool, data: st.DataObject
) -> None:
    """Rows that `ReadBeforeHop` knows are dropped, doubtful ones are marked, typed or not."""
    shape, found = log
    times = st.sampled_from([event.timestamp_us + step for event in found for step in (0, 1)])
    tokens = data.draw(st.none() | st.dictionaries(st.just("-40"), SOURCE_TOKENS))
    is_exact = data.draw(st.booleans())
    seen = ReadBeforeHop(data.draw(times), data.draw(times), is_exact, tokens)
    output = choose_columns(None, shape, 0) if typed else choose_columns(None)
    expected = [event for event in map(seen.filtered, found) if event is not None]
    schema_ids = MemorySchemaIds()

    rows = decode(found, output, schema_ids, None, seen)

    assert [(row["seq"], row["possible_duplicate"]) for row in rows] == [
        (event.seq, event.possible_duplicate) for event in expected
    ]
    for event, row in zip(expected, rows, strict=True):
        (alone,) = decode([event], output, schema_ids)
        assert row == alone | {"possible_duplicate": event.possible_duplicate}


def test_rows_of_one_transaction_share_a_token() -> None:
    """All rows of a transaction have one opaque token; the next transaction has another."""
    first = TokenText(5, "-80", "0-1-7")
    second = TokenText(6, "-80", "0-1-8")
    found = []
    for i, token in enumerate((first, first, second)):
        event = order_event(shape_with(), {"id": i}, FIRST_SEQ + i)
        found.append(replace(event, token_text=token))
    rows = decode(found, choose_columns("token"), MemorySchemaIds())

    tokens = [first.token.to_string(), first.token.to_string(), second.token.to_string()]
    assert tokens == [row["token"] for row in rows]


@pytest.mark.parametrize("asked", ["nothing", "after.id", " , "])
def test_unknown_columns_are_refused(asked: str) -> None:
    """An unknown column is refused when the query is planned."""
    with pytest.raises(UsageError, match="option columns"):
        choose_columns(asked)


@settings(max_examples=examples(50))
@given(logs(), st.booleans(), st.data())
def test_a_key_range_sees_what_a_subscriber_sees(
    log: tuple[TableShape, list[VEvent]], typed: bool, data: st.DataObject
) -> None:
    """Rows, ops and images of part of a shard are those of topics.reading.row_filters."""
    shape, found = log
    ids = st.binary(min_size=1, max_size=2)
    found = [
        replace(
            event,
            keyspace_id_before=None if event.before is None else data.draw(ids),
            keyspace_id_after=None if event.after is None else data.draw(ids),
        )
        for event in found
    ]
    output = choose_columns(None, shape, 0) if typed else choose_columns(None)
    half = KeyRange.parse("-80")
    try:
        kept = [in_key_range(event, half) for event in found]
    except RowImageMissing:
        with pytest.raises(RowImageMissing, match=r"-80, offset \d+: shop\.orders: .* columns"):
            decode(found, output, MemorySchemaIds(), half)
        return
    statement = statement_event(found[-1].seq + 1, "CREATE TABLE t (a INT)")
    expected = [event for event in kept if event is not None]

    rows = decode([*found, statement], output, MemorySchemaIds(), half)

    assert rows.pop()["statement"] == statement.statement
    assert [(row["seq"], row["op"]) for row in rows] == [(e.seq, e.op.value) for e in expected]
    schema_ids = MemorySchemaIds()
    for event, row in zip(expected, rows, strict=True):
        (alone,) = decode([event], output, schema_ids)
        assert row == alone


def test_rows_without_a_keyspace_id_stop_a_key_range() -> None:
    """A row without a keyspace id stops the read, naming table, shard and offset."""
    event = order_event(shape_with(), {"id": 1})

    with pytest.raises(RowImageMissing, match=r"-80, offset 21: shop\.orders: .* no keyspace id"):
        decode([event], choose_columns(None), MemorySchemaIds(), KeyRange.parse("-40"))


DATED = (Column("day", ValueKind.DATE, "date"), Column("n", ValueKind.INT, "int"))


@pytest.mark.parametrize(
    ("after", "message"),
    [
        ({"id": 1, "n": 2}, "'day' is not in the row image .* add absent to option columns"),
        (
            {"id": 1, "n": 2, "day": InvalidDate("0000-00-00")},
            "'day' has the invalid date 0000-00-00, .* add invalid_dates to option columns",
        ),
    ],
)
def test_null_hides_no_absent_column_and_no_invalid_date(after: Row, message: str) -> None:
    """A15: a typed query stops where only a column that it does not read could tell."""
    shape = shape_with(*DATED)
    found = [order_event(shape, after)]

    def rows(columns: str) -> list[dict[str, object]]:
        return decode(found, choose_columns(columns, shape, 0), MemorySchemaIds())

    with pytest.raises(HiddenValue, match=f"shard -80, offset {FIRST_SEQ * 3}: column {message}"):
        rows("after")
    [told] = rows("after,absent,invalid_dates")

    assert told["after"] == {"id": 1, "n": 2, "day": None}
    assert (told["absent"] or told["invalid_dates"]) is not None
    assert rows("after.n") == [{"after": {"n": 2}}]
