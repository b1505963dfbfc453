"""What a preflight asks of the servers of a shard, with the account of fresh reads."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from caching.findings import Findings
from caching.reading.connections import OpenConnection, Server
from caching.reading.snapshots import Opening, Snapshots, transaction
from databases.errors import ServerLost, ServerRefused
from databases.internal_tables import HEARTBEAT
from event_token import Flavor, UsageError

# gtid_mode may also be ON_PERMISSIVE, with transactions that have no GTID.
_ON: Final = frozenset({"1", "ON"})
TIMES_GRANT: Final = "GRANT SELECT ON `_shardstream`.* TO the account"


@dataclass(frozen=True, slots=True)
class Asked:
    """A shard as its reader knows it; `times`: see `time_columns`."""

    keyspace: str
    shard: str
    flavor: Flavor
    snapshots: Snapshots
    times: str


def check_servers(asked: Asked, servers: Sequence[Server]) -> Findings:
    """Return what keeps reads from being proven, and what makes them prove less.

    A server that does not answer is a warning, unless it is
    all of them.
    """
    where = f"{asked.keyspace}/{asked.shard}"
    found = Findings()
    lost: list[str] = []
    has_primary = False
    for server in servers:
        try:
            with server.connection() as opened:
                opening = asked.snapshots.begin(opened, asked.times)
                with transaction(opened):
                    found.add(_of_server(asked, opened, opening))
                has_primary |= opening.is_primary
        except ServerLost as fault:
            lost.append(f"{where}: {fault}")
        except (ServerRefused, UsageError) as fault:
            found.problems.append(f"{where}: {fault}")
    if len(lost) == len(servers):
        found.problems += lost
    else:
        found.warnings += lost
        if not has_primary and not lost and not found.problems:
            found.warnings.append(
                f"{where}: none of its servers is a primary, which own writes and keys that change "
                f"often are read from. Fix: add it as the last one"
            )
    return found


def _of_server(asked: Asked, opened: OpenConnection, opening: Opening) -> Findings:
    found = Findings()
    here = f"{asked.keyspace}/{asked.shard} {opening.server}"
    for name, value in server_settings(asked.flavor, is_primary=opening.is_primary).items():
        [(is_set,)] = opened.ask(f"SELECT @@GLOBAL.{name}")
        if str(is_set).upper() not in _ON:
            found.problems.append(f"{here}: {name}={is_set}. Fix: {value}")
    time = opening.time
    if time is None:
        found.warnings.append(
            f"{here}: reads have no time, so they prove nothing across a reshard. Fix: "
            f"{TIMES_GRANT} (the producer's heartbeat rows create the tables)"
        )
    elif time.heartbeat_us and opening.timestamp_us is None and not time.has_ended:
        found.warnings.append(
            f"{here}: reads have no time, because commits do not show in the order of the log. "
            f"Fix: replica_preserve_commit_order=ON and binlog_order_commits=ON (MySQL), or one "
            f"GTID domain (MariaDB)"
        )
    shards = opened.ask_if_shown(f"SELECT shard FROM {HEARTBEAT} ORDER BY shard")
    names = [str(name) for (name,) in shards or ()]
    if names and asked.shard not in names:
        found.warnings.append(
            f"{here}: its heartbeat rows are of {', '.join(names)}. Fix: name the servers of "
            f"{asked.shard}, if it is none of them"
        )
    return found


def server_settings(flavor: Flavor, *, is_primary: bool) -> dict[str, str]:
    """Return the settings that have to be on, each with the statement that turns it on."""
    match flavor:
        case Flavor.MYSQL:
            return {"gtid_mode": "SET PERSIST gtid_mode = ON, by way of OFF_PERMISSIVE and "
                                 "ON_PERMISSIVE"}  # fmt: skip
        case Flavor.MARIADB:
            strict = {"gtid_strict_mode": "SET GLOBAL gtid_strict_mode = ON"}
            log = {"log_bin": "start the server with --log-bin"}
            return strict | log if is_primary else strict
