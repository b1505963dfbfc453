"""Filters by which a server omits changes from its binlog: of replication, and of the binlog.

A replica logs a transaction whose rows were filtered under the same GTID, so GTID sets do not
show the omission.
"""

from collections.abc import Mapping
from typing import Any, Final

from databases.replica_status import StatusNotShown, replica_status
from databases.server_facts import version_of
from databases.sql import named_rows, rows
from event_token import Flavor
from producers.errors import Problem
from producers.replication.family import ServerFamily
from producers.settings import ServerSettings

_MYSQL_SAYS_BINARY_LOG_STATUS: Final = (8, 2, 0)
# Reported beside the filters, and harmless with these values (in upper case).
_HARMLESS: Final = {
    "replicate_annotate_row_events": ("ON", "OFF"),
    "replicate_events_marked_for_skip": ("REPLICATE",),
}
_IGNORED_TABLES: Final = ("replicate_ignore_table", "replicate_wild_ignore_table")
# Hosted servers keep their state in tables of this schema, and do not replicate those.
_SYSTEM_TABLES: Final = "mysql."


def filter_problems(connection: Any, server: ServerSettings, family: ServerFamily) -> list[Problem]:
    """List each filter of a server. On MySQL the account must be able to read replica status."""
    [(version,)] = rows(connection, "SELECT @@version")
    states = named_rows(connection, binlog_status_statement(str(version)))
    if family.flavor is Flavor.MARIADB:
        # For the default connection; the status of all connections needs one more privilege.
        names = "SHOW GLOBAL VARIABLES LIKE 'replicate\\_%'"
        states.append({str(name): value for name, value in rows(connection, names)})
    if family.flavor is Flavor.MYSQL or family.is_replica(connection):
        try:
            states += replica_status(connection, server)
        except StatusNotShown as error:
            what = "the account may not see this replica's filters, which would omit changes"
            return [*_problems(states, server), Problem(what, server.name, error.fix)]
    return _problems(states, server)


def binlog_status_statement(version: str) -> str:
    """The statement that shows the binlog filters of a server of that `@@version`. Pure."""
    is_new = "mariadb" not in version.lower() and (
        version_of(version) >= _MYSQL_SAYS_BINARY_LOG_STATUS
    )
    return "SHOW BINARY LOG STATUS" if is_new else "SHOW MASTER STATUS"


def filters_in(state: Mapping[str, Any]) -> dict[str, str]:
    """The filters among a server's status fields, by their names in lower case. Pure."""
    found = {}
    for field, value in state.items():
        name, text = field.lower(), str(value or "").strip()
        if not name.startswith(("replicate_", "binlog_do_db", "binlog_ignore_db")):
            continue
        if text and not _is_harmless(name, text):
            found[name] = text
    return found


def _is_harmless(name: str, text: str) -> bool:
    if name in _IGNORED_TABLES:
        return all(table.strip().startswith(_SYSTEM_TABLES) for table in text.split(","))
    return text.upper() in _HARMLESS.get(name, ())


def _problems(states: list[dict[str, Any]], server: ServerSettings) -> list[Problem]:
    found: dict[str, str] = {}
    for state in states:
        found |= filters_in(state)
    return [_problem(name, value, server) for name, value in found.items()]


def _problem(name: str, value: str, server: ServerSettings) -> Problem:
    if name.startswith("binlog_"):
        what = f"{name} is {value}: changes of other databases are not in the binlog"
        if name == "binlog_ignore_db":
            what = f"{name} is {value}: changes of these databases are not in the binlog"
        fix = f"remove {name} from the server's option file, restart it, and copy the tables again"
        return Problem(what, server.name, fix)
    what = f"{name} is {value}: this server's binlog lacks or renames what its source has logged"
    fix = (
        f"follow a server without filters; or remove {name} here and from the server's option "
        "file, rebuild the server from its source and copy the tables again"
    )
    return Problem(what, server.name, fix)
