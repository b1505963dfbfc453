"""The statement that reads a chunk, and key values as SQL literals. Pure."""

import struct
from dataclasses import replace
from typing import Final

from databases.sql import quoted
from producers.copy.definition import KeyColumn, TableDefinition
from producers.decoder.tables.plan import ColumnPlan, TablePlan
from producers.decoder.values import operations as ops
from producers.decoder.values.hidden_values import hidden_text

_NUMBERS: Final = frozenset(range(ops.I8, ops.U64 + 1)) | {ops.YEAR, ops.ENUM, ops.SET}
_BRACKETS: Final = {"L_PAREN": 1, "R_PAREN": -1}


def chunk_select(
    definition: TableDefinition,
    after: tuple[str, ...],
    rows_max: int | None,
    *,
    skip: int = 0,
    upto: tuple[str, ...] = (),
    where: str = "",
) -> str:
    """The SELECT of the next `rows_max` rows in key order after `after`, up to and with `upto`.

    Both are literals of the key's columns; empty means the table's beginning, or its end. Without
    `rows_max` it reads all rows between them.
    """
    columns = ", ".join(_selected(definition, column) for column in definition.plan.columns)
    bounds = (_beyond(definition, after), _beyond(definition, upto, before=True), where)
    conditions = [f"({text})" for text in bounds if text]
    order = ", ".join(
        quoted(key.name) + (" DESC" if key.descending else "") for key in definition.key
    )
    return (
        f"SELECT {columns} FROM {quoted(definition.database)}.{quoted(definition.table)} "  # noqa: S608 - quoted
        f"FORCE INDEX ({quoted(definition.index)}) "
        + (f"WHERE {' AND '.join(conditions)} " if conditions else "")
        + f"ORDER BY {order}"
        + ("" if rows_max is None else f" LIMIT {skip}, {rows_max}")
    )


def _selected(definition: TableDefinition, column: ColumnPlan) -> str:
    name = quoted(column.name)
    if column.name in definition.hidden:
        return f"CAST({name} AS BINARY({column.length}))"
    # Gives an unsigned number of eight bytes on both families; CAST does not.
    return f"({name} | 0)" if column.op in {ops.ENUM, ops.SET} else name


def is_one_condition(where: str) -> bool:
    """Whether a condition is still one in brackets: `1) OR (1` would cancel those beside it."""
    if not where:
        return True
    import sqlglot  # noqa: PLC0415 - a fifth of a start's CPU time, for copies with a WHERE alone
    from sqlglot.errors import TokenError  # noqa: PLC0415 - likewise

    try:
        tokens = sqlglot.tokenize(where, read="mysql")
    except TokenError:
        return False
    depth = 0
    for token in tokens:
        depth += _BRACKETS.get(token.token_type.name, 0)
        if depth < 0 or token.comments or token.token_type.name == "SEMICOLON":
            return False
    return depth == 0 and bool(tokens)


def keys_alone(definition: TableDefinition) -> TableDefinition:
    """The same table, reduced to the columns of its key."""
    whole = definition.plan
    plan = TablePlan(b"", definition.database, definition.table)
    plan.columns = [whole.columns[key.index] for key in definition.key]
    plan.count = len(plan.columns)
    key = tuple(KeyColumn(k.name, i, k.descending) for i, k in enumerate(definition.key))
    return replace(definition, plan=plan, key=key)


def _beyond(definition: TableDefinition, place: tuple[str, ...], *, before: bool = False) -> str:
    """`a > x OR (a = x AND b > y)`, which unlike (a, b) > (x, y) is a range of the index.

    `before`: the rows up to and with that place.
    """
    if not place:
        return ""
    choices = []
    for i, key in enumerate(definition.key):
        equal = [
            f"{quoted(k.name)} = {v}" for k, v in zip(definition.key[:i], place[:i], strict=True)
        ]
        sign = "<" if key.descending != before else ">"
        choices.append(" AND ".join([*equal, f"{quoted(key.name)} {sign} {place[i]}"]))
    if before:
        same = (f"{quoted(k.name)} = {v}" for k, v in zip(definition.key, place, strict=True))
        choices.append(" AND ".join(same))
    return " OR ".join(f"({choice})" for choice in choices)


def key_literal(column: ColumnPlan, raw: bytes) -> str:
    """A value of a row packet as a literal that compares as the column does."""
    op = column.op
    if op in _NUMBERS:
        signed = op in {ops.I8, ops.I16, ops.I24, ops.I32, ops.I64}
        return str(int.from_bytes(raw, "little", signed=signed))
    if op in {ops.FLOAT, ops.DOUBLE}:
        return _float_literal(op, raw)
    if ops.DATE <= op <= ops.TIMESTAMP:
        return _temporal_literal(op, raw)
    body = raw[_length_bytes(raw) :]
    if op in {ops.DECIMAL, ops.BIG_DECIMAL}:
        return body.decode("ascii")
    if op in {ops.BIT, ops.BIT64}:
        return str(int.from_bytes(body, "big"))
    # With the column's character set in front, so that no bytes are converted.
    return f"_{column.charset or 'binary'} 0x{body.hex()}" if body else "''"


def key_text(column: ColumnPlan, raw: bytes) -> str:
    """The value as text for messages."""
    if column.op >= ops.UUID:
        return hidden_text(column.op, raw[_length_bytes(raw) :])
    if column.op in {ops.VARCHAR, ops.BLOB, ops.FIXED_BINARY}:
        return raw[_length_bytes(raw) :].decode("utf-8", "backslashreplace")
    return key_literal(column, raw).strip("'")


def _length_bytes(raw: bytes) -> int:
    return {252: 3, 253: 4, 254: 9}.get(raw[0], 1)


def _float_literal(op: int, raw: bytes) -> str:
    [value] = struct.unpack("<f" if op == ops.FLOAT else "<d", raw)
    return repr(value)


def _temporal_literal(op: int, raw: bytes) -> str:
    size = raw[0]
    body = raw[1 : 1 + size].ljust(12, b"\0")
    if op == ops.TIME:
        hours = int.from_bytes(body[1:5], "little") * 24 + body[5]
        micros = int.from_bytes(body[8:12], "little")
        sign = "-" if body[0] else ""
        return f"'{sign}{hours:02d}:{body[6]:02d}:{body[7]:02d}.{micros:06d}'"
    date = f"{int.from_bytes(body[0:2], 'little'):04d}-{body[2]:02d}-{body[3]:02d}"
    if op == ops.DATE:
        return f"'{date}'"
    micros = int.from_bytes(body[7:11], "little")
    return f"'{date} {body[4]:02d}:{body[5]:02d}:{body[6]:02d}.{micros:06d}'"
