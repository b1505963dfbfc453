"""Where a session begins: the place that the log says, on the server that can serve it best."""

from dataclasses import dataclass
from typing import Final

from event_token import parse_gtid_set
from event_token.errors import UsageError
from producers.errors import ReplicaBehindLog, ServerBehindLog
from producers.servers.server_list import OpenServer, ServerList
from producers.settings import ShardProducerSettings
from producers.start.binlog_search import find_start
from producers.start.log_end import read_log_end
from producers.start.resume import (
    START_GTID,
    START_TAIL,
    START_TIMESTAMP,
    ResumePoint,
    check_start,
    first_point,
    resume_point,
    start_position,
)
from producers.start.times import parse_time
from topics.names import ShardTopics
from topics.schemas.ids import SchemaIds

_REPLICA_NOTE: Final = (
    "the server is a replica, and no primary is in the list: its clock says nothing about the "
    "primary, so the head moves with rows alone and an idle shard holds readers back"
)


@dataclass(frozen=True, slots=True)
class Beginning:
    """The server to follow, from where, and what an operator should hear of it."""

    server: OpenServer
    is_replica: bool
    point: ResumePoint
    note: str


def begin(
    settings: ShardProducerSettings,
    topics: ShardTopics,
    schema_ids: SchemaIds,
    servers: ServerList,
) -> Beginning:
    """Read what is committed, after fencing, and find a server that can go on from there.

    Raises what `ServerList.choose`, `resume_point` and `find_start` raise.
    """
    progress, log = read_log_end(settings.kafka, topics, schema_ids)
    point = resume_point(topics, settings.flavor, progress, log)
    if point is None:
        server, point, notes = _first(settings, topics, servers)
    else:
        chosen = servers.choose(topics, point.position)
        server, notes = chosen.server, chosen.passed_over
        if settings.start != START_TAIL:
            notes.append(
                f"start {settings.start!r} does not count: {topics.log} is not empty and goes on "
                "from its tail"
            )
    is_replica = server.is_replica()
    if is_replica and len(settings.servers) == 1:
        notes.append(_REPLICA_NOTE)
    return Beginning(server, is_replica, point, "; ".join(notes))


def _first(
    settings: ShardProducerSettings, topics: ShardTopics, servers: ServerList
) -> tuple[OpenServer, ResumePoint, list[str]]:
    """Where an empty log begins, by the settings' `start`."""
    start = settings.start
    check_start(start)
    if start.startswith(START_GTID):
        position = parse_gtid_set(start.removeprefix(START_GTID), settings.flavor)
        try:
            chosen = servers.choose(topics, position)
        except (ServerBehindLog, ReplicaBehindLog) as error:
            message = f"start {start!r} names what was never executed, or not yet: {error}"
            raise UsageError(message) from error
        return chosen.server, first_point(position), chosen.passed_over
    chosen = servers.choose(topics, None)
    server, notes = chosen.server, chosen.passed_over
    if start.startswith(START_TIMESTAMP):
        time_us = parse_time(start.removeprefix(START_TIMESTAMP))
        there = server.view.history if server.view is not None else server.history()
        found = find_start(server.settings, server.family, server.connection, time_us, there)
        return server, first_point(found.position), [*notes, found.note]
    # `earliest` takes what is left, by the server's own words.
    position = start_position(topics, start, settings.flavor, server.history())
    return server, first_point(position), notes
