"""Which privileges an account has, as the server itself reports them."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from databases.sql import rows

# `GRANT a, b ON *.* TO ...`: privileges on everything; those on single schemas do not count here.
_GLOBAL_GRANT: Final = re.compile(r"GRANT (.+?) ON \*\.\* TO ", re.IGNORECASE)
# MariaDB 10.5 renamed these and still accepts the old names.
_RENAMED: Final = {
    "BINLOG MONITOR": "REPLICATION CLIENT",
    "REPLICATION REPLICA": "REPLICATION SLAVE",
}


@dataclass(frozen=True, slots=True)
class Account:
    """The account that the server authenticated, and its global privileges.

    `is_restricted`: some of them were revoked on single schemas (MySQL's partial revokes).
    """

    name: str
    privileges: frozenset[str]
    is_restricted: bool = False

    def has(self, privilege: str) -> bool:
        """Whether the account has the privilege on everything."""
        return privilege in self.privileges or "ALL PRIVILEGES" in self.privileges

    def has_everywhere(self, privilege: str) -> bool:
        """Whether the account has the privilege on everything, without an exception."""
        return self.has(privilege) and not self.is_restricted

    def missing(self, needed: Iterable[str]) -> list[str]:
        """The privileges among `needed` that the account lacks, in their order."""
        return [privilege for privilege in needed if not self.has(privilege)]


def read_account(connection: Any) -> Account:
    """The account with the privileges that are granted to it or to its active roles."""
    [(who,)] = rows(connection, "SELECT CURRENT_USER()")
    user, _, host = str(who).rpartition("@")
    lines = _grant_lines(connection)
    is_restricted = any(line.upper().startswith("REVOKE ") for line in lines)
    return Account(f"'{user}'@'{host}'", global_privileges(lines), is_restricted)


def global_privileges(lines: list[str]) -> frozenset[str]:
    """The privileges on *.* in the lines of SHOW GRANTS, in upper case. Pure."""
    return _privileges(lines, _GLOBAL_GRANT)


def privileges_on(connection: Any, schema: str) -> frozenset[str]:
    """The privileges that the account has on a whole schema: global ones too, less its revokes."""
    # An underscore is a wildcard in a grant, unless it is escaped.
    lines = [line.replace("\\_", "_") for line in _grant_lines(connection)]
    on_schema = re.compile(rf"GRANT (.+?) ON `{re.escape(schema)}`\.\* TO ", re.IGNORECASE)
    revoked = re.compile(rf"REVOKE (.+?) ON `{re.escape(schema)}`\.\* FROM ", re.IGNORECASE)
    return (global_privileges(lines) | _privileges(lines, on_schema)) - _privileges(lines, revoked)


def _grant_lines(connection: Any) -> list[str]:
    return [str(line) for (line,) in rows(connection, "SHOW GRANTS")]


def _privileges(lines: list[str], grant: re.Pattern[str]) -> frozenset[str]:
    matches = filter(None, map(grant.match, lines))
    names = {name.strip().upper() for match in matches for name in match[1].split(",")}
    return frozenset(_RENAMED.get(name, name) for name in names)
