"""Which of a shard's servers can be followed, by GTIDs alone: clocks do not matter. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from databases.server_facts import ServerHistory
from event_token import GtidSet, MariadbGtidSet, MysqlGtidSet
from event_token.errors import Rebuild, Retry, ShardstreamError
from event_token.mariadb_gtid import parse_mariadb_gtid
from producers.errors import (
    BinlogPurged,
    ReplicaBehindLog,
    ServerBehindLog,
    ServerDiverged,
    lost_advice,
    start_over_advice,
)
from topics.names import ShardTopics
from topics.progress.record import LastTransaction

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
        gone = there.purged.beyond(position)
        or_backup = ", or got it with a backup" if isinstance(gone, MariadbGtidSet) else ""
        raise BinlogPurged(
            f"{topics.log} is at {shown(position)}; {server} has purged {_gone(gone)} from its "
            f"binlogs{or_backup}. {start_over_advice(topics)}"
        )
    if there.executed.reaches(position):
        return
    missing = position.beyond(there.executed)
    lacking = shown(missing)
    if replica:
        raise ReplicaBehindLog(f"replica {server} has not yet applied {lacking} of {topics.log}")
    raise ServerBehindLog(
        f"{topics.log} holds {lacking}, which {server} has never executed: a failover lost these "
        f"transactions, or this is the wrong server{_forgets(missing, there)}. Readers of the log "
        "may have them already: decide which of the two is right. "
        f"{lost_advice(topics, str(missing))}"
    )


def _forgets(missing: GtidSet, there: ServerHistory) -> str:
    """What else the reason may be where a MariaDB server has no trace of a domain."""
    executed = there.executed
    if not isinstance(missing, MariadbGtidSet) or not isinstance(executed, MariadbGtidSet):
        return ""
    if missing.by_domain().keys() <= executed.by_domain().keys():
        return ""
    return ", or it was made to forget a domain (DELETE_DOMAIN_ID)"


def _gone(purged: GtidSet) -> str:
    """What no binlog has, as text; of UnlistedNumbers' domains the writer is not known."""
    if not isinstance(purged, MariadbGtidSet):
        return shown(purged)
    return ",".join(
        f"{domain}-{writer}-{number}" if writer else f"number {number + 1} of domain {domain}"
        for domain, writer, number in purged.domains[:_GTIDS_SHOWN_MAX]
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
    topics: ShardTopics,
    position: GtidSet | None,
    views: Sequence[ServerView],
    lasts: Sequence[LastTransaction] = (),
) -> dict[str, ShardstreamError]:
    """The servers that cannot be followed, by name, each with the reason.

    `position`: what the log holds, None for an empty log. `lasts`: its last transactions. Primaries
    must have been read after replicas: then a transaction that a replica has and no primary is
    errant.
    """
    faults: dict[str, ShardstreamError] = {}
    for view in views:
        others = [other for other in views if other.name != view.name]
        fault = None if position is None else unreachable(topics, position, view, lasts)
        fault = fault or _diverged(position, view, others)
        if fault is not None:
            faults[view.name] = fault
    return faults


def unreachable(
    topics: ShardTopics,
    position: GtidSet,
    view: ServerView,
    lasts: Sequence[LastTransaction] = (),
) -> ShardstreamError | None:
    """Why a log cannot go on with a server from its position, None where it can."""
    position = remembered(position, view, lasts)
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


def remembered(position: GtidSet, view: ServerView, lasts: Sequence[LastTransaction]) -> GtidSet:
    """The position without the domains that the server surely had, and was made to forget.

    A domain that was deleted (DELETE_DOMAIN_ID) leaves no trace, as one that a failover lost. What
    was read from this very server, from a binlog that it has purged since, or was purged there when
    the log began, was not lost.
    """
    if not isinstance(position, MariadbGtidSet):
        return position
    for last in lasts:
        domain, _, _ = parse_mariadb_gtid(last.gtid)
        is_gone = not last.binlog_file or is_before(last.binlog_file, view.history.oldest)
        if last.server == view.own and is_gone and not has_trace(view, domain):
            position = position.at_domain(domain, MariadbGtidSet())
    return position


def has_caught_up(executed: GtidSet, wanted: GtidSet) -> bool:
    """Whether a server has what another one had; MariaDB's of one history.

    A domain of which it has no trace does not count: it may have been made to forget it, and what
    the log holds of one is looked at by itself.
    """
    if isinstance(executed, MariadbGtidSet) and isinstance(wanted, MariadbGtidSet):
        known = executed.by_domain()
        theirs = wanted.by_domain()
        wanted = MariadbGtidSet.of({each: theirs[each] for each in theirs.keys() & known.keys()})
    return executed.reaches(wanted)


def has_trace(view: ServerView, domain: int) -> bool:
    """Whether a MariaDB server knows a domain: without a trace of it nobody can tell if it had."""
    there = view.history
    sets = (each for each in (there.executed, there.purged) if isinstance(each, MariadbGtidSet))
    return any(domain in each.by_domain() for each in sets)


def is_before(file: str, other: str) -> bool:
    """Whether one binlog file of a server was written before another one."""
    (name, _, number), (same, _, later) = file.rpartition("."), other.rpartition(".")
    return name == same and number.isdigit() and later.isdigit() and int(number) < int(later)


def asked_for(position: GtidSet, view: ServerView) -> GtidSet:
    """A position as the server is asked for what follows it.

    Of a domain of MariaDB of which the binlogs have nothing up to there, the server would look for
    the transaction before in vain. It sends a domain that it is not asked for from its beginning.
    """
    if not isinstance(position, MariadbGtidSet):
        return position
    first, purged = view.history.first, view.history.purged
    listed = purged.by_domain() if isinstance(purged, MariadbGtidSet) else {}
    logged = {*listed, *(domain for domain, _ in view.state)}
    for domain, (_, number) in position.by_domain().items():
        if first.get(domain, (0, 0))[1] > number or domain not in logged:
            position = position.at_domain(domain, MariadbGtidSet())
    return position


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
    held = position if isinstance(position, MariadbGtidSet) else MariadbGtidSet()
    return _listed(
        (domain, server, number)
        for (domain, server), number in view.state.items()
        if not held.contains_gtid(f"{domain}-{server}-{number}")
        and all(not is_known(other, domain, server, number) for other in others)
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
