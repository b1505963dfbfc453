"""System tables whose rows hold passwords or their hashes, which producers never log."""

from typing import Final

# (database, table). A dump of all databases, and a change made by hand, write them as rows.
SECRET_TABLES: Final = frozenset(
    ("mysql", table)
    for table in ("user", "global_priv", "password_history", "servers", "slave_master_info")
)
