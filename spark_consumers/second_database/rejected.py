"""Values that the target cannot hold: which row and column they are in. Pure."""

import pyarrow as pa
import pyarrow.compute as pc

from spark_consumers.applying.changes import KEY, SEQ, SHARD
from spark_consumers.errors import BadValue

NUL = "\0"
# What stands for it with `--nul-text replace`: U+FFFD, the replacement character.
REPLACEMENT = "\ufffd"


def place_of(rows: pa.Table, row: int) -> str:
    """Return key, shard and seq of a row for messages."""
    key, shard, seq = (rows[name][row].as_py() for name in (KEY, SHARD, SEQ))
    return f"key {key}, shard {shard}, seq {seq}"


def without_nul(rows: pa.Table, *, replace: bool) -> pa.Table:
    """Return rows whose texts have no zero character, which PostgreSQL cannot hold.

    BadValue names the first one, unless they are to be replaced.
    """
    for i, name in enumerate(rows.column_names):
        column = rows[name]
        if not pa.types.is_string(column.type):
            continue
        has_nul = pc.fill_null(pc.match_substring(column, NUL), fill_value=False)
        if not pc.any(has_nul).as_py():
            continue
        if not replace:
            where = place_of(rows, pc.index(has_nul, value=True).as_py())
            raise BadValue(
                f"{where}, column {name}: the text has a zero character, which PostgreSQL cannot "
                f"store; --nul-text replace writes U+FFFD in its place"
            )
        rows = rows.set_column(i, name, pc.replace_substring(column, NUL, REPLACEMENT))
    return rows
