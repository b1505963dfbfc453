"""Chooses the server that a session follows, and the position it starts from."""

from dataclasses import dataclass
from typing import Final

from event_token import GtidSet, MariadbGtidSet, parse_gtid_set
from event_token.errors import UsageError
from producers.errors import ReplicaBehindLog, ServerBehindLog, ServerDiverged
from producers.servers.identity import ShardIdentity, check_identity, prove_identity
from producers.servers.server_list import Chosen, OpenServer, ServerList
from producers.settings import ShardProducerSettings
from producers.skip.out_of_order import check_behind
from producers.start.last_transaction import check_last
from producers.start.position_at_time import find_position
from producers.start.resume_point import ResumePoint, first_point, resume_point
from topics.names import ShardTopics
from topics.progress.committed_tail import LogTail
from topics.progress.record import Progress
from topics.start.start_forms import GtidStart, StartWord, parse_producer_start

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
    topics: ShardTopics,
    servers: ServerList,
    progress: Progress | None,
    tail: LogTail,
) -> ChosenStart:
    """Choose a server that can continue from what is committed: `progress`, and the log's `tail`.

    Raises what `ServerList.choose`, `resume_point` and `find_position` raise.
    """
    point = resume_point(topics, settings.flavor, progress, tail)
    is_new = point is None
    if point is None:
        server, point, identity, notes = _first(settings, topics, servers)
    else:
        chosen = _chosen(topics, servers, point.position, point)
        server, notes = chosen.server, chosen.passed_over
        identity = prove_identity(topics, server, servers.primary(), point.identity)
        if identity.found:
            notes.append(f"the log takes the identity of {server.name}: {identity.found}")
        notes += filter(None, [identity.note, check_last(topics, server, point.last)])
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
    settings: ShardProducerSettings, topics: ShardTopics, servers: ServerList, progress: Progress
) -> list[str]:
    """Raise what `choose_start` would for a log with this progress; return its notes.

    Nothing is written, so that a producer of the shard may run meanwhile.
    """
    position = parse_gtid_set(progress.position, settings.flavor)
    chosen = _chosen(topics, servers, position, progress)
    if progress.identity:
        check_identity(topics, chosen.server, progress.identity)
    note = check_last(topics, chosen.server, progress.last)
    return [*chosen.passed_over, *filter(None, [note])]


def _chosen(
    topics: ShardTopics, servers: ServerList, position: GtidSet, end: ResumePoint | Progress
) -> Chosen:
    """The server that continues.

    WrongServer and NumbersRanBackwards first, for the GTIDs look as if some were lost.
    """
    try:
        return servers.choose(topics, position)
    except (ServerBehindLog, ServerDiverged):
        primary = servers.primary()
        if primary is not None:
            if end.identity:
                check_identity(topics, primary, end.identity)
            check_behind(topics, primary, end.last)
        raise


def _first(
    settings: ShardProducerSettings, topics: ShardTopics, servers: ServerList
) -> tuple[OpenServer, ResumePoint, ShardIdentity, list[str]]:
    """Where an empty log starts, by the settings' `start`."""
    if settings.start is None:
        raise UsageError(
            f"{topics.log} is empty, so there is nothing to resume from: start a producer of it "
            "first, or say where to start (earliest, latest, a time or gtid:SET)"
        )
    start = parse_producer_start(settings.start)
    if isinstance(start, GtidStart):
        position = parse_gtid_set(start.text, settings.flavor)
        try:
            chosen = servers.choose(topics, position)
        except (ServerBehindLog, ReplicaBehindLog) as error:
            raise UsageError(
                f"start {settings.start!r} names transactions that were not executed: {error}"
            ) from error
        notes = chosen.passed_over
        identity = _identity_of(topics, servers, chosen.server, notes)
        return chosen.server, first_point(_known(position, chosen.server)), identity, notes
    chosen = servers.choose(topics, None)
    server, notes = chosen.server, chosen.passed_over
    # Before the position is read: a new log need not begin with the statements that this takes.
    identity = _identity_of(topics, servers, server, notes)
    if not isinstance(start, StartWord):
        there = server.view.history if server.view is not None else server.history()
        found = find_position(server.settings, server.family, server.connection, start, there)
        point = first_point(_known(found.position, server), start)
        return server, point, identity, [*notes, found.note]
    history = server.history()
    # `earliest` takes what the server says that it still has.
    position = history.purged if start is StartWord.EARLIEST else history.executed
    return server, first_point(_known(position, server)), identity, notes


def _known(position: GtidSet, server: OpenServer) -> GtidSet:
    """The position; MariaDB's with the earlier writers that the server knows."""
    if not isinstance(position, MariadbGtidSet) or server.view is None:
        return position
    return position.knowing(server.view.history.executed)


def _identity_of(
    topics: ShardTopics, servers: ServerList, server: OpenServer, notes: list[str]
) -> ShardIdentity:
    """The identity that a new log takes."""
    identity = prove_identity(topics, server, servers.primary(), "")
    if identity.note:
        notes.append(identity.note)
    return identity
