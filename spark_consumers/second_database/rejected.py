"""Values that the target cannot hold: which row and column they are in. Pure."""

import re
from collections.abc import Collection

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


# One character of a text in JSON, if it is written as an escape.
_ESCAPE = re.compile(r"\\(?:u0000|.)", re.DOTALL)
_NUL_ESCAPE = "\\u0000"


def without_nul(rows: pa.Table, *, replace: bool, json: Collection[str] = ()) -> pa.Table:
    """Return rows whose texts have no zero character, which PostgreSQL cannot hold.

    `json`: the columns of JSON, which has them as escapes. BadValue names the first one, unless
    they are to be replaced.
    """
    for i, name in enumerate(rows.column_names):
        column = rows[name]
        if name in json:
            rows = _with_json(rows, i, replace=replace)
            continue
        if not pa.types.is_string(column.type):
            continue
        has_nul = pc.fill_null(pc.match_substring(column, NUL), fill_value=False)
        if not pc.any(has_nul).as_py():
            continue
        if not replace:
            raise _has_nul(rows, pc.index(has_nul, value=True).as_py(), name)
        rows = rows.set_column(i, name, pc.replace_substring(column, NUL, REPLACEMENT))
    return rows


def _with_json(rows: pa.Table, i: int, *, replace: bool) -> pa.Table:
    name, column = rows.column_names[i], rows[i].combine_chunks()
    may_have = pc.fill_null(pc.match_substring(column, _NUL_ESCAPE), fill_value=False)
    if not pc.any(may_have).as_py():
        return rows
    texts = column.to_pylist()
    for row in pc.indices_nonzero(may_have).to_pylist():
        # `\\\\u0000` is a backslash and five characters.
        text = _ESCAPE.sub(lambda m: REPLACEMENT if m[0] == _NUL_ESCAPE else m[0], texts[row])
        if text != texts[row] and not replace:
            raise _has_nul(rows, row, name)
        texts[row] = text
    return rows.set_column(i, name, pa.array(texts, column.type))


def _has_nul(rows: pa.Table, row: int, name: str) -> BadValue:
    return BadValue(
        f"{place_of(rows, row)}, column {name}: the text has a zero character, which PostgreSQL "
        f"cannot store; --nul-text replace writes U+FFFD in its place"
    )
