"""What the account of a reshard may do, read from the server's own words."""

import re
from collections.abc import Sequence
from typing import Any, Final

from event_token import Flavor
from resharding.server import rows

# On sources the product's own tables are written.
NEEDED: Final = (
    *("SELECT", "INSERT", "UPDATE", "DELETE", "CREATE", "DROP", "ALTER"),
    "CREATE TEMPORARY TABLES",
)

# Without PROCESS, TRIGGER and EVENT a server shows less than there is, and says nothing.
_TO_SWITCH: Final = ("CREATE USER", "PROCESS", "TRIGGER", "EVENT")
NEEDED_TO_SWITCH: Final = {
    Flavor.MYSQL: (*NEEDED, *_TO_SWITCH, "CONNECTION_ADMIN"),
    Flavor.MARIADB: (*NEEDED, *_TO_SWITCH, "CONNECTION ADMIN"),
}

_GLOBAL_GRANT: Final = re.compile(r"GRANT (.+?) ON \*\.\* TO ", re.IGNORECASE)


def missing_grants(connection: Any, where: str, needed: Sequence[str] = NEEDED) -> list[str]:
    """The privileges on everything that the account lacks, with the statement that mends it."""
    [(who,)] = rows(connection, "SELECT CURRENT_USER()")
    granted: set[str] = set()
    for (line,) in rows(connection, "SHOW GRANTS"):
        match = _GLOBAL_GRANT.match(str(line))
        if match:
            granted |= {name.strip().upper() for name in match[1].split(",")}
    missing = [name for name in needed if name not in granted]
    if not missing or "ALL PRIVILEGES" in granted:
        return []
    user, _, host = str(who).rpartition("@")
    names = ", ".join(missing)
    return [f"{where}: account {who} lacks {names}: GRANT {names} ON *.* TO '{user}'@'{host}';"]
