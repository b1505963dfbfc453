"""Where a reshard is, as its servers and logs say, and which command comes next.

Also whether a shard's writes are stopped, and by which reshard. Nothing here claims a server, so a
running `switch` is not disturbed.
"""

import hashlib
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pymysql

from databases.connection import is_transient, lost_or_refused, rows_if_there, server_errors
from databases.internal_tables import JOURNAL
from databases.sql import rows
from resharding.aside import count_aside, was_set_aside_since
from resharding.bookkeeping import VerifyResult, read_checkpoints, read_verified
from resharding.servers import ReshardServer, is_account_locked, open_session
from topics.kafka.client import ClientConfig
from topics.keyspace.topology import ReshardEntry, ReshardState, Topology
from topics.names import ShardTopics
from topics.progress.committed_tail import last_progress
from topics.progress.copy_topic import CopyState, TableCopy, read_copies
from topics.progress.record import JournalKind, Mark, MarkKind
from topics.records.table_shape import SchemaIds
from topics.stream.target_marks import marks_at_end


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
    query = f"SELECT reshard_id FROM {JOURNAL} WHERE kind = %s AND keyspace = %s"
    found = rows_if_there(connection, query, (JournalKind.END.value, keyspace))
    return frozenset(str(name) for (name,) in found or ())


def later_reshards(topology: Topology, shard: str, reshard_id: str) -> frozenset[str]:
    """Other reshards that may have stopped the writes of a shard since: it is their source.

    A server that is used again may have the END of a shard that it was before.
    """
    return frozenset(
        entry.reshard_id
        for entry in topology.reshards
        if entry.reshard_id != reshard_id
        and shard in entry.sources
        and entry.state != ReshardState.CANCELLED.value
    )


def is_held(connection: Any, topology: Topology, shard: str, reshard_id: str) -> bool:
    """Whether a later reshard has END on the shard, so that this one must not open it."""
    later = later_reshards(topology, shard, reshard_id)
    return bool(read_ended_by(connection, topology.keyspace) & later)


# A failed copy counts: it has to be resumed.
_NOT_OVER: Final = frozenset((CopyState.COPYING, CopyState.PAUSED, CopyState.FAILED))
# What an applier takes in a few seconds. With more, `verify` and `switch` find that it lags.
LAG_CHANGES_MAX: Final = 50_000
# A comparison says little about what has happened to the target since.
VERIFY_AGE_S_MAX: Final = 24 * 3600


@dataclass(frozen=True, slots=True)
class SourceLog:
    """What the log of a source says: its last seq, END of the reshard, copies that are not over."""

    last_seq: int
    ended_at_us: int | None
    copying: int


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """A source: its log, and whether some of the application's accounts are locked.

    `held`: a later reshard has END on it, so that only that one may open it.
    """

    log: SourceLog
    locked: bool
    held: bool = False


@dataclass(frozen=True, slots=True)
class AppliedSource:
    """How far a target has applied a source; `at_us`: commit time of the last change."""

    seq: int
    at_us: int


@dataclass(frozen=True, slots=True)
class TargetProgress:
    """A target: whether its applier runs, what it has applied, and the last comparison.

    `differing`: rows that differed at `verified_at_us`, both None before the first comparison.
    `verify_is_old`: `switch` does not accept it any more. `locked`, `held`: as those of a source.
    `aside`: rows that other sources' rows keep out of its tables, in a merge.
    """

    applier_runs: bool
    applied: dict[str, AppliedSource]
    verified_at_us: int | None
    differing: int | None
    locked: bool
    held: bool = False
    verify_is_old: bool = False
    aside: int = 0


def applier_lock(reshard_id: str) -> str:
    """The named lock that an applier holds on its target while it runs."""
    return f"shardstream.applier.{hashlib.sha256(reshard_id.encode()).hexdigest()[:32]}"


def source_log(
    topology: Topology, source: str, reshard_id: str, kafka: ClientConfig, schema_ids: SchemaIds
) -> SourceLog:
    """Look at the log of a source. Raises Retry."""
    topics = ShardTopics(topology.keyspace, source)
    progress = last_progress(kafka, topics, schema_ids)
    is_sharded = topology.sharded_databases.__contains__
    mark = marks_at_end(kafka, topics, schema_ids, is_sharded).get(reshard_id)
    return SourceLog(
        0 if progress is None else progress.last_seq,
        mark.timestamp_us if mark is not None and mark.kind is JournalKind.END else None,
        len(copies_not_over(kafka, topics)),
    )


def copies_not_over(kafka: ClientConfig, topics: ShardTopics) -> list[TableCopy]:
    """The copies of a shard's tables that run, wait or have to be resumed."""
    return [c for c in read_copies(kafka, topics).values() if c.state in _NOT_OVER]


def source_state(
    topology: Topology,
    server: ReshardServer,
    accounts: Sequence[str],
    reshard_id: str,
    log: SourceLog,
) -> SourceProgress:
    """Look at a source. Raises ServerLost, ServerRefused."""
    doing = "looking at the accounts of"
    with open_session(server) as connection, server_errors(server, doing, lost_or_refused):
        locked = any_account_locked(connection, accounts)
        held = is_held(connection, topology, server.shard, reshard_id)
    return SourceProgress(log, locked, held)


def target_state(
    topology: Topology, server: ReshardServer, accounts: Sequence[str], reshard_id: str
) -> TargetProgress:
    """Look at a target. Raises ServerLost, ServerRefused."""
    doing = "looking at the reshard on"
    with open_session(server) as connection, server_errors(server, doing, lost_or_refused):
        [(holder,)] = rows(connection, "SELECT IS_USED_LOCK(%s)", (applier_lock(reshard_id),))
        found = read_checkpoints(connection, reshard_id)
        verified = read_verified(connection, reshard_id)
        locked = any_account_locked(connection, accounts)
        held = is_held(connection, topology, server.shard, reshard_id)
        aside = count_aside(connection, reshard_id)
        is_outdated = verified is not None and (
            is_old(verified) or was_set_aside_since(connection, reshard_id, verified)
        )
    return TargetProgress(
        holder is not None,
        {source: AppliedSource(at.seq, at.timestamp_us) for source, at in found.items()},
        None if verified is None else verified.at_us,
        None if verified is None else verified.differing,
        locked,
        held,
        is_outdated,
        aside,
    )


def is_old(verified: VerifyResult) -> bool:
    """Whether a comparison was made too long ago to be the base of a switch."""
    return time.time() - verified.at_us / 1e6 > VERIFY_AGE_S_MAX


def next_command(
    entry: ReshardEntry,
    keyspace: str,
    sources: Mapping[str, SourceProgress],
    targets: Mapping[str, TargetProgress],
    marks: Mapping[str, Mark],
    *,
    silent: Collection[str] = (),
) -> str:
    """What an operator does next. Pure.

    `marks`: the first one in each target's log. `silent`: shards that could not be asked.
    """
    verb = f"{keyspace} {entry.reshard_id}"
    if entry.state == ReshardState.SWITCHED.value:
        if closed := _perhaps_closed(entry.targets, targets, silent):
            return f"{closed}: shardstream reshard switch {verb}"
        return f"shardstream reshard complete {verb}"
    if entry.state == ReshardState.CANCELLED.value:
        if closed := _perhaps_closed(entry.sources, sources, silent):
            return f"{closed}: shardstream reshard cancel {verb}"
        return "stop the producers and appliers of the targets, and empty their servers"
    kinds = [mark.kind for mark in marks.values()]
    if MarkKind.CANCEL in kinds:
        return f"it is cancelled in a target's log: shardstream reshard cancel {verb}"
    if len(kinds) == len(entry.targets):
        return f"all targets have begun: shardstream reshard switch {verb}"
    if entry.decision is not None or kinds:
        return (
            f"shardstream reshard switch {verb}, or if a target is lost for good, "
            f"shardstream reshard cancel {verb} --lost-target"
        )
    if silent:
        return (
            f"bring back {', '.join(sorted(silent))}, or go back to the sources: "
            f"shardstream reshard cancel {verb}"
        )
    return _before_decision(keyspace, verb, sources, targets)


def _perhaps_closed(
    shards: Sequence[str],
    states: Mapping[str, SourceProgress] | Mapping[str, TargetProgress],
    silent: Collection[str],
) -> str:
    """Which shards are still closed or may be; "" if none. A later reshard opens its own."""
    closed = [name for name, state in states.items() if state.locked and not state.held]
    if closed:
        return f"writes are still stopped on {', '.join(closed)}"
    unknown = [shard for shard in shards if shard in silent]
    return f"when {', '.join(unknown)} can be asked" if unknown else ""


def _lag(target: TargetProgress, sources: Mapping[str, SourceProgress]) -> int:
    """How many changes of its sources a target lacks, if more than an applier soon takes."""
    behind = sum(sources[name].log.last_seq - at.seq for name, at in target.applied.items())
    return behind if behind > LAG_CHANGES_MAX else 0


def _before_decision(
    keyspace: str,
    verb: str,
    sources: Mapping[str, SourceProgress],
    targets: Mapping[str, TargetProgress],
) -> str:
    dead = [name for name, target in targets.items() if not target.applier_runs]
    if dead:
        return "; ".join(f"shardstream reshard run {verb} {name}" for name in dead)
    if any(source.locked or source.log.ended_at_us for source in sources.values()):
        return (
            f"shardstream reshard switch {verb} goes on, "
            f"shardstream reshard cancel {verb} goes back as long as that is possible"
        )
    copying = [name for name, source in sources.items() if source.log.copying]
    if copying:
        return f"wait for the copies of {', '.join(copying)} (shardstream copy status {keyspace})"
    lags = [f"{n} lacks {lag:,} changes" for n, at in targets.items() if (lag := _lag(at, sources))]
    if lags:
        return f"wait for the appliers: {', '.join(lags)} (shardstream reshard status {keyspace})"
    if any(target.differing != 0 for target in targets.values()):
        return f"shardstream reshard verify {verb}"
    if any(target.verify_is_old for target in targets.values()):
        hours = VERIFY_AGE_S_MAX // 3600
        return (
            f"verify is more than {hours} hours old, or older than the last row that was set "
            f"aside: shardstream reshard verify {verb}"
        )
    return f"shardstream reshard switch {verb}"
