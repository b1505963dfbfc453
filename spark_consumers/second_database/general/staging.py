"""Stages rows by executemany, and asks the database whether it keeps values as they are."""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.exc import DataError, IntegrityError

from spark_consumers.applying.changes import KEY, SEQ, SHARD
from spark_consumers.decoding.output_columns import arrow_type
from spark_consumers.errors import BadValue
from spark_consumers.second_database.general.types import SqlType, extremes_of
from spark_consumers.second_database.rejected import place_of
from topics.records.table_shape import Column

# Rows that are Python objects at a time.
ROWS_AT_ONCE = 5_000
_REFUSED = (DataError, IntegrityError)


def table_of(name: str, types: Mapping[str, SqlType]) -> sa.Table:
    """Return a table as SQLAlchemy knows it."""
    return sa.Table(name, sa.MetaData(), *(sa.Column(each, types[each]) for each in types))


def insert(connection: Connection, place: sa.Table, rows: pa.Table) -> None:
    """Insert rows. BadValue names the first one that the database refuses."""
    for begin in range(0, rows.num_rows, ROWS_AT_ONCE):
        part = rows.slice(begin, ROWS_AT_ONCE).to_pylist()
        try:
            with connection.begin_nested():
                connection.execute(place.insert(), part)
        except _REFUSED:
            _name_bad_row(connection, place, rows, begin, part)
            raise


def _name_bad_row(
    connection: Connection,
    place: sa.Table,
    rows: pa.Table,
    begin: int,
    part: Sequence[Mapping[str, object]],
) -> None:
    for i, row in enumerate(part):
        try:
            with connection.begin_nested():
                connection.execute(place.insert(), row)
        except _REFUSED as error:
            kind = type(error.orig).__name__
            raise BadValue(
                f"{place_of(rows, begin + i)}: the database refuses a value ({kind})"
            ) from None


def probe_of(column: Column) -> pa.Table:
    """Return a column's extreme values, numbered, for `check_probe`."""
    kind = arrow_type(column)
    if pa.types.is_timestamp(kind):
        kind = pa.timestamp("us")
    values: Sequence[object] = extremes_of(column)
    if pa.types.is_string(kind):
        values = [str(value) for value in values]
    own = {KEY: ["extreme value"] * len(values), SHARD: ["-"] * len(values)}
    return pa.table({**own, SEQ: range(len(values)), column.name: pa.array(values, kind)})


def check_probe(connection: Connection, place: sa.Table, sent: pa.Table) -> str:
    """Read rows of `probe_of` back; return what the database has made of them, empty: nothing."""
    name = sent.column_names[-1]
    # Without the types of SQLAlchemy, which may read decimals by way of floats.
    value: sa.ColumnElement[object] = sa.literal_column(_quoted(connection, name))
    query = sa.select(value).select_from(place).order_by(place.c[SEQ])
    stored = [row[0] for row in connection.execute(query)]
    is_single = pa.types.is_float32(sent[name].type)
    for before, after in zip(sent[name].to_pylist(), stored, strict=True):
        if not _is_same(before, after, is_single=is_single):
            return f"changes {before!r} to {after!r}"
    count = sa.func.count(sa.distinct(value))
    [(different,)] = connection.execute(sa.select(count).select_from(place)).all()
    return "" if different == sent.num_rows else "takes different values for equal"


def _quoted(connection: Connection, name: str) -> str:
    return connection.dialect.identifier_preparer.quote_identifier(name)


def _is_same(before: object, after: object, *, is_single: bool) -> bool:
    if is_single:
        return bool(np.float32(before) == np.float32(after))  # type: ignore[arg-type]
    # A database without dates has texts.
    return before == after or (isinstance(after, str) and str(before) == after)
