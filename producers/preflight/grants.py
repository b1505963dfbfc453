"""What the replication account may do, read from the server's own words."""

import re
from dataclasses import dataclass
from typing import Any, Final

from event_token import Flavor
from producers.errors import Problem
from producers.servers.flavor import rows
from producers.settings import ServerSettings

# `GRANT a, b ON *.* TO ...`: privileges on everything; those on single schemas do not count here.
_GLOBAL_GRANT: Final = re.compile(r"GRANT (.+?) ON \*\.\* TO ", re.IGNORECASE)
# MariaDB 10.5 gave it a new name and takes the old one still.
_SAME: Final = {"BINLOG MONITOR": "REPLICATION CLIENT", "REPLICATION REPLICA": "REPLICATION SLAVE"}

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


@dataclass(frozen=True, slots=True)
class Account:
    """The account that the server took the connection for, and its global privileges."""

    name: str
    privileges: frozenset[str]

    def has(self, privilege: str) -> bool:
        """Whether the account may do it on everything."""
        return privilege in self.privileges or "ALL PRIVILEGES" in self.privileges


def read_account(connection: Any) -> Account:
    """The account with the privileges that are granted to it or to its active roles."""
    [(who,)] = rows(connection, "SELECT CURRENT_USER()")
    user, _, host = str(who).rpartition("@")
    lines = [str(line) for (line,) in rows(connection, "SHOW GRANTS")]
    return Account(f"'{user}'@'{host}'", global_privileges(lines))


def global_privileges(lines: list[str]) -> frozenset[str]:
    """The privileges on *.* in the lines of SHOW GRANTS, in upper case. Pure."""
    found = set()
    for line in lines:
        match = _GLOBAL_GRANT.match(line)
        if match:
            names = (name.strip().upper() for name in match[1].split(","))
            found |= {_SAME.get(name, name) for name in names}
    return frozenset(found)


def privileges_on(connection: Any, schema: str) -> frozenset[str]:
    """The privileges that the account has on a whole schema, those on everything included."""
    # An underscore is a wildcard in a grant, unless it is escaped.
    lines = [str(line).replace("\\_", "_") for (line,) in rows(connection, "SHOW GRANTS")]
    on_schema = re.compile(rf"GRANT (.+?) ON `{schema}`\.\* TO ", re.IGNORECASE)
    matches = filter(None, map(on_schema.match, lines))
    names = {name.strip().upper() for match in matches for name in match[1].split(",")}
    return global_privileges(lines) | names


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
