"""The rows of a merge that wait aside on its target, in a table of `_shardstream`.

Two sources never hold the same key or unique value at one moment, but a target reads their logs in
another order than they were written in. A row that another source's row excludes waits here, as SQL
text, until that one is gone: at any position of the sources, the target's tables and these rows are
together exactly the rows of the sources. They move in the transactions that move the checkpoint.
"""

from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass
from typing import Any, Final

from pymysql.err import MySQLError

from databases.connection import error_text, rows_if_there
from databases.internal_tables import ASIDE, LAST_ASIDE
from databases.sql import quoted, rows, text_literal
from event_token import StreamPosition
from resharding.bookkeeping import VerifyResult

# Rows that are named in a message.
NAMED_MAX: Final = 10
# Rows in memory at once.
PAGE_ROWS: Final = 1_000
_COLUMNS: Final = (
    "source_shard, database_name, table_name, key_digest, row_key, column_names, row_values, "
    "error_labels"
)


@dataclass(frozen=True, slots=True)
class AsidePlace:
    """The rows of one table of one source."""

    source: str
    database: str
    table: str

    def condition(self, reshard_id: str) -> str:
        """The condition that a row of ASIDE is one of them."""
        return (
            f"reshard_id = {text_literal(reshard_id)} AND source_shard = "
            f"{text_literal(self.source)} AND database_name = {text_literal(self.database)} "
            f"AND table_name = {text_literal(self.table)}"
        )


@dataclass(frozen=True, slots=True)
class AsideRow:
    """A row that waits aside.

    `digest`: of its key as literals. `key`: for people. `columns`, `values`: what INSERT INTO
    takes. `error_labels`: number of ENUM error values in it.
    """

    place: AsidePlace
    digest: bytes
    key: str
    columns: str
    values: str
    error_labels: int

    @property
    def insert(self) -> str:
        """INSERT INTO up to its values."""
        table = f"{quoted(self.place.database)}.{quoted(self.place.table)}"
        return f"INSERT INTO {table} ({self.columns}) VALUES "

    @property
    def name(self) -> str:
        """The row in words."""
        place = self.place
        return f"{place.database}.{place.table}, {self.key}, of shard {place.source}"


def aside_pages(connection: Any, reshard_id: str, place: AsidePlace) -> Iterator[list[AsideRow]]:
    """The rows of a place, up to PAGE_ROWS at a time; those of a page may be removed meanwhile."""
    after = b""
    while True:
        found = rows(
            connection,
            f"SELECT {_COLUMNS} FROM {ASIDE} WHERE {place.condition(reshard_id)} "
            f"AND key_digest > x'{after.hex()}' ORDER BY key_digest LIMIT {PAGE_ROWS}",
        )
        page = [AsideRow(place, *rest) for _, _, _, *rest in found]
        if page:
            yield page
        if len(page) < PAGE_ROWS:
            return
        after = page[-1].digest


def read_aside(connection: Any, reshard_id: str) -> Iterator[AsideRow]:
    """The rows of a reshard that wait aside on a target."""
    for place in sorted(aside_keys(connection, reshard_id) or {}, key=astuple):
        for page in aside_pages(connection, reshard_id, place):
            yield from page


def aside_keys(connection: Any, reshard_id: str) -> dict[AsidePlace, set[bytes]] | None:
    """The digests of the rows that wait aside; None where the table does not exist yet."""
    found = rows_if_there(
        connection,
        f"SELECT source_shard, database_name, table_name, key_digest FROM {ASIDE} "
        f"WHERE reshard_id = %s",
        (reshard_id,),
    )
    if found is None:
        return None
    keys: dict[AsidePlace, set[bytes]] = {}
    for source, database, table, digest in found:
        keys.setdefault(AsidePlace(source, database, table), set()).add(digest)
    return keys


def count_aside(connection: Any, reshard_id: str) -> int:
    """How many rows wait aside on a target."""
    query = f"SELECT COUNT(*) FROM {ASIDE} WHERE reshard_id = %s"
    found = rows_if_there(connection, query, (reshard_id,))
    return int(found[0][0]) if found else 0


def put_aside_statement(reshard_id: str, row: AsideRow) -> str:
    """The statement that sets a row aside, in place of one of its source with this key."""
    place = row.place
    texts = (reshard_id, place.source, place.database, place.table)
    values = [text_literal(text) for text in texts]
    values.append(f"x'{row.digest.hex()}'")
    values += [text_literal(text) for text in (row.key, row.columns, row.values)]
    return (
        f"REPLACE INTO {ASIDE} (reshard_id, {_COLUMNS}) "
        f"VALUES ({', '.join(values)}, {row.error_labels})"
    )


def remove_aside_statement(reshard_id: str, place: AsidePlace, digests: Iterable[bytes]) -> str:
    """The statement that removes rows of one place."""
    listed = ", ".join(f"x'{digest.hex()}'" for digest in digests)
    return f"DELETE FROM {ASIDE} WHERE {place.condition(reshard_id)} AND key_digest IN ({listed})"


def last_aside_statement(reshard_id: str, position: StreamPosition) -> str:
    """The statement that notes where a row was set aside."""
    return (
        f"REPLACE INTO {LAST_ASIDE} VALUES "
        f"({text_literal(reshard_id)}, {text_literal(position.to_string())})"
    )


def was_set_aside_since(connection: Any, reshard_id: str, verified: VerifyResult) -> bool:
    """Whether a row was set aside behind the position that was compared."""
    query = f"SELECT position FROM {LAST_ASIDE} WHERE reshard_id = %s"
    found = rows_if_there(connection, query, (reshard_id,))
    if not found:
        return False
    compared = StreamPosition.from_string(verified.position).shards
    last = StreamPosition.from_string(found[0][0]).shards
    return any(at.seq > compared[source].seq for source, at in last.items() if source in compared)


def in_the_way(connection: Any, waiting: Iterable[AsideRow]) -> list[str]:
    """What keeps rows aside, in words: the row, and what the server says of the other one.

    Each is inserted and taken back, on a connection without an open transaction.
    """
    said = []
    for row in waiting:
        connection.begin()
        try:
            rows(connection, row.insert + row.values)
            why = "nothing is in its way any more, so the applier brings it back"
        except MySQLError as error:
            why = error_text(error)
        finally:
            connection.rollback()
        said.append(f"{row.name} ({why})")
    return said
