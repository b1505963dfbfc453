"""A table's rows as raw bytes, in chunks by primary key, read from several servers in step."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from databases.sql import quoted
from resharding.apply.routing import Route
from resharding.plan.tables import TableDefinition
from topics.records.table_shape import ValueKind
from topics.records.vevent import Value

# Rows held in memory per place.
CHUNK_ROWS: Final = 1_000

_TEXT: Final = frozenset(("char", "varchar", "tinytext", "text", "mediumtext", "longtext"))
_BYTES: Final = frozenset(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"))
_NUMBERS: Final = frozenset(
    ("tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "year", "bit")
)

Key = tuple[str, ...]  # of a row, as literals


@dataclass(frozen=True, slots=True)
class RawRow:
    """A row as the server holds it: `values` in the bytes of its own character sets."""

    key: tuple[bytes, ...]
    sharding: Value
    values: tuple[bytes | None, ...]


class TableReader:
    """Reads the rows of one table for comparison, from any place that has it."""

    def __init__(self, table: TableDefinition, route: Route) -> None:
        """`table`: as sources and targets both define it, with a primary key."""
        self.table = table
        types = {column.name: column.data_type for column in table.columns}
        self._key_types = [types[name] for name in table.key]
        self._keys = [quoted(name) for name in table.key]
        self._key_expressions = [_exact(n, types[n]) for n in table.key]
        sharding = route.column
        self._sharding = _exact(sharding, types[sharding])
        column = next(c for c in table.columns if c.name == sharding).as_column()
        self._sharding_kind = None if column is None else column.kind
        self.names: list[str] = []
        self._values: list[str] = []
        for name, data_type in types.items():
            self._add(name, quoted(name))
            if data_type in {"float", "double"}:
                self._add(name, f"{quoted(name)} + 0.0e0")  # all digits, which the text has not
            if data_type in {"enum", "set"}:
                self._add(name, f"{quoted(name)} + 0")

    def _add(self, name: str, expression: str) -> None:
        self.names.append(name)
        self._values.append(expression)

    def bound(self, places: Iterable["Place"], after: Key | None) -> Key | None:
        """A key up to which no place has more than CHUNK_ROWS rows; None: all the rest fits."""
        bound = None
        for place in places:
            query = (
                f"SELECT {', '.join(self._key_expressions)} FROM {place.table} "
                f"{self._where(after, bound)} ORDER BY {', '.join(self._keys)} "
                f"LIMIT 1 OFFSET {CHUNK_ROWS - 1}"
            )
            found = place.query(query)
            if found:
                bound = tuple(map(_literal, found[0], self._key_types))
        return bound

    def rows(self, place: "Place", after: Key | None, bound: Key | None) -> Iterator[RawRow]:
        """The rows after `after`, up to and including `bound`."""
        names = (*self._keys, self._sharding, *self._values)
        query = f"SELECT {', '.join(names)} FROM {place.table} {self._where(after, bound)}"
        keys = len(self._keys)
        for row in place.query(query):
            yield RawRow(row[:keys], self._sharding_value(row[keys]), row[keys + 1 :])

    def _sharding_value(self, raw: bytes | None) -> Value:
        if raw is None or self._sharding_kind is ValueKind.BYTES:
            return raw
        return raw.decode() if self._sharding_kind is ValueKind.STRING else int(raw)

    def _where(self, after: Key | None, bound: Key | None) -> str:
        terms = []
        if after is not None:
            terms.append(_compared(self._keys, after, ">", or_equal=False))
        if bound is not None:
            terms.append(_compared(self._keys, bound, "<", or_equal=True))
        return f"WHERE {' AND '.join(terms)}" if terms else ""


@dataclass(frozen=True, slots=True)
class Place:
    """A table on a server: a connection that returns raw bytes, and the table's name there."""

    connection: Any
    table: str

    def query(self, query: str) -> list[tuple[Any, ...]]:
        """All rows of a query."""
        with self.connection.cursor() as cursor:
            cursor.execute(query)
            return list(cursor.fetchall())


def give_bytes(connection: Any) -> None:
    """Make a connection return the bytes that the server stores, not Python values."""
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION character_set_results = NULL")
    connection.use_unicode = False
    connection.decoders = {}


def _exact(name: str, data_type: str) -> str:
    """An expression for a column whose bytes `_literal` and vindexes can use."""
    if data_type in _TEXT:
        return f"CONVERT({quoted(name)} USING utf8mb4)"
    return f"{quoted(name)} + 0" if data_type == "bit" else quoted(name)


def _literal(raw: bytes, data_type: str) -> str:
    if data_type in _NUMBERS:
        return raw.decode()
    return f"x'{raw.hex()}'" if data_type in _BYTES else f"_utf8mb4 x'{raw.hex()}'"


def _compared(columns: Sequence[str], key: Key, sign: str, *, or_equal: bool) -> str:
    """The condition that a key precedes or follows another.

    Spelled out by column: servers scan the whole table for a comparison of tuples.
    """
    alternatives = []
    for i in range(len(columns)):
        last = sign + "=" if or_equal and i == len(columns) - 1 else sign
        equal = [f"{columns[j]} = {key[j]}" for j in range(i)]
        alternatives.append(" AND ".join([*equal, f"{columns[i]} {last} {key[i]}"]))
    return "(" + " OR ".join(f"({part})" for part in alternatives) + ")"
