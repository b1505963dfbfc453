"""Rows with values that the target cannot hold: found one by one, kept for a table of their own."""

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
from sqlalchemy import Connection

from spark_consumers.applying.changes import KEY, SEQ, SHARD, TIME, TOKEN
from spark_consumers.errors import BadValue

# Bad values are rare. More of them than this in one batch of a task are a column that does not fit.
REJECTED_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Rejected:
    """A change with a value that does not fit; `reason` says where and why, without the value."""

    key: str
    shard: str
    seq: int
    time_us: int
    token: str | None
    reason: str


def put_fitting(
    connection: Connection, put: Callable[[pa.Table], None], rows: pa.Table
) -> dict[int, Rejected]:
    """Put all rows that fit; return the others by their index.

    `put` raises BadValue if a row does not fit. BadValue here: there are more than REJECTED_MAX.
    """
    found: dict[int, Rejected] = {}
    waiting = [(0, rows.num_rows)]
    while waiting:
        begin, end = waiting.pop()
        part = rows.slice(begin, end - begin)
        try:
            with connection.begin_nested():
                put(part)
        except BadValue as error:
            if end - begin > 1:
                middle = (begin + end) // 2
                waiting += [(middle, end), (begin, middle)]
                continue
            if len(found) == REJECTED_MAX:
                raise BadValue(
                    f"{error}. More than {REJECTED_MAX:,} rows of one batch do not fit, so they "
                    f"are not put aside"
                ) from None
            found[begin] = _rejected(part, str(error))
    return found


def _rejected(row: pa.Table, reason: str) -> Rejected:
    key, shard, seq, time_us, token = (
        row[name][0].as_py() for name in (KEY, SHARD, SEQ, TIME, TOKEN)
    )
    return Rejected(key, shard, seq, time_us, token, reason)
