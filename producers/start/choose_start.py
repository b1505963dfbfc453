"""Chooses the server that a session follows, and the position it starts from."""

import functools
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final

from databases.server_facts import before_binlogs
from event_token import Flavor, GtidSet, MariadbGtidSet, parse_gtid_set
from event_token.errors import Rebuild, Retry, ShardstreamError, UsageError
from producers.errors import (
    Findings,
    LogDisagrees,
    Problem,
    ReplicaBehindLog,
    ServerBehindLog,
    ServerDiverged,
)
from producers.servers.identity import ShardIdentity, check_identity, prove_identity
from producers.servers.server_list import OpenServer, ServerChoice, ServerList
from producers.settings import ShardProducerSettings
from producers.start.last_transaction import check_behind, check_lasts, lasts_before
from producers.start.position_at_time import find_position
from topics.errors import NoBrokerAnswers
from topics.kafka.client import ClientConfig
from topics.kafka.errors import TopicMissing
from topics.keyspace.topology import ReshardState, Topology, read_topology
from topics.names import ShardTopics
from topics.progress.committed_tail import LogTail, last_progress
from topics.progress.record import (
    JournalKind,
    LastDdl,
    LastTransaction,
    PassedStatements,
    Progress,
    Skipped,
    cell_start_us,
)
from topics.records.table_shape import SchemaIds
from topics.start.start_forms import GtidStart, StartWord, parse_producer_start
from topics.stream.target_marks import marks_at_end


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """What a producer takes over from its predecessor.

    `head_us`: the last head (watermark) promised; `clamp_us`: the earliest timestamp that a new
    record may bear, the last record's if that is later; `last_cell_us`: start of the grid cell of
    the log's last record. Each is -1 if there is none. `lasts`: see Progress.
    `identity`: that of the shard's servers, "" if the log holds none. `skipped`: its SKIP records.
    `ddl`: its last DDL record. `passed`: statements passed.
    """

    position: GtidSet
    next_seq: int
    end_offset: int
    head_us: int
    clamp_us: int
    last_cell_us: int
    lasts: tuple[LastTransaction, ...] = ()
    identity: str = ""
    skipped: Skipped | None = None
    ddl: LastDdl | None = None
    passed: PassedStatements | None = None


def resume_point(
    topics: ShardTopics, flavor: Flavor, progress: Progress | None, log: LogTail
) -> ResumePoint | None:
    """Combine progress and log; None for an empty log. LogDisagrees when they contradict."""
    if progress is None:
        if log.last is not None:
            raise LogDisagrees(
                f"{topics.log} ends with seq {log.last.seq} at offset {log.last.offset}, but "
                f"{topics.progress} is empty: one of them was deleted or recreated. Without the "
                "progress topic the log's position is unknown: restore it, or run shardstream "
                f"topics reset {topics.keyspace} {topics.shard}, and start a new log with a copy"
            )
        return None
    if Flavor(progress.flavor) is not flavor:
        raise UsageError(
            f"{topics.progress} was written from {progress.flavor}, but the settings say "
            f"{flavor.value}: a shard's log stays with one family of servers"
        )
    _check_agreement(topics, progress, log)
    clamp_us = progress.head_us
    last_cell_us = -1
    if log.last is not None:
        clamp_us = max(clamp_us, log.last.timestamp_us)
        last_cell_us = cell_start_us(log.last.timestamp_us)
    return ResumePoint(
        position=parse_gtid_set(progress.position, flavor),
        next_seq=progress.last_seq + 1,
        end_offset=progress.end_offset,
        head_us=progress.head_us,
        clamp_us=clamp_us,
        last_cell_us=last_cell_us,
        lasts=progress.lasts,
        identity=progress.identity,
        skipped=progress.skipped,
        ddl=progress.ddl,
        passed=progress.passed,
    )


def _check_agreement(topics: ShardTopics, progress: Progress, log: LogTail) -> None:
    if log.agrees_with(progress):
        return
    if log.last is None:
        found = f"is empty and starts at offset {log.start_offset}"
    else:
        found = f"ends with seq {log.last.seq} at offset {log.last.offset}"
    raise LogDisagrees(
        f"{topics.log} {found}, but {topics.progress} says seq {progress.last_seq} at "
        f"offset {progress.end_offset - 1}: records were lost, or written by something else. "
        "Keep both topics and compare them with the binlog"
    )


def first_point(position: GtidSet, from_us: int = -1) -> ResumePoint:
    """Where an empty log starts: before seq 1, at offset 0.

    `from_us`: the time from which on it has everything, where the start names one; readers take
    times by grid cells.
    """
    begin_us = -1 if from_us < 0 else cell_start_us(from_us)
    return ResumePoint(position, 1, 0, begin_us, begin_us, -1)


def ended_by(config: ClientConfig, topics: ShardTopics, schema_ids: SchemaIds) -> tuple[str, ...]:
    """The reshards whose END the log holds, and whose CANCELLED it does not hold.

    Raises Retry when Kafka does not answer.
    """

    @functools.cache
    def asked_once(database: str) -> bool:
        return is_sharded(config, topics.keyspace, database)

    marks = marks_at_end(config, topics, schema_ids, asked_once)
    return tuple(sorted(name for name, mark in marks.items() if mark.kind is JournalKind.END))


def is_cancelled(config: ClientConfig, keyspace: str, reshard_id: str) -> bool:
    """Whether the topology says by now that a reshard is cancelled.

    That comes before the CANCELLED rows of the sources: rows in front of them are ordinary. Raises
    Retry or NoBrokerAnswers.
    """
    topology = _topology(config, keyspace)
    return topology is not None and any(
        entry.reshard_id == reshard_id and entry.state == ReshardState.CANCELLED.value
        for entry in topology.reshards
    )


def is_sharded(config: ClientConfig, keyspace: str, database: str) -> bool:
    """Whether a table of the database has a vindex in the topology by now.

    Without vindexes every database counts: nothing was resharded, and a search for END that passed
    over all rows would read the whole log. Raises Retry or NoBrokerAnswers.
    """
    topology = _topology(config, keyspace)
    if topology is None or not topology.vindexes:
        return True
    return database in topology.sharded_databases


def _topology(config: ClientConfig, keyspace: str) -> Topology | None:
    try:
        return read_topology(config, keyspace)
    except NoBrokerAnswers:
        raise
    except UsageError:  # the topic does not exist
        return None


_REPLICA_NOTE: Final = (
    "the server is a replica, and no primary is in the list: its clock says nothing about the "
    "primary, so the head moves with rows alone and an idle shard holds readers back; list the "
    "primary under `servers` (with `read = false` if it should not be streamed from), so that "
    "heartbeat rows can be written there"
)


@dataclass(frozen=True, slots=True)
class ChosenStart:
    """The server to follow, from where, and a note for the operator ("" for none).

    `is_new`: the log is empty, so that this is its beginning.
    """

    server: OpenServer
    is_replica: bool
    point: ResumePoint
    identity: ShardIdentity
    note: str
    is_new: bool


def choose_start(
    settings: ShardProducerSettings,
    servers: ServerList,
    progress: Progress | None,
    tail: LogTail,
) -> ChosenStart:
    """Choose a server that can continue from what is committed: `progress`, and the log's `tail`.

    Raises what `ServerList.choose`, `resume_point` and `find_position` raise.
    """
    topics = settings.shard_topics
    point = resume_point(topics, settings.flavor, progress, tail)
    is_new = point is None
    if point is None:
        server, point, identity, notes = _first(settings, servers)
        point = replace(point, lasts=lasts_before(server, point.position))
    else:
        chosen = _chosen(servers, point.position, point)
        server, notes = chosen.server, chosen.passed_over
        identity = prove_identity(server, servers.primary(), point.identity)
        if identity.found:
            notes.append(f"the log takes the identity of {server.name}: {identity.found}")
        notes += filter(None, [identity.note, check_lasts(server, point.lasts)])
        if settings.start is not None and settings.start != StartWord.LATEST:  # the default
            notes.append(
                f"start {settings.start!r} is ignored: {topics.log} is not empty, so the producer "
                "resumes from its end"
            )
    is_replica = server.is_replica()
    if is_replica and len(settings.servers) == 1:
        notes.append(_REPLICA_NOTE)
    return ChosenStart(server, is_replica, point, identity, "; ".join(notes), is_new)


def check_continues(
    settings: ShardProducerSettings, servers: ServerList, progress: Progress
) -> list[str]:
    """Raise what `choose_start` would for a log with this progress; return its notes.

    Nothing is written, so that a producer of the shard may run meanwhile.
    """
    position = parse_gtid_set(progress.position, settings.flavor)
    chosen = _chosen(servers, position, progress)
    if progress.identity:
        check_identity(chosen.server, progress.identity)
    note = check_lasts(chosen.server, progress.lasts)
    return [*chosen.passed_over, *filter(None, [note])]


def _chosen(servers: ServerList, position: GtidSet, end: ResumePoint | Progress) -> ServerChoice:
    """The server that continues.

    WrongServer and NumbersRanBackwards first, for the GTIDs look as if some were lost.
    """
    try:
        return servers.choose(position, end.lasts)
    except (ServerBehindLog, ServerDiverged):
        primary = servers.primary()
        if primary is not None:
            if end.identity:
                check_identity(primary, end.identity)
            check_behind(primary, end.lasts)
        raise


def _first(
    settings: ShardProducerSettings, servers: ServerList
) -> tuple[OpenServer, ResumePoint, ShardIdentity, list[str]]:
    """Where an empty log starts, by the settings' `start`."""
    if settings.start is None:
        raise UsageError(
            f"{servers.topics.log} is empty, so there is nothing to resume from: start a producer "
            "of it first, or say where to start (earliest, latest, a time or gtid:SET)"
        )
    start = parse_producer_start(settings.start)
    if isinstance(start, GtidStart):
        position = parse_gtid_set(start.text, settings.flavor)
        try:
            chosen = servers.choose(position)
        except (ServerBehindLog, ReplicaBehindLog) as error:
            raise UsageError(
                f"start {settings.start!r} names transactions that were not executed: {error}"
            ) from error
        notes = chosen.passed_over
        identity = _identity_of(servers, chosen.server, notes)
        return chosen.server, first_point(_known(position, chosen.server)), identity, notes
    chosen = servers.choose(None)
    server, notes = chosen.server, chosen.passed_over
    # Before the position is read: a new log need not begin with the statements that this takes.
    identity = _identity_of(servers, server, notes)
    if not isinstance(start, StartWord):
        there = server.history()
        found = find_position(server.settings, server.family, server.connection, start, there)
        point = first_point(_known(found.position, server), start)
        return server, point, identity, [*notes, found.note]
    history = server.history()
    # `earliest` takes what the server says that it still has.
    is_earliest = start is StartWord.EARLIEST
    position = before_binlogs(history) if is_earliest else history.executed
    return server, first_point(_known(position, server)), identity, notes


def _known(position: GtidSet, server: OpenServer) -> GtidSet:
    """The position; MariaDB's with the earlier writers that the server knows."""
    if not isinstance(position, MariadbGtidSet) or server.view is None:
        return position
    return position.knowing(server.view.history.executed)


def _identity_of(servers: ServerList, server: OpenServer, notes: list[str]) -> ShardIdentity:
    """The identity that a new log takes."""
    identity = prove_identity(server, servers.primary(), "")
    if identity.note:
        notes.append(identity.note)
    return identity


_RUNBOOK = "docs/runbook.md#errors-that-stop-a-process"


def log_findings(settings: ShardProducerSettings, schema_ids: SchemaIds) -> Findings:
    """Compare where the log ends with what the servers have, lack and have purged.

    A log that does not exist yet, or is empty, can be begun. The producer may run meanwhile: the
    log's end is read before the servers. Raises what `last_progress` does.
    """
    topics = settings.shard_topics
    try:
        progress = last_progress(settings.kafka, topics, schema_ids)
    except TopicMissing:
        return Findings()
    if progress is None:
        return Findings()
    try:
        with closing(ServerList.open(settings)) as servers:
            notes = check_continues(settings, servers, progress)
    except ShardstreamError as error:
        passes = isinstance(error, Retry | Rebuild)
        fix = f"see {_RUNBOOK}, {type(error).__name__}"
        return Findings([Problem(str(error), topics.log, fix, passing=passes)])
    return Findings(warnings=[f"{topics.log}: {note}" for note in notes])
