"""Whether a server keeps what it has committed and streamed when its machine crashes.

A binlog that is not synced at each commit can lose its end. The server then gives the GTIDs of the
lost transactions to others, which a log that has those GTIDs already skips.
"""

from collections.abc import Mapping
from typing import Any, Final

from databases.sql import rows
from event_token import Flavor
from producers.errors import Problem
from producers.settings import ServerSettings

_SYNC_BINLOG: Final = "sync_binlog"
_FLUSH_LOG: Final = "innodb_flush_log_at_trx_commit"
# 3 on MariaDB flushes twice per commit, as its versions before group commit did.
_DURABLE: Final[Mapping[Flavor, Mapping[str, tuple[str, ...]]]] = {
    Flavor.MYSQL: {_SYNC_BINLOG: ("1",), _FLUSH_LOG: ("1",)},
    Flavor.MARIADB: {_SYNC_BINLOG: ("1",), _FLUSH_LOG: ("1", "3")},
}
_FIX: Final = {
    Flavor.MYSQL: "SET PERSIST {} = 1;",
    Flavor.MARIADB: "SET GLOBAL {} = 1; and the same in the server's option file;",
}


def durability_problems(connection: Any, server: ServerSettings, flavor: Flavor) -> list[Problem]:
    """List the variables by which a primary may lose committed transactions in a crash."""
    return [
        Problem(
            f"{name} is {value}: a crash of the server's machine can lose committed transactions, "
            "and others then get their GTIDs, which the log would skip",
            server.name,
            f"{_FIX[flavor].format(name)} or set accept_loss_at_server_crash = true",
        )
        for name, value in _not_durable(connection, flavor)
    ]


def durability_warnings(connection: Any, server: ServerSettings, flavor: Flavor) -> list[str]:
    """The same of a replica, which can fetch again what it loses, until it is promoted."""
    return [
        f"{server.name}: {name} is {value} on this replica; once it is promoted, a crash of its "
        f"machine can lose committed transactions, and it will be refused: "
        f"{_FIX[flavor].format(name)}"
        for name, value in _not_durable(connection, flavor)
    ]


def _not_durable(connection: Any, flavor: Flavor) -> list[tuple[str, str]]:
    durable = _DURABLE[flavor]
    names = ", ".join(f"'{name}'" for name in durable)
    found = rows(connection, f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})")
    values = [(str(name), str(value)) for name, value in found]
    return [(name, value) for name, value in values if value not in durable[name]]
