"""Who runs a server: how its settings are changed, and where it says how long binlogs are kept.

What is known of the services is their documentation; `docs/managed.md` says so.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pymysql.constants import ER
from pymysql.err import MySQLError

from databases.connection import error_code
from databases.error_codes import ACCESS_REFUSED
from databases.server import Platform
from databases.sql import rows
from event_token import Flavor

# A plain server has none of these variables, and its basedir is not that of a service.
_ASK: Final = (
    "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('aurora_version', 'basedir', 'version_comment') "
    "OR Variable_name LIKE 'cloudsql\\_%' OR Variable_name LIKE 'azure\\_%'"
)


def recognise(connection: Any) -> Platform:
    """Ask a server by whom it is run."""
    return platform_of({str(name): str(value) for name, value in rows(connection, _ASK)})


def platform_of(variables: Mapping[str, str]) -> Platform:
    """By whom a server with these global variables is run. Pure."""
    names = [name.lower() for name in variables]
    if "aurora_version" in names:
        return Platform.AURORA
    if "rdsdbbin" in variables.get("basedir", "").split("/"):
        return Platform.RDS
    is_google = "(google)" in variables.get("version_comment", "").lower()
    if is_google or any(name.startswith("cloudsql_") for name in names):
        return Platform.CLOUD_SQL
    if any(name.startswith("azure_") for name in names):
        return Platform.AZURE
    return Platform.PLAIN


RETENTION: Final = "retention"
# A week: a producer that has stopped before a long weekend can go on after it.
_KEPT_HOURS: Final = 168
_KEPT_S: Final = _KEPT_HOURS * 3_600

_AZURE: Final = (
    "az mysql flexible-server parameter set --resource-group GROUP --server-name SERVER "
    "--name {name} --value {value}"
)
_CLOUD_SQL: Final = (
    "gcloud sql instances patch INSTANCE --database-flags={name}={value} (with all flags that the "
    "instance has, for this replaces them)"
)
_STEP_BY_STEP: Final = "one step at a time: OFF_PERMISSIVE, ON_PERMISSIVE, ON"
# How a variable is set: on a plain server by its family, else by the service.
_WAYS: Final[Mapping[Flavor | Platform, str]] = {
    Flavor.MYSQL: "SET PERSIST {name} = {value};",
    Flavor.MARIADB: "SET GLOBAL {name} = {value}; and the same in the server's option file",
    Platform.RDS: (
        "in the DB parameter group of the instance set {name} = {value} (static parameters need a "
        "reboot of the instance)"
    ),
    Platform.AURORA: (
        "in the DB cluster parameter group set {name} = {value} (static parameters need a reboot "
        "of the writer)"
    ),
    Platform.CLOUD_SQL: _CLOUD_SQL,
    Platform.AZURE: _AZURE,
}
_RDS_RETENTION: Final = (
    f"CALL mysql.rds_set_configuration('binlog retention hours', {_KEPT_HOURS});"
)
# Settings that are set in another way there, or cannot be set at all.
_OTHER_WAYS: Final[Mapping[tuple[Flavor | Platform, str], str]] = {
    (Flavor.MYSQL, "log_bin"): "start the server with --log-bin",
    (Flavor.MARIADB, "log_bin"): "start the server with --log-bin",
    (Platform.RDS, "log_bin"): (
        "turn on automated backups, with which RDS writes a binlog: aws rds modify-db-instance "
        "--db-instance-identifier INSTANCE --backup-retention-period 7 --apply-immediately"
    ),
    (Platform.AURORA, "log_bin"): (
        "in the DB cluster parameter group set binlog_format = ROW, and reboot the writer; on a "
        "reader Aurora writes no binlog: name the cluster endpoint or the writer"
    ),
    (Platform.CLOUD_SQL, "log_bin"): "gcloud sql instances patch INSTANCE --enable-bin-log",
    (Platform.AZURE, "log_bin"): "Azure writes it on each server that is no replica: name that one",
    (Flavor.MYSQL, "gtid_mode"): (
        "SET PERSIST enforce_gtid_consistency = ON; then gtid_mode "
        f"{_STEP_BY_STEP} (SET PERSIST gtid_mode = ...)"
    ),
    (Platform.CLOUD_SQL, "gtid_mode"): "Cloud SQL always has GTIDs on: ask its support",
    (Platform.AZURE, "gtid_mode"): (
        f"{_AZURE.format(name='enforce_gtid_consistency', value='ON')}; then the same with "
        f"--name gtid_mode, {_STEP_BY_STEP}"
    ),
    (Platform.CLOUD_SQL, "binlog_format"): (
        "Cloud SQL always logs rows; look who has set it for the whole server"
    ),
    (Platform.AZURE, "binlog_format"): "Azure always logs rows: ask its support",
    (Platform.AZURE, "binlog_row_metadata"): (
        'Azure lets nobody set it: set metadata = "proved" in [producer]; docs/managed.md#azure '
        "says what that means"
    ),
    (Flavor.MYSQL, RETENTION): f"SET PERSIST binlog_expire_logs_seconds = {_KEPT_S};",
    (Flavor.MARIADB, RETENTION): (
        f"SET GLOBAL expire_logs_days = {_KEPT_HOURS // 24}; and the same in the option file"
    ),
    (Platform.RDS, RETENTION): _RDS_RETENTION,
    (Platform.AURORA, RETENTION): _RDS_RETENTION,
    (Platform.CLOUD_SQL, RETENTION): (
        _CLOUD_SQL.format(name="binlog_expire_logs_seconds", value=_KEPT_S)
    ),
    (Platform.AZURE, RETENTION): _AZURE.format(name="binlog_expire_logs_seconds", value=_KEPT_S),
}


def way_to_set(platform: Platform, flavor: Flavor, name: str, value: str = "") -> str:
    """How a variable, or RETENTION, is set on a server, as its users type it. Pure."""
    who = flavor if platform is Platform.PLAIN else platform
    return _OTHER_WAYS.get((who, name)) or _WAYS[who].format(name=name, value=value)


@dataclass(frozen=True, slots=True)
class Retention:
    """For how long a server keeps binlogs.

    `kept_s`: in seconds; 0 where they may go as soon as the service needs them no more; None for
    ever, or where `unseen` says why that cannot be seen.
    """

    kept_s: int | None
    unseen: str = ""


_EXPIRY: Final = (
    "binlog_expire_logs_seconds",
    "expire_logs_days",
    "binlog_expire_logs_auto_purge",
)
_RDS_HOURS: Final = (
    "SELECT value FROM mysql.rds_configuration WHERE name = 'binlog retention hours'"
)
# Whether a statement may be executed at all is the answer.
NOT_SHOWN: Final = ACCESS_REFUSED | {ER.NO_SUCH_TABLE, ER.BAD_DB_ERROR, ER.NOT_SUPPORTED_YET}


def read_retention(connection: Any, platform: Platform) -> Retention:
    """Ask a server, or the place where its service says it, for how long binlogs are kept."""
    if platform in {Platform.RDS, Platform.AURORA}:
        return _rds_retention(connection)
    names = ", ".join(f"'{name}'" for name in _EXPIRY)
    found = rows(connection, f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})")
    kept_s = kept_seconds({str(name): str(value) for name, value in found})
    # Azure deletes a binlog as soon as no replica and no backup needs it, unless this is set.
    return Retention(0 if kept_s is None and platform is Platform.AZURE else kept_s)


def _rds_retention(connection: Any) -> Retention:
    """The variables of an instance say nothing of what RDS does. NULL: as soon as possible."""
    try:
        found = rows(connection, _RDS_HOURS)
    except MySQLError as error:
        if error_code(error) not in NOT_SHOWN:
            raise
        return Retention(None, "mysql.rds_configuration may not be read")
    [(hours,)] = found or [(None,)]
    return Retention(int(hours or 0) * 3_600)


def kept_seconds(variables: Mapping[str, str]) -> int | None:
    """For how long a server with these variables keeps binlogs; None for ever. Pure."""
    if variables.get("binlog_expire_logs_auto_purge", "ON") in {"OFF", "0"}:
        return None
    days = float(variables.get("expire_logs_days", "0"))
    seconds = int(variables.get("binlog_expire_logs_seconds", "0")) or int(days * 86_400)
    return seconds or None
