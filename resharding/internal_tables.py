"""The product's own tables on the servers of a reshard, and what stands in them.

The producers know these tables by name: their rows never become rows of a shard log.
"""

from dataclasses import dataclass
from typing import Any, Final

from resharding.routing import INTERNAL_DATABASE
from resharding.server import rows

_TABLES: Final = {
    "journal": "reshard_id VARCHAR(64) NOT NULL PRIMARY KEY, kind VARCHAR(16) NOT NULL, "
    "sources TEXT NOT NULL, targets TEXT NOT NULL, hop_time_us BIGINT NULL",
    "role": "reshard_id VARCHAR(64) NOT NULL, shard VARCHAR(128) NOT NULL, "
    "role VARCHAR(16) NOT NULL, PRIMARY KEY (reshard_id, shard)",
    "checkpoint": "reshard_id VARCHAR(64) NOT NULL, source_shard VARCHAR(128) NOT NULL, "
    "seq BIGINT NOT NULL, position LONGTEXT NOT NULL, timestamp_us BIGINT NOT NULL, "
    "token MEDIUMTEXT NOT NULL, PRIMARY KEY (reshard_id, source_shard)",
    "heartbeat": "shard VARCHAR(128) NOT NULL PRIMARY KEY, at_us BIGINT NOT NULL",
    "verified": "reshard_id VARCHAR(64) NOT NULL PRIMARY KEY, position TEXT NOT NULL, "
    "at_us BIGINT NOT NULL, differing BIGINT NOT NULL",
    # What `reshard create` decided, so that applier and verify need nothing else.
    "plan": "reshard_id VARCHAR(64) NOT NULL PRIMARY KEY, plan LONGTEXT NOT NULL",
}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How far a target has one source: all records up to `seq`.

    `position`: the merged position of all sources when the row was last written at a commit.
    """

    source: str
    seq: int
    position: str
    timestamp_us: int
    token: str


def make_internal_tables(connection: Any) -> None:
    """Make the database and the tables that are missing."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"CREATE DATABASE IF NOT EXISTS {INTERNAL_DATABASE} CHARACTER SET utf8mb4 "
            "COLLATE utf8mb4_bin"
        )
        for name, columns in _TABLES.items():
            cursor.execute(
                f"CREATE TABLE IF NOT EXISTS {INTERNAL_DATABASE}.{name} ({columns}) "
                "ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
            )


def read_checkpoints(connection: Any, reshard_id: str) -> dict[str, Checkpoint]:
    """The checkpoints of a target by source shard."""
    found = rows(
        connection,
        "SELECT source_shard, seq, position, timestamp_us, token "
        f"FROM {INTERNAL_DATABASE}.checkpoint WHERE reshard_id = %s",
        (reshard_id,),
    )
    return {source: Checkpoint(source, *rest) for source, *rest in found}


def move_statement(
    reshard_id: str, source: str, seq_before: int, seq: int, timestamp_us: int, token: str
) -> str:
    """The compare-and-set that comes first of a source transaction's part.

    The target's producer stamps the token on the rows behind it.
    """
    return (
        f"UPDATE {INTERNAL_DATABASE}.checkpoint SET seq = {seq}, timestamp_us = {timestamp_us}, "
        f"token = {_literal(token)} WHERE reshard_id = {_literal(reshard_id)} "
        f"AND source_shard = {_literal(source)} AND seq = {seq_before}"
    )


def settle_statement(
    reshard_id: str, seq_before: int, checkpoint: Checkpoint
) -> str:
    """The compare-and-set that ends a target transaction: everything of the source is in."""
    return (
        f"UPDATE {INTERNAL_DATABASE}.checkpoint SET seq = {checkpoint.seq}, "
        f"timestamp_us = {checkpoint.timestamp_us}, token = {_literal(checkpoint.token)}, "
        f"position = {_literal(checkpoint.position)} WHERE reshard_id = {_literal(reshard_id)} "
        f"AND source_shard = {_literal(checkpoint.source)} AND seq = {seq_before}"
    )


def _literal(text: str) -> str:
    return f"_utf8mb4 x'{text.encode().hex()}'"
