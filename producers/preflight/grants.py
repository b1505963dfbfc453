"""The privileges that the replication account needs."""

from typing import Final

from databases.grants import Account
from event_token import Flavor
from producers.errors import Problem
from producers.settings import ServerSettings

_NEEDED: Final = {
    Flavor.MYSQL: (
        ("REPLICATION SLAVE", "REPLICATION SLAVE", "the replication stream"),
        ("REPLICATION CLIENT", "REPLICATION CLIENT", "whether the server is a replica"),
    ),
    Flavor.MARIADB: (
        ("REPLICATION SLAVE", "REPLICATION SLAVE", "the replication stream"),
        ("REPLICATION CLIENT", "BINLOG MONITOR", "which binlogs are left (SHOW BINARY LOGS)"),
    ),
}


def missing_grants(account: Account, server: ServerSettings, flavor: Flavor) -> list[Problem]:
    """The privileges that the stream needs and the account lacks."""
    return [
        Problem(
            f"account {account.name} has no {named} privilege, needed for {purpose}",
            server.name,
            f"GRANT {named} ON *.* TO {account.name};",
        )
        for privilege, named, purpose in _NEEDED[flavor]
        if not account.has(privilege)
    ]
