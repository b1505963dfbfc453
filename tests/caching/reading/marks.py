"""Heartbeat rows and the marks of a reshard, written as producers and `switch` write them."""

from databases.internal_tables import HEARTBEAT, JOURNAL, ROLE, create_internal_tables
from tests.caching.reading.reading import BEAT_US, WRITTEN_US, allow_reads, run
from tests.database_servers import DatabaseFixture

# Shards of a reshard: no other test has rows of them in `_shardstream`.
SOURCE, TARGET, OTHER_TARGET = "3a-3c", "3a-3b", "3b-3c"
HOP_US = BEAT_US + 60_000_000


def prepare(database: DatabaseFixture) -> str:
    """Create our own tables without rows of these shards, and return a schema with the table t."""
    with database.connect() as connection:
        create_internal_tables(connection)
    shards = f"('{SOURCE}', '{TARGET}', '{OTHER_TARGET}')"
    run(database, *(f"DELETE FROM {table} WHERE shard IN {shards}" for table in (HEARTBEAT, ROLE)))
    with database.one_table() as (name, _):
        allow_reads(database, name)
    return name


def beat(
    database: DatabaseFixture,
    keyspace: str,
    shard: str,
    at_us: int,
    written_us: int = WRITTEN_US,
    off_us: int = 0,
) -> None:
    """Write the heartbeat row of a shard: its commit time, and when a clock said that it was."""
    interval = f"{written_us - off_us}, {written_us + off_us}"
    run(database, f"REPLACE INTO {HEARTBEAT} VALUES ('{shard}', {at_us}, {interval}, '{keyspace}')")


def mark(database: DatabaseFixture, keyspace: str, kind: str, hop: str = "NULL") -> None:
    """Write a row of the journal, as a switch does."""
    run(
        database,
        f"INSERT INTO {JOURNAL} (reshard_id, kind, sources, targets, hop_time_us, keyspace) "
        f"VALUES ('r1', '{kind}', '[\"{SOURCE}\"]', '[\"{TARGET}\", \"{OTHER_TARGET}\"]', "
        f"{hop}, '{keyspace}')",
    )
