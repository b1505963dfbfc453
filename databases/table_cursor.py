"""A place in a table by its key, with what gives it a meaning: the definition, and the table.

A literal says where a table was left only as long as its key's types, collations, labels and
directions are the same, and the name belongs to the same rows. Each part of a table is therefore
read in one transaction that keeps definitions away, and compared there with the cursor.
"""

from dataclasses import dataclass
from typing import Any, Final

from pymysql.constants import ER
from pymysql.err import MySQLError

from databases.connection import error_code
from databases.errors import TableChanged
from databases.server_facts import facts_of
from databases.sql import quoted, rows
from event_token import Flavor

# InnoDB's ids of tablespaces, which have the tables' own names. Where tables share a tablespace
# (innodb_file_per_table=OFF) there is none.
_MYSQL_IDS: Final = (
    "SELECT prefix, name, space FROM information_schema.innodb_tablespaces_brief "
    "JOIN (SELECT CONCAT(%s, '/', %s) AS prefix) AS wanted "
    "WHERE LEFT(name, CHAR_LENGTH(prefix)) = prefix"
)
# InnoDB's ids of tables, whose names are those of files.
_MARIADB_IDS: Final = (
    "SELECT prefix, name, table_id FROM information_schema.innodb_sys_tables "
    "JOIN (SELECT CONCAT(CONVERT(CAST(CONVERT(%s USING filename) AS BINARY) USING utf8mb3), '/', "
    "CONVERT(CAST(CONVERT(%s USING filename) AS BINARY) USING utf8mb3)) AS prefix) AS wanted "
    "WHERE LEFT(name, CHAR_LENGTH(prefix)) = prefix"
)
_CREATED: Final = (
    "SELECT create_time FROM information_schema.tables WHERE table_schema = %s AND table_name = %s"
)
# No PROCESS, or a service that has no such view.
_NO_IDS: Final = frozenset({ER.SPECIFIC_ACCESS_DENIED_ERROR, ER.UNKNOWN_TABLE})
# Behind a table's name begins that of a partition.
_PARTITION: Final = "#p#"


@dataclass(frozen=True, slots=True)
class TableCursor:
    """Where a table was left.

    `after`: the last key, as SQL literals in the order of the key. `definition`: of all columns and
    of the key, as text that is equal where they are. `identity`: see `table_identity`; empty where
    it was not asked for.
    """

    after: tuple[str, ...]
    definition: str
    identity: tuple[str, ...] = ()

    def check_definition(self, name: str, definition: str) -> None:
        """TableChanged, naming the table, if it has another definition now."""
        if definition != self.definition:
            raise TableChanged(f"table {name} has another definition now")

    def check_identity(self, name: str, identity: tuple[str, ...]) -> None:
        """TableChanged, naming the table, if it is another one now, or was rebuilt."""
        if not is_same_table(self.identity, identity):
            raise TableChanged(f"table {name} was replaced or rebuilt")


def is_same_table(before: tuple[str, ...], now: tuple[str, ...]) -> bool:
    """Tell whether two identities may be those of one table. Pure.

    Those of two servers cannot be compared, and one that is empty with none. Partitions come and
    go; those that stay keep their ids.
    """
    if not before or not now or before[0] != now[0]:
        return True
    then, there = (dict(part.rsplit("=", 1) for part in each[1:]) for each in (before, now))
    both = then.keys() & there.keys()
    return bool(both) and all(then[part] == there[part] for part in both)


def hold_definition(connection: Any, database: str, table: str) -> None:
    """Keep definitions of a table away until the open transaction ends. MySQLError as a SELECT."""
    rows(connection, f"SELECT 1 FROM {quoted(database)}.{quoted(table)} LIMIT 0")


def table_identity(connection: Any, flavor: Flavor, database: str, table: str) -> tuple[str, ...]:
    """What tells a table from another one of its name: the server, then `part=id` of each part.

    InnoDB's ids need PROCESS, and last until the table is rebuilt. Without it, and for other
    engines, the time of creation stands for them, which any ALTER may change.
    """
    server = facts_of(flavor).own_name(connection)
    ids = _ids(connection, flavor, database, table)
    if not ids:
        [(created,)] = rows(connection, _CREATED, (database, table)) or [(None,)]
        ids = [f"created={created}"]
    return (server, *ids)


def _ids(connection: Any, flavor: Flavor, database: str, table: str) -> list[str]:
    query = _MYSQL_IDS if flavor is Flavor.MYSQL else _MARIADB_IDS
    try:
        found = rows(connection, query, (database, table))
    except MySQLError as error:
        if error_code(error) not in _NO_IDS:
            raise
        return []
    # Some collations of the catalog do not distinguish cases.
    return sorted(
        f"{name.removeprefix(prefix)}={int(number)}"
        for prefix, name, number in found
        if name == prefix
        or (name.startswith(prefix) and name.removeprefix(prefix).lower().startswith(_PARTITION))
    )
