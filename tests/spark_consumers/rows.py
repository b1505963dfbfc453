"""Rows of one shard log with consecutive seqs, as hypothesis strategies."""

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

from hypothesis import strategies as st

from tests.topics.records.events import NAMES, UUID, columns, ddl_event, values
from topics.records.table_shape import Column, TableShape, ValueKind
from topics.records.vevent import EventType, InvalidDate, Op, Row, TokenText, Value, VEvent

KEY_KINDS = (ValueKind.INT, ValueKind.LONG, ValueKind.STRING, ValueKind.UNSIGNED_LONG)
DECIMAL128_DIGITS = 38


@st.composite
def shapes(draw: st.DrawFn) -> TableShape:
    """Any version of shop.orders with up to eight columns."""
    names = draw(st.lists(NAMES, min_size=1, max_size=8, unique=True))
    found = tuple(draw(columns(name)) for name in names)
    candidates = [i for i, column in enumerate(found) if column.kind in KEY_KINDS]
    key = tuple(draw(st.permutations(candidates)))[: draw(st.integers(0, 2))]
    return TableShape("shop", "orders", found, key)


@st.composite
def rows(draw: st.DrawFn, shape: TableShape, *, whole: bool) -> Row:
    """A row image that has its key; without `whole`, other columns may be absent."""
    row: Row = {}
    for i, column in enumerate(shape.columns):
        if i in shape.primary_key:
            row[column.name] = draw(values(column).filter(lambda value: value is not None))
        elif whole or draw(st.booleans()):
            row[column.name] = draw(values(column))
    return row


@st.composite
def events(draw: st.DrawFn, shape: TableShape, seq: int) -> VEvent:
    """Any change of a row."""
    op = draw(st.sampled_from([Op.INSERT, Op.UPDATE, Op.DELETE, Op.READ]))
    whole = draw(st.booleans())
    timestamp_us = draw(st.integers(0, 2**50))
    origin = TokenText(timestamp_us, "-40", "0-1-7") if draw(st.booleans()) else None
    return replace(
        statement_event(seq, ""),
        type=EventType.ROW,
        token_text=TokenText(timestamp_us, "-80", f"{UUID}:1-{2 + seq}", origin),
        commit_us=draw(st.integers(0, 2**50)),
        row_index=draw(st.integers(0, 2**40)),
        last=draw(st.booleans()),
        table=shape.table,
        op=op,
        keyspace_id_before=draw(st.none() | st.binary(max_size=8)),
        before=draw(rows(shape, whole=whole)) if op in {Op.UPDATE, Op.DELETE} else None,
        after=draw(rows(shape, whole=whole)) if op is not Op.DELETE else None,
        statement=None,
        shape=shape,
    )


def statement_event(seq: int, text: str) -> VEvent:
    """A DDL statement."""
    return replace(ddl_event(text), seq=seq, offset=seq * 3)


def typed_value(column: Column, value: Value) -> object:
    """What the typed column holds for a value of the codec."""
    match column.kind:
        case _ if value is None or isinstance(value, InvalidDate):
            return None
        case ValueKind.TIME:
            assert isinstance(value, timedelta)
            return value // timedelta(microseconds=1)
        case ValueKind.UNSIGNED_LONG | ValueKind.BIT64:
            return Decimal(str(value))
        case ValueKind.DECIMAL if column.precision > DECIMAL128_DIGITS:
            assert isinstance(value, Decimal)
            return f"{value:f}"
        case _:
            return value
