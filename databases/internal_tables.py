"""Our own tables in the database `_shardstream`, which producers never log as rows."""

from collections.abc import Collection, Iterable
from typing import Any, Final

INTERNAL_DATABASE: Final = "_shardstream"

HEARTBEAT: Final = f"{INTERNAL_DATABASE}.heartbeat"
JOURNAL: Final = f"{INTERNAL_DATABASE}.journal"
CHECKPOINT: Final = f"{INTERNAL_DATABASE}.checkpoint"
ROLE: Final = f"{INTERNAL_DATABASE}.role"
PLAN: Final = f"{INTERNAL_DATABASE}.plan"
VERIFIED: Final = f"{INTERNAL_DATABASE}.verified"
ASIDE: Final = f"{INTERNAL_DATABASE}.aside"
LAST_ASIDE: Final = f"{INTERNAL_DATABASE}.last_aside"
MARKER: Final = f"{INTERNAL_DATABASE}.marker"
IDENTITY: Final = f"{INTERNAL_DATABASE}.identity"

_COLUMNS: Final = {
    # Written on the primary, always or while a replica is read: how far its readers are. `at_us`
    # is of the clock that commits have, the others an interval of true time, NULL if unknown. A
    # server may hold shards of several keyspaces.
    HEARTBEAT: "shard VARCHAR(128) NOT NULL, at_us BIGINT NOT NULL, at_min_us BIGINT NULL, "
    "at_max_us BIGINT NULL, keyspace VARCHAR(128) NOT NULL, PRIMARY KEY (keyspace, shard)",
    # The marks of a reshard: END on sources, BEGIN on targets, CANCELLED on both.
    JOURNAL: "reshard_id VARCHAR(64) NOT NULL, kind VARCHAR(16) NOT NULL, "
    "sources TEXT NOT NULL, targets TEXT NOT NULL, hop_time_us BIGINT NULL, "
    "keyspace VARCHAR(128) NOT NULL, PRIMARY KEY (keyspace, reshard_id)",
    # How far a target has each source; its token is the origin of the rows behind it.
    CHECKPOINT: "reshard_id VARCHAR(64) NOT NULL, source_shard VARCHAR(128) NOT NULL, "
    "seq BIGINT NOT NULL, position LONGTEXT NOT NULL, timestamp_us BIGINT NOT NULL, "
    "token MEDIUMTEXT NOT NULL, PRIMARY KEY (reshard_id, source_shard)",
    # Which shards of a reshard are sources and which are targets.
    ROLE: "reshard_id VARCHAR(64) NOT NULL, shard VARCHAR(128) NOT NULL, "
    "role VARCHAR(16) NOT NULL, keyspace VARCHAR(128) NOT NULL, "
    "PRIMARY KEY (keyspace, reshard_id, shard)",
    # What `reshard create` decided, so that applier and verify need nothing else.
    PLAN: "reshard_id VARCHAR(64) NOT NULL PRIMARY KEY, plan LONGTEXT NOT NULL",
    # The result of the last comparison.
    VERIFIED: "reshard_id VARCHAR(64) NOT NULL PRIMARY KEY, position LONGTEXT NOT NULL, "
    "at_us BIGINT NOT NULL, differing BIGINT NOT NULL",
    # Rows of a merge's sources that rows of other sources exclude for a while: the key by its
    # digest and for people, and what INSERT INTO takes, columns and values as SQL.
    ASIDE: "reshard_id VARCHAR(64) NOT NULL, source_shard VARCHAR(128) NOT NULL, "
    "database_name VARCHAR(64) NOT NULL, table_name VARCHAR(64) NOT NULL, "
    "key_digest BINARY(32) NOT NULL, row_key LONGTEXT NOT NULL, column_names LONGTEXT NOT NULL, "
    "row_values LONGTEXT NOT NULL, error_labels INT NOT NULL, "
    "PRIMARY KEY (reshard_id, source_shard, database_name, table_name, key_digest)",
    # The position of the transaction that set a row aside last.
    LAST_ASIDE: "reshard_id VARCHAR(64) NOT NULL PRIMARY KEY, position LONGTEXT NOT NULL",
    # Written for its place in the binlog alone.
    MARKER: "reshard_id VARCHAR(64) NOT NULL PRIMARY KEY, at_us BIGINT NOT NULL",
    # One row, which replicates: the same on all MariaDB servers of a shard, and on no other.
    IDENTITY: "id TINYINT NOT NULL PRIMARY KEY, uuid CHAR(36) NOT NULL",
}
_CHARSET: Final = "CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"


def create_internal_tables(connection: Any, tables: Collection[str] = tuple(_COLUMNS)) -> None:
    """Create the database and those of the tables that do not exist."""
    with connection.cursor() as cursor:
        for statement in create_statements(tables):
            cursor.execute(statement)


def create_statements(tables: Iterable[str]) -> list[str]:
    """The statements that do so."""
    database = f"CREATE DATABASE IF NOT EXISTS {INTERNAL_DATABASE} {_CHARSET}"
    return [
        database,
        *(
            f"CREATE TABLE IF NOT EXISTS {table} ({_COLUMNS[table]}) ENGINE=InnoDB {_CHARSET}"
            for table in tables
        ),
    ]


# (database, table). A dump of all databases, and a change made by hand, write them as rows.
SECRET_TABLES: Final = frozenset(
    ("mysql", table)
    for table in ("user", "global_priv", "password_history", "servers", "slave_master_info")
)
