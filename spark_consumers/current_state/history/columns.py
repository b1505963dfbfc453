"""The columns of a history: those of the table, its key, and what tells when a row was visible."""

import pyarrow as pa

from spark_consumers.applying.changes import HOME, KEY, OP, SEQ, SHARD, TIME
from spark_consumers.errors import ShapeConflict

FROM = "_from_us"
TO = "_to_us"
FROM_TOKEN = "_from_token"  # noqa: S105 - the name of a column
# _from_us, _from_token and _op: of the change that made the row visible. _to_us: when another one
# replaced or removed it; null while it is visible.
KEPT = (
    pa.field(KEY, pa.string()),
    pa.field(FROM, pa.int64()),
    pa.field(TO, pa.int64()),
    pa.field(FROM_TOKEN, pa.string()),
    pa.field(OP, pa.string()),
)
_NAMES = frozenset(field.name for field in KEPT)
_ORDER = frozenset({KEY, HOME, SHARD, SEQ, TIME})


def history_schema(visible: pa.Schema) -> pa.Schema:
    """Return the columns of a history. `visible`: of the table of visible rows.

    ShapeConflict if the table has a column that is named as one of ours.
    """
    own = [field for field in visible if field.name not in _ORDER]
    clash = sorted(_NAMES & {field.name for field in own})
    if clash:
        raise ShapeConflict(
            f"the table has a column '{clash[0]}', which is the name of a column of its history: "
            f"rename the column, or leave out --history"
        )
    return pa.schema([*own, *KEPT])


def own_columns(schema: pa.Schema) -> pa.Schema:
    """Return the table's own columns of a history."""
    return pa.schema([field for field in schema if field.name not in _NAMES])
