"""Binlog event types, and the messages of those that stop the shard."""

from typing import Final

QUERY: Final = 2
STOP: Final = 3
ROTATE: Final = 4
INTVAR: Final = 5
RAND: Final = 13
USER_VAR: Final = 14
EXECUTE_LOAD_QUERY: Final = 18
FORMAT_DESCRIPTION: Final = 15
XID: Final = 16
TABLE_MAP: Final = 19
WRITE_ROWS_V1: Final = 23
UPDATE_ROWS_V1: Final = 24
DELETE_ROWS_V1: Final = 25
HEARTBEAT: Final = 27
IGNORABLE: Final = 28
ROWS_QUERY: Final = 29
WRITE_ROWS: Final = 30
UPDATE_ROWS: Final = 31
DELETE_ROWS: Final = 32
GTID: Final = 33
PREVIOUS_GTIDS: Final = 35
TRANSACTION_CONTEXT: Final = 36
VIEW_CHANGE: Final = 37
XA_PREPARE: Final = 38
PARTIAL_UPDATE_ROWS: Final = 39
TRANSACTION_PAYLOAD: Final = 40
HEARTBEAT_V2: Final = 41
GTID_TAGGED: Final = 42
MARIADB_ANNOTATE_ROWS: Final = 160
MARIADB_BINLOG_CHECKPOINT: Final = 161
MARIADB_GTID: Final = 162
MARIADB_GTID_LIST: Final = 163
MARIADB_QUERY_COMPRESSED: Final = 165
MARIADB_WRITE_ROWS_COMPRESSED_V1: Final = 166
MARIADB_DELETE_ROWS_COMPRESSED: Final = 171

# Events without a change: comments, bookkeeping, data of group replication, and what a statement
# was run with: values, and the file of a LOAD DATA. Definitions have values too, as CREATE EVENT
# with a user variable or MariaDB's CREATE VIEW with RAND(); the statement decides.
WITHOUT_CHANGE: Final = frozenset(
    (
        STOP,
        INTVAR,
        *(9, 11, 17),  # APPEND_BLOCK, DELETE_FILE, BEGIN_LOAD_QUERY
        RAND,
        USER_VAR,
        HEARTBEAT,
        HEARTBEAT_V2,
        IGNORABLE,
        ROWS_QUERY,
        PREVIOUS_GTIDS,
        TRANSACTION_CONTEXT,
        VIEW_CHANGE,
        MARIADB_ANNOTATE_ROWS,
        MARIADB_BINLOG_CHECKPOINT,
        MARIADB_GTID_LIST,
    )
)

# Events that stop the shard, and why.
REFUSED: Final[dict[int, str]] = {
    26: "INCIDENT: changes are missing from the source's binlog; start a new log with a copy",
    34: "ANONYMOUS_GTID: the source runs without GTIDs: set gtid_mode=ON, step by step",
    164: "START_ENCRYPTION: the server sends its binlog encrypted",
}
