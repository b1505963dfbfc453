"""What makes the binlog of a replica differ from its source's."""

from collections.abc import Mapping
from typing import Any, Final

from databases.grants import Account
from databases.sql import rows
from producers.errors import Problem
from producers.preflight.binlog_filters import filter_problems
from producers.replication.family import ServerFamily
from producers.settings import ServerSettings

# By both names: MySQL calls replicas slaves until 8.0.26, MariaDB always does.
_SKIP_ERRORS: Final = ("slave_skip_errors", "replica_skip_errors")
_EXEC_MODE: Final = ("slave_exec_mode", "replica_exec_mode")
_LOG_UPDATES: Final = ("log_slave_updates", "log_replica_updates")


def replication_problems(
    connection: Any,
    server: ServerSettings,
    family: ServerFamily,
    account: Account,
    *,
    is_replica: bool,
) -> list[Problem]:
    """A replica must apply and log all that its source logs, else its binlog lacks rows."""
    if not account.has("REPLICATION CLIENT"):
        return []  # The missing grant is listed already.
    problems = filter_problems(connection, server, family)
    if is_replica:
        names = ", ".join(f"'{name}'" for name in (*_SKIP_ERRORS, *_EXEC_MODE, *_LOG_UPDATES))
        found = rows(connection, f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})")
        variables = {str(name): str(value) for name, value in found}
        problems += [Problem(what, server.name, fix) for what, fix in variable_faults(variables)]
    return problems


def variable_faults(variables: Mapping[str, str]) -> list[tuple[str, str]]:
    """What is wrong with a replica's variables, each with its fix. Pure."""
    faults = []
    skipped = {variables.get(name, "OFF") for name in _SKIP_ERRORS} - {"OFF", ""}
    if skipped:
        what = (
            f"slave_skip_errors is {skipped.pop()}: changes that this replica could not apply are "
            "not in its binlog"
        )
        fix = "remove it (or replica_skip_errors) from the option file, and rebuild the replica"
        faults.append((what, fix))
    lenient = [name for name in _EXEC_MODE if variables.get(name, "").upper() == "IDEMPOTENT"]
    if lenient:
        what = (
            f"{lenient[0]} is IDEMPOTENT: changes of rows that this replica lacks are dropped "
            "without an error and are not in its binlog"
        )
        fix = (
            f"SET GLOBAL {lenient[0]} = STRICT; and the same in the option file; then rebuild the "
            "replica, unless it is known to equal its source"
        )
        faults.append((what, fix))
    if not any(variables.get(name) == "ON" for name in _LOG_UPDATES):
        what = (
            "the server is a replica and does not log what it applies (log_replica_updates is OFF)"
        )
        fix = (
            "start it with --log-replica-updates (--log-slave-updates on older servers and MariaDB)"
        )
        faults.append((what, fix))
    return faults
