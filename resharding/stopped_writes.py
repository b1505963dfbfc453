"""Whether the writes of a shard are stopped, and by which reshard, as its server says."""

from collections.abc import Sequence
from typing import Any, Final

import pymysql

from databases.connection import error_code, is_transient
from databases.internal_tables import JOURNAL
from databases.sql import rows
from resharding.account_locks import is_account_locked
from resharding.switch.topology_steps import later_reshards
from topics.keyspace.topology import Topology

# No journal, or one of the release before, whose rows have no keyspace.
_NO_SUCH_TABLE_OR_COLUMN: Final = frozenset({1049, 1054, 1146})


def any_account_locked(connection: Any, accounts: Sequence[str]) -> bool:
    """Whether one of the accounts (user@host) that exist on the server is locked."""
    for account in accounts:
        user, _, host = account.rpartition("@")
        try:
            if is_account_locked(connection, user, host):
                return True
        except pymysql.err.MySQLError as error:
            if is_transient(error):
                raise
            # It does not exist here, which `switch` says.
    return False


def read_ended_by(connection: Any, keyspace: str) -> frozenset[str]:
    """The reshards of a keyspace that have END in the server's journal."""
    query = f"SELECT reshard_id FROM {JOURNAL} WHERE kind = 'END' AND keyspace IN (%s, '')"
    try:
        return frozenset(str(reshard_id) for (reshard_id,) in rows(connection, query, (keyspace,)))
    except pymysql.err.MySQLError as error:
        if error_code(error) in _NO_SUCH_TABLE_OR_COLUMN:
            return frozenset()
        raise


def is_held(connection: Any, topology: Topology, shard: str, reshard_id: str) -> bool:
    """Whether a later reshard has END on the shard, so that this one must not open it."""
    later = later_reshards(topology, shard, reshard_id)
    return bool(read_ended_by(connection, topology.keyspace) & later)
