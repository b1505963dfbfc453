"""The privileges that the account of a reshard needs."""

from collections.abc import Sequence
from typing import Any, Final

from databases.grants import read_account
from event_token import Flavor

# On sources the product's own tables are written. Without SHOW VIEW, TRIGGER, EVENT and PROCESS a
# server shows less than there is, and says nothing.
NEEDED: Final = (
    *("SELECT", "INSERT", "UPDATE", "DELETE", "CREATE", "DROP", "ALTER"),
    *("CREATE TEMPORARY TABLES", "REFERENCES", "SHOW VIEW", "TRIGGER", "EVENT"),
)
_TO_SWITCH: Final = ("CREATE USER", "PROCESS")
NEEDED_TO_SWITCH: Final = {
    Flavor.MYSQL: (*NEEDED, *_TO_SWITCH, "CONNECTION_ADMIN", "XA_RECOVER_ADMIN"),
    Flavor.MARIADB: (*NEEDED, *_TO_SWITCH, "CONNECTION ADMIN"),
}


def missing_grants(connection: Any, where: str, needed: Sequence[str] = NEEDED) -> list[str]:
    """The privileges on everything that the account lacks, with the GRANT that adds them."""
    account = read_account(connection)
    missing = account.missing(needed)
    if not missing:
        return []
    names = ", ".join(missing)
    return [
        f"{where}: account {account.name} lacks {names}: GRANT {names} ON *.* TO {account.name};"
    ]
