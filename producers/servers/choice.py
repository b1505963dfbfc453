"""Which of a shard's servers can be followed, by GTIDs alone: clocks do not matter. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from databases.server_facts import ServerHistory
from event_token import GtidSet, MariadbGtidSet, MysqlGtidSet
from event_token.errors import Rebuild, Retry, ShardstreamError
from producers.errors import (
    BinlogPurged,
    ReplicaBehindLog,
    ServerBehindLog,
    ServerDiverged,
    lost_advice,
)
from topics.names import ShardTopics

# Longer GTID sets are cut in messages.
_SHOWN_CHARS_MAX: Final = 500


def check_reachable(
    topics: ShardTopics, server: str, position: GtidSet, there: ServerHistory, *, replica: bool
) -> None:
    """Check purged <= position <= executed; of MariaDB's positions that are of one history.

    BinlogPurged if the server has purged what the log still needs; ServerBehindLog if a primary,
    ReplicaBehindLog if a replica lacks what the log holds.
    """
    if not position.reaches(there.purged):
        gone = shown(there.purged.beyond(position))
        raise BinlogPurged(
            f"{topics.log} is at {shown(position)}; {server} has purged {gone} from its binlogs: "
            "use a server that has it, or start a new log with a copy"
        )
    if there.executed.reaches(position):
        return
    missing = position.beyond(there.executed)
    lacking = shown(missing)
    if replica:
        raise ReplicaBehindLog(f"replica {server} has not yet applied {lacking} of {topics.log}")
    raise ServerBehindLog(
        f"{topics.log} holds {lacking}, which {server} has never executed: a failover lost these "
        "transactions, or this is the wrong server. Readers of the log may have them already: "
        f"decide which of the two is right. {lost_advice(topics, str(missing))}"
    )


def shown(position: GtidSet) -> str:
    """The set as text, cut if it is long."""
    text = str(position)
    return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}..."


# MariaDB's gtid_binlog_state: the last sequence number by (domain, server).
BinlogState = Mapping[tuple[int, int], int]
# A message names at most this many GTIDs.
_GTIDS_SHOWN_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class ServerView:
    """What a server reports. `own`: its UUID (MySQL) or server id (MariaDB)."""

    name: str
    is_replica: bool
    own: str
    history: ServerHistory
    state: BinlogState = field(default_factory=dict)


def find_faults(
    topics: ShardTopics, position: GtidSet | None, views: Sequence[ServerView]
) -> dict[str, ShardstreamError]:
    """The servers that cannot be followed, by name, each with the reason.

    `position`: what the log holds, None for an empty log. Primaries must have been read after
    replicas: then a transaction that a replica has and no primary is errant.
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
            "their histories have diverged. Decide which of the two is right"
        )
        if view.is_replica:
            return ServerDiverged(text)
        return ServerBehindLog(f"{text}. {lost_advice(topics, str(lacking(position, view)))}")
    try:
        check_reachable(topics, view.name, position, view.history, replica=view.is_replica)
    except (BinlogPurged, ReplicaBehindLog, ServerBehindLog) as fault:
        return fault
    return None


def _split(position: GtidSet, view: ServerView) -> str:
    """The log's last GTIDs that a MariaDB server lacks although its numbers are higher."""
    executed = view.history.executed
    if not isinstance(position, MariadbGtidSet) or not isinstance(executed, MariadbGtidSet):
        return ""
    there = executed.by_domain()
    passed = [
        f"{domain}-{server}-{number}"
        for domain, server, number in position.domains
        if _reached(there, domain) >= number and not is_known(view, domain, server, number)
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
                "errant GTIDs, written on the replica itself. Rebuild the replica, or remove it "
                "from `servers`"
            )
    elif view.is_replica and position is not None:
        errant = _own_in(view, others, position)
        if errant:
            return ServerDiverged(
                f"replica {view.name} has itself written {errant}, and no other server that can be "
                "reached has it: make a primary reachable, or promote this replica"
            )
    else:
        for primary in primaries:
            errant = _only_in(view, [primary], None)
            if errant and _only_in(primary, [view], None):
                return ServerDiverged(
                    f"{view.name} has executed {errant}, {primary.name} has not, and vice versa: "
                    "both take writes, or one of them was replaced and came back. Remove the "
                    "wrong one from `servers`"
                )
    return None


def _only_in(view: ServerView, others: Sequence[ServerView], position: GtidSet | None) -> str:
    """What none of the others has executed, nor the log holds, as text."""
    mine = view.history.executed
    if isinstance(mine, MysqlGtidSet):
        for other in others:
            mine = mine.subtract(other.history.executed)
        return shown(mine if position is None else mine.subtract(position))
    return _listed(
        (domain, server, number)
        for (domain, server), number in view.state.items()
        if all(not is_known(other, domain, server, number) for other in others)
    )


def _own_in(view: ServerView, others: Sequence[ServerView], position: GtidSet | None) -> str:
    """What the server itself wrote, and neither the others nor the log have, as text."""
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
        and number > _reached(there, domain)
        and all(not is_known(other, domain, server, number) for other in others)
    )


def lacking(position: GtidSet, view: ServerView) -> GtidSet:
    """What the log holds and a server lacks; of MariaDB's domains the log's last GTIDs."""
    if not isinstance(position, MariadbGtidSet):
        return position.subtract(view.history.executed)
    unknown = [at for at in position.domains if not is_known(view, *at)]
    return MariadbGtidSet.of({domain: (server, number) for domain, server, number in unknown})


def is_known(view: ServerView, domain: int, server: int, number: int) -> bool:
    """Whether a MariaDB server's binlogs may have this GTID, or begin after it.

    Where other servers wrote between it and the last number of its writer, only the binlogs tell.
    """
    return view.state.get((domain, server), 0) >= number or is_purged(view, domain, number)


def is_purged(view: ServerView, domain: int, number: int) -> bool:
    """Whether a MariaDB server's binlogs begin after this number."""
    purged = view.history.purged
    gone = purged.by_domain().get(domain) if isinstance(purged, MariadbGtidSet) else None
    if gone is None:
        return False
    writer, last = gone
    # With server 0 (UnlistedNumbers) one more is gone; which server wrote it is unknown.
    return number <= (last if writer else last + 1)


def _reached(there: Mapping[int, tuple[int, int]], domain: int) -> int:
    """The last sequence number of a domain, 0 where it has none."""
    return there[domain][1] if domain in there else 0


def _listed(gtids: Iterable[tuple[int, int, int]]) -> str:
    texts = [f"{domain}-{server}-{number}" for domain, server, number in sorted(gtids)]
    more = "..." if len(texts) > _GTIDS_SHOWN_MAX else ""
    return ",".join(texts[:_GTIDS_SHOWN_MAX]) + more


def none_usable(faults: Mapping[str, ShardstreamError]) -> ShardstreamError:
    """The one error to raise when each server has its own; transient ones take precedence."""
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
    """The fault of a primary that stops the shard, even if other servers could be followed."""
    for view in views:
        fault = faults.get(view.name)
        if not view.is_replica and isinstance(fault, ServerBehindLog | ServerDiverged):
            return fault
    return None
