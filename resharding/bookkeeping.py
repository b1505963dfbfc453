"""What a reshard keeps on its servers: its plan, checkpoints, roles and verify results."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from databases.catalog import read_entry
from databases.internal_tables import (
    ASIDE,
    CHECKPOINT,
    INTERNAL_DATABASE,
    LAST_ASIDE,
    PLAN,
    ROLE,
    VERIFIED,
)
from databases.sql import rows, text_literal
from event_token import KeyRange, ShardName, StreamPosition
from event_token.errors import Halt
from topics.keyspace.topology import TableVindex

# The version of the JSON layout; any other is refused.
LAYOUT_VERSION = 1


def range_of(shards: Iterable[str]) -> KeyRange:
    """The range from the first to the last of one or more shards."""
    ranges = [ShardName.parse(shard).key_range for shard in shards]
    open_end = any(not part.end for part in ranges)
    return KeyRange(
        min(part.start for part in ranges), b"" if open_end else max(part.end for part in ranges)
    )


@dataclass(frozen=True, slots=True)
class ReshardPlan:
    """A reshard from its creation on.

    `start`: the position of the sources at which appliers start, as its opaque string.
    `agreed_seqs`: per source, the last seq at which the targets' tables are known to match: DDL
    up to there is taken into account.
    """

    reshard_id: str
    keyspace: str
    sources: tuple[str, ...]
    targets: tuple[str, ...]
    tables: tuple[TableVindex, ...]
    start: str
    agreed_seqs: dict[str, int]

    def to_json(self) -> str:
        """The text that is stored on the targets."""
        return json.dumps(
            {
                "version": LAYOUT_VERSION,
                "reshard_id": self.reshard_id,
                "keyspace": self.keyspace,
                "sources": list(self.sources),
                "targets": list(self.targets),
                "tables": [[t.database, t.table, list(t.columns), t.vindex] for t in self.tables],
                "start": self.start,
                "agreed_seqs": self.agreed_seqs,
            },
        )

    @classmethod
    def from_json(cls, text: str, where: str) -> "ReshardPlan":
        """Parse a stored plan; Halt on another layout version or invalid text."""
        try:
            fields: dict[str, Any] = json.loads(text)
            if fields["version"] != LAYOUT_VERSION:
                raise Halt(f"{where}: version {fields['version']} of the reshard's plan is unknown")
            return cls(
                reshard_id=fields["reshard_id"],
                keyspace=fields["keyspace"],
                sources=tuple(fields["sources"]),
                targets=tuple(fields["targets"]),
                tables=tuple(TableVindex(d, t, tuple(c), v) for d, t, c, v in fields["tables"]),
                start=fields["start"],
                agreed_seqs=dict(fields["agreed_seqs"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise Halt(f"{where}: the reshard's plan is invalid: {error!r}") from error


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How far a target has applied one source: all records up to `seq`.

    `position`: the merged position of all sources at the last commit that wrote this row.
    """

    source: str
    seq: int
    position: str
    timestamp_us: int
    token: str


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """A comparison of a target with its sources: at which position and when, and what differed."""

    position: str
    at_us: int
    differing: int


def read_checkpoints(connection: Any, reshard_id: str) -> dict[str, Checkpoint]:
    """The checkpoints of a target by source shard."""
    found = rows(
        connection,
        "SELECT source_shard, seq, position, timestamp_us, token "
        f"FROM {CHECKPOINT} WHERE reshard_id = %s",
        (reshard_id,),
    )
    return {source: Checkpoint(source, *rest) for source, *rest in found}


def move_statement(
    reshard_id: str, seq_before: int, checkpoint: Checkpoint, *, settles: bool
) -> str:
    """A compare-and-set that precedes changes of a source.

    The target's producer makes its token the origin of the rows that follow. `settles`: it sets the
    position that the transaction reaches, too.
    """
    position = f", position = {text_literal(checkpoint.position)}" if settles else ""
    return (
        f"UPDATE {CHECKPOINT} SET seq = {checkpoint.seq}, "
        f"timestamp_us = {checkpoint.timestamp_us}, "
        f"token = {text_literal(checkpoint.token)}{position} "
        f"WHERE reshard_id = {text_literal(reshard_id)} "
        f"AND source_shard = {text_literal(checkpoint.source)} AND seq = {seq_before}"
    )


def merged_position(
    checkpoints: Mapping[str, Checkpoint], plan: ReshardPlan, where: str
) -> StreamPosition:
    """Where the merged stream resumes after a target's checkpoints. Halt when they disagree."""
    if sorted(checkpoints) != sorted(plan.sources):
        raise Halt(
            f"{where}: the checkpoints of reshard {plan.reshard_id} are of "
            f"{', '.join(sorted(checkpoints)) or 'no shard'}, not of {', '.join(plan.sources)}: "
            f"create the reshard again under a new id",
        )
    # Each row holds the position of the commit that wrote it last: the furthest is the last.
    newest = max(
        (StreamPosition.from_string(at.position) for at in checkpoints.values()),
        key=lambda position: sum(at.seq for at in position.shards.values()),
    )
    seqs = {source: at.seq for source, at in checkpoints.items()}
    if seqs != {source: at.seq for source, at in newest.shards.items()}:
        raise Halt(
            f"{where}: the checkpoints of reshard {plan.reshard_id} contradict each other "
            f"({seqs}): something else has written them. Create the reshard again",
        )
    return newest


def write_plan(connection: Any, plan: ReshardPlan) -> None:
    """Write the plan and the first checkpoints in one transaction.

    Replaces what an interrupted creation of the same id has left.
    """
    start = StreamPosition.from_string(plan.start)
    connection.begin()
    with connection.cursor() as cursor:
        for table in (PLAN, CHECKPOINT, VERIFIED, ASIDE, LAST_ASIDE):
            cursor.execute(f"DELETE FROM {table} WHERE reshard_id = %s", (plan.reshard_id,))
        cursor.execute(
            f"INSERT INTO {PLAN} VALUES (%s, %s)",
            (plan.reshard_id, plan.to_json()),
        )
        for source, at in start.shards.items():
            token = "" if at.token is None else at.token.to_string()
            timestamp_us = 0 if at.token is None else at.token.timestamp_us or 0
            cursor.execute(
                f"INSERT INTO {CHECKPOINT} VALUES (%s, %s, %s, %s, %s, %s)",
                (plan.reshard_id, source, at.seq, plan.start, timestamp_us, token),
            )
    connection.commit()


def read_plan(connection: Any, reshard_id: str, where: str) -> ReshardPlan | None:
    """The plan that a target holds, None when it holds none."""
    if not _has(connection, "plan"):
        return None
    found = rows(
        connection,
        f"SELECT plan FROM {PLAN} WHERE reshard_id = %s",
        (reshard_id,),
    )
    return ReshardPlan.from_json(found[0][0], where) if found else None


def reshards_on(connection: Any) -> list[str]:
    """The reshards whose plan is on a server."""
    if not _has(connection, "plan"):
        return []
    return [name for (name,) in rows(connection, f"SELECT reshard_id FROM {PLAN}")]


def _has(connection: Any, table: str) -> bool:
    return read_entry(connection, INTERNAL_DATABASE, table) is not None


def write_verified(
    connection: Any, reshard_id: str, position: str, at_us: int, differing: int
) -> None:
    """Store the result of a target's comparison, which `switch` asks for."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"REPLACE INTO {VERIFIED} VALUES (%s, %s, %s, %s)",
            (reshard_id, position, at_us, differing),
        )


def read_verified(connection: Any, reshard_id: str) -> VerifyResult | None:
    """The result of a target's last comparison; None if there is none, or DDL made it void."""
    found = rows(
        connection,
        f"SELECT position, at_us, differing FROM {VERIFIED} WHERE reshard_id = %s",
        (reshard_id,),
    )
    return VerifyResult(*found[0]) if found else None


def void_verified_statement(reshard_id: str) -> str:
    """The statement that forgets a target's comparison: a definition has changed since."""
    return f"DELETE FROM {VERIFIED} WHERE reshard_id = {text_literal(reshard_id)}"


def keyspaces_with(connection: Any, reshard_id: str) -> set[str]:
    """The keyspaces that have roles under this id on a server."""
    if not _has(connection, "role"):
        return set()
    query = f"SELECT DISTINCT keyspace FROM {ROLE} WHERE reshard_id = %s"
    return {keyspace for (keyspace,) in rows(connection, query, (reshard_id,))}


def write_roles(connection: Any, plan: ReshardPlan) -> None:
    """Write which shards are sources and which are targets."""
    with connection.cursor() as cursor:
        for role, shards in (("source", plan.sources), ("target", plan.targets)):
            for shard in shards:
                cursor.execute(
                    f"REPLACE INTO {ROLE} VALUES (%s, %s, %s, %s)",
                    (plan.reshard_id, shard, role, plan.keyspace),
                )
