"""Which of a shard's servers can be followed: by GTIDs alone, no clock is asked. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from databases.server_facts import ServerHistory
from event_token import GtidSet, MariadbGtidSet, MysqlGtidSet
from event_token.errors import Rebuild, Retry, ShardstreamError
from producers.errors import BinlogPurged, ReplicaBehindLog, ServerBehindLog, ServerDiverged
from producers.servers.reachable import check_reachable, shown
from topics.names import ShardTopics

# MariaDB's gtid_binlog_state: the last number that each server wrote in each domain.
BinlogState = Mapping[tuple[int, int], int]
# A message with thousands of GTIDs helps nobody.
_GTIDS_SHOWN_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class ServerView:
    """What a server says of itself. `own`: its uuid (MySQL) or server id (MariaDB)."""

    name: str
    is_replica: bool
    own: str
    history: ServerHistory
    state: BinlogState = field(default_factory=dict)


def judge(
    topics: ShardTopics, position: GtidSet | None, views: Sequence[ServerView]
) -> dict[str, ShardstreamError]:
    """Say of each server that cannot be followed why, by name.

    `position`: what the log holds, None for an empty log. Primaries must have been looked at after
    replicas: then a replica's transaction that no primary has is its own (errant).
    """
    faults: dict[str, ShardstreamError] = {}
    for view in views:
        others = [other for other in views if other.name != view.name]
        fault = None if position is None else _unreachable(topics, position, view)
        fault = fault or _diverged(position, view, others)
        if fault is not None:
            faults[view.name] = fault
    return faults


def _unreachable(
    topics: ShardTopics, position: GtidSet, view: ServerView
) -> ShardstreamError | None:
    split = _split(position, view)
    if split:
        text = (
            f"{topics.log} holds {split}, and {view.name} has other transactions in its place: "
            "their histories have parted. Decide which of the two is right"
        )
        return ServerDiverged(text) if view.is_replica else ServerBehindLog(text)
    try:
        check_reachable(topics, view.name, position, view.history, replica=view.is_replica)
    except (BinlogPurged, ReplicaBehindLog, ServerBehindLog) as fault:
        return fault
    return None


def _split(position: GtidSet, view: ServerView) -> str:
    """The log's last GTIDs that a MariaDB server passed by: its numbers are higher, or others'."""
    executed = view.history.executed
    if not (isinstance(position, MariadbGtidSet) and isinstance(executed, MariadbGtidSet)):
        return ""
    there = executed.by_domain()
    passed = [
        f"{domain}-{server}-{number}"
        for domain, server, number in position.domains
        if there.get(domain, (0, 0))[1] >= number and not _knows(view, domain, server, number)
    ]
    return ",".join(passed)


def _diverged(
    position: GtidSet | None, view: ServerView, others: Sequence[ServerView]
) -> ServerDiverged | None:
    primaries = [other for other in others if not other.is_replica]
    if view.is_replica and primaries:
        errant = _only_in(view, primaries, position)
        if errant:
            names = " and ".join(primary.name for primary in primaries)
            return ServerDiverged(
                f"replica {view.name} has executed {errant}, which its primary {names} has not: "
                "somebody wrote on the replica (errant GTIDs). Rebuild it, or take it from the list"
            )
    elif view.is_replica and position is not None:
        errant = _own_in(view, others, position)
        if errant:
            return ServerDiverged(
                f"replica {view.name} has itself written {errant}, and no other server that can be "
                "reached confirms it: a primary must be reachable, or this one be promoted"
            )
    else:
        for primary in primaries:
            errant = _only_in(view, [primary], None)
            if errant and _only_in(primary, [view], None):
                return ServerDiverged(
                    f"{view.name} has executed {errant}, which {primary.name} lacks, and the other "
                    "way round: both take writes, or one of them was replaced and came back. Take "
                    "the wrong one from the list"
                )
    return None


def _only_in(view: ServerView, others: Sequence[ServerView], position: GtidSet | None) -> str:
    """What none of the others has executed, as text. The log's own transactions do not count."""
    mine = view.history.executed
    if isinstance(mine, MysqlGtidSet):
        for other in others:
            mine = mine.subtract(other.history.executed)
        return shown(mine if position is None else mine.subtract(position))
    return _listed(
        (domain, server, number)
        for (domain, server), number in view.state.items()
        if all(not _knows(other, domain, server, number) for other in others)
    )


def _own_in(view: ServerView, others: Sequence[ServerView], position: GtidSet | None) -> str:
    """What the server itself wrote, and neither the others nor the log have."""
    mine = view.history.executed
    if isinstance(mine, MysqlGtidSet):
        own = UUID(view.own).bytes
        wrote = MysqlGtidSet.of({t: list(i) for t, i in mine.servers if t[0] == own})
        for other in others:
            wrote = wrote.subtract(other.history.executed)
        return shown(wrote if position is None else wrote.subtract(position))
    there = position.by_domain() if isinstance(position, MariadbGtidSet) else {}
    return _listed(
        (domain, server, number)
        for (domain, server), number in view.state.items()
        if str(server) == view.own
        and number > there.get(domain, (0, 0))[1]
        and all(not _knows(other, domain, server, number) for other in others)
    )


def _knows(view: ServerView, domain: int, server: int, number: int) -> bool:
    """Whether a MariaDB server's binlogs have this GTID, or begin behind it."""
    if view.state.get((domain, server), 0) >= number:
        return True
    purged = view.history.purged
    gone = purged.by_domain() if isinstance(purged, MariadbGtidSet) else {}
    writer, last = gone.get(domain, (0, 0))
    # By server 0 (UnlistedNumbers) one more is gone, and nobody knows who wrote that.
    return number <= (last if writer else last + 1) and last > 0


def _listed(gtids: Iterable[tuple[int, int, int]]) -> str:
    texts = [f"{domain}-{server}-{number}" for domain, server, number in sorted(gtids)]
    more = "..." if len(texts) > _GTIDS_SHOWN_MAX else ""
    return ",".join(texts[:_GTIDS_SHOWN_MAX]) + more


def none_usable(faults: Mapping[str, ShardstreamError]) -> ShardstreamError:
    """The one error to raise where each server has its own; what may pass is waited for."""
    found = list(faults.values())
    if len(found) == 1:
        return found[0]
    text = f"none of {len(found)} servers can be followed: {'; '.join(map(str, found))}"
    passing = [fault for fault in found if isinstance(fault, Rebuild | Retry)]
    for kind in (ReplicaBehindLog, BinlogPurged):
        if any(isinstance(fault, kind) for fault in passing or found):
            return kind(text)
    return type((passing or found)[0])(text)


def must_stop(
    views: Sequence[ServerView], faults: Mapping[str, ShardstreamError]
) -> ShardstreamError | None:
    """The fault of a primary that stops the shard whatever other servers there are."""
    for view in views:
        fault = faults.get(view.name)
        if not view.is_replica and isinstance(fault, ServerBehindLog | ServerDiverged):
            return fault
    return None
