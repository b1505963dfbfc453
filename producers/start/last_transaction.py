"""Whether a server still has the transactions that a log read last, and not others in their place.

A server that loses the end of its binlog in a crash, or is restored from a backup, gives the same
GTIDs to other transactions; so does one of MariaDB whose domain was deleted and is used again. By
GTID sets alone that cannot be seen; by commit times it can.
"""

from collections.abc import Generator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from databases.server_facts import binlog_files
from event_token import Flavor, GtidSet, MariadbGtidSet, MysqlGtidSet
from event_token.errors import Halt
from event_token.mariadb_gtid import parse_mariadb_gtid
from producers.errors import (
    BinlogPurged,
    HistoryRewritten,
    NumbersRanBackwards,
    ServerBehindLog,
    StreamFailed,
    lost_advice,
    no_number_above,
    out_of_order_advice,
    start_over_advice,
)
from producers.replication.gtid_scan import BinlogTransaction, read_begin_us, transactions
from producers.replication.stream import ReplicationStream, random_server_id, server_errors
from producers.servers.choice import has_trace, is_purged
from producers.servers.server_list import OpenServer
from producers.start.position_at_time import DISORDER_US_MAX
from topics.progress.record import LASTS_MAX, LastTransaction

# What the server answers, or what is read, where a binlog has no event at a position.
_NO_EVENT_THERE: Final = (Halt, BinlogPurged, StreamFailed, IndexError, ValueError)


def at_its_place(server: OpenServer, last: LastTransaction) -> BinlogTransaction | None:
    """The transaction at the place where it was read, if this is the server it was read from."""
    if server.view is None or server.view.own != last.server or not last.binlog_file:
        return None
    with suppress(*_NO_EVENT_THERE):
        stream = ReplicationStream.open_file(
            server.settings, server.family, last.binlog_file, last.binlog_pos
        )
        with closing(stream):
            where = f"{last.binlog_file} of {server.name}"
            found = next(transactions(stream, server.family.flavor, where), None)
        if found is not None and str(found) == last.gtid:
            return found
    return None


def is_at_its_place(server: OpenServer, last: LastTransaction) -> bool:
    """Whether the server still has this very transaction, and so all before it, where it was."""
    found = at_its_place(server, last)
    return found is not None and found.commit_us == last.commit_us


# All are named in one SKIP record, and each is looked at for marks.
PASSED_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class DomainTail:
    """What a server has logged of a domain behind the log's last transaction.

    `passed`: the transactions whose numbers are not above the log's, in binlog order; `above`: the
    first whose number is, None where there is none yet.
    """

    passed: list[BinlogTransaction]
    above: BinlogTransaction | None

    @property
    def gtids(self) -> list[str]:
        """All of them."""
        return [str(each) for each in (*self.passed, self.above) if each is not None]


def read_domain_tail(
    server: OpenServer, position: MariadbGtidSet, domain: int, lasts: Sequence[LastTransaction]
) -> DomainTail:
    """What follows in a domain, from the place of the log's last transaction if it is known.

    NumbersRanBackwards when more than PASSED_MAX are out of order.
    """
    reached = newest = position.by_domain().get(domain, (0, 0))[1]
    own = (last for last in lasts if parse_mariadb_gtid(last.gtid)[0] == domain)
    there = next(filter(None, (_same(server, last) for last in own)), None)
    if there is not None:
        newest = there.gtid[2]
        behind = _behind(server, there)
    elif _executed(server, domain) > reached:
        behind = _all_of(server, server.open_stream(position, random_server_id()))
    else:
        return DomainTail([], None)
    passed: list[BinlogTransaction] = []
    with closing(behind):
        for transaction in behind:
            at, _, number = transaction.gtid
            if at != domain:
                continue
            if number > reached:
                return DomainTail(passed, transaction)
            if number <= newest:
                passed.append(transaction)
                _check_number(server, passed)
            newest = max(newest, number)  # one that was skipped before
    return DomainTail(passed, None)


def _all_of(
    server: OpenServer, stream: ReplicationStream
) -> Generator[BinlogTransaction, None, None]:
    with closing(stream):
        yield from transactions(stream, server.family.flavor, f"binlogs of {server.name}")


def _behind(
    server: OpenServer, there: BinlogTransaction
) -> Generator[BinlogTransaction, None, None]:
    """What follows a transaction. Beyond 4 GiB a place has no number: its file is read then."""
    exact = LastTransaction(
        str(there), there.commit_us, server.own_name(), there.binlog_file, there.binlog_pos
    )
    place = () if at_its_place(server, exact) is None else (there.binlog_pos,)
    stream = ReplicationStream.open_file(server.settings, server.family, there.binlog_file, *place)
    with closing(_all_of(server, stream)) as found:
        for transaction in found:
            if (transaction.gtid, transaction.commit_us) == (there.gtid, there.commit_us):
                break
        yield from found


def _executed(server: OpenServer, domain: int) -> int:
    executed = server.history().executed
    there = executed.by_domain() if isinstance(executed, MariadbGtidSet) else {}
    return there.get(domain, (0, 0))[1]


def _check_number(server: OpenServer, passed: list[BinlogTransaction]) -> None:
    if len(passed) > PASSED_MAX:
        raise NumbersRanBackwards(
            f"more than {PASSED_MAX} transactions of {server.name} have numbers that are not above "
            f"the log's, from {passed[0]} on: too many to pass. Start a new log with a copy"
        )


def _check_order(server: OpenServer, there: BinlogTransaction, last: LastTransaction) -> None:
    """Raise NumbersRanBackwards if the server would leave out what follows a last transaction.

    It starts in its newest file that begins below the position: only files behind the one with the
    log's last transaction, which is `there`, are looked at.
    """
    domain, _, number = parse_mariadb_gtid(last.gtid)
    with server_errors(server.settings, "looking at the beginnings of binlogs of"):
        names = binlog_files(server.connection)
        if there.binlog_file not in names:
            return  # purged at this moment
        later = names[names.index(there.binlog_file) + 1 :]
        befores = (server.family.before_file(server.connection, name) for name in later)
        is_below = any(
            isinstance(before, MariadbGtidSet)
            and before.by_domain().get(domain, (0, 0))[1] < number
            for before in befores
        )
    if is_below:
        check_behind(server, [last])


def check_behind(server: OpenServer, lasts: Sequence[LastTransaction]) -> None:
    """Raise NumbersRanBackwards if the server has a last transaction of the log, and lower numbers.

    Such a server looks as if a failover had lost transactions.
    """
    found = find_behind(server, lasts)
    if found is not None:
        raise ran_backwards(server, found)


def find_behind(server: OpenServer, lasts: Sequence[LastTransaction]) -> DomainTail | None:
    """What follows in the domain of a last transaction, if numbers ran backwards there."""
    if server.family.flavor is not Flavor.MARIADB:
        return None
    for last in reversed(lasts):
        if _same(server, last) is None:
            continue
        domain, writer, number = parse_mariadb_gtid(last.gtid)
        at_last = MariadbGtidSet.of({domain: (writer, number)})
        found = read_domain_tail(server, at_last, domain, [last])
        if found.passed:
            return found
    return None


def ran_backwards(server: OpenServer, found: DomainTail) -> NumbersRanBackwards:
    """The error that names what is out of order, and the way past it."""
    topics, first, count = server.topics, str(found.passed[0]), len(found.passed)
    how = no_number_above(first) if found.above is None else ""
    return NumbersRanBackwards(
        f"{server.name} has numbered {count} transaction(s), {first} to {found.passed[-1]}, not "
        f"above those that {topics.log} has of their domain: gtid_strict_mode was off. A position "
        f"of MariaDB cannot tell them from earlier ones. {how}{out_of_order_advice(topics, first)}"
    )


def check_lasts(server: OpenServer, lasts: Sequence[LastTransaction]) -> str:
    """Compare the log's last transactions with the server's of the same GTIDs.

    Returns a note for the operator where the server no longer has some, else "". Raises
    HistoryRewritten when it has another one under such a GTID, ServerBehindLog when it has others
    around it, NumbersRanBackwards when others behind it have numbers of MariaDB that are not above.
    """
    is_mysql = server.family.flavor is Flavor.MYSQL
    shown = _mysql_shown(server, lasts) if is_mysql else {}
    unverified = []
    for last in reversed(lasts):
        there = shown.get(last.gtid) if is_mysql else _mariadb_shown(server, last)
        if there is not None:
            _check_same(server, there, last)
        elif is_mysql or not _may_be_shown(server, last):
            unverified += [last.gtid] if last.binlog_file else []
        else:
            raise _not_shown(server, last)
    if not unverified:
        return ""
    gtids = ", ".join(unverified)
    return (
        f"unverified: the binlogs of {server.name} no longer contain {gtids}, of the last "
        f"transactions of {server.topics.log}, so whether they are still the same ones cannot be "
        "checked"
    )


def lasts_before(server: OpenServer, position: GtidSet) -> tuple[LastTransaction, ...]:
    """The last transactions of a position that a new log begins at, as the server shows them.

    One file is read for each domain of MariaDB.
    """
    gtids = position.ends()
    own = server.own_name()
    with server_errors(server.settings, "asking for the clock of"):
        now_us = server.family.moment(server.connection).clock_us
    ends = [LastTransaction(gtid, now_us, own, "", 0) for gtid in gtids[-LASTS_MAX:]]
    if server.family.flavor is Flavor.MYSQL:
        shown = _mysql_shown(server, ends)
    else:
        found = (_by_number(server, end) for end in ends if _may_be_shown(server, end))
        shown = {str(each): each for each in found if each is not None}
    return tuple(
        replace(
            end,
            commit_us=there.commit_us,
            binlog_file=there.binlog_file,
            binlog_pos=there.binlog_pos,
        )
        if (there := shown.get(end.gtid)) is not None
        else end
        for end in ends
    )


def _check_same(server: OpenServer, there: BinlogTransaction, last: LastTransaction) -> None:
    if last.is_same(there.commit_us):
        if server.family.flavor is Flavor.MARIADB:
            _check_order(server, there, last)
        return
    topics = server.topics
    reason = "it lost the end of its binlog in a crash, or was restored from a backup"
    if server.family.flavor is Flavor.MARIADB:
        reason += ", or the domain was deleted (DELETE_DOMAIN_ID) and is used again"
    known = f"which {last.server} had purged when the log began, at {_shown(last.commit_us)}"
    if last.binlog_file:
        known = (
            f"committed at {_shown(last.commit_us)} (read from server {last.server}, "
            f"{last.binlog_file}:{last.binlog_pos})"
        )
    raise HistoryRewritten(
        f"{topics.log} ends with transaction {last.gtid}, {known}, but {server.name} has another "
        f"one under this GTID, committed at {_shown(there.commit_us)}: {reason}. "
        "It gave the GTIDs to other transactions. The log holds changes that this "
        "server does not have, and would skip others. If another server of the shard has the log's "
        "transactions, make that one the primary and remove this one from `servers`. "
        f"{lost_advice(topics, last.gtid)} (it answers with all that were lost, and takes them "
        "then)"
    )


def _not_shown(server: OpenServer, last: LastTransaction) -> ServerBehindLog | BinlogPurged:
    """What is wrong where binlogs of MariaDB that begin before a transaction do not have it."""
    topics = server.topics
    if server.history().executed.contains_gtid(last.gtid):
        return BinlogPurged(
            f"{topics.log} ends with transaction {last.gtid}, which {server.name} has executed, "
            "and its binlogs have transactions before and after it, but not this one: a backup was "
            "loaded over them, and nothing tells what else they lack. "
            f"{start_over_advice(topics)}"
        )
    return ServerBehindLog(
        f"{topics.log} ends with transaction {last.gtid}, committed at "
        f"{_shown(last.commit_us)}, and {server.name} has transactions before and after it, "
        "but not this one: a failover lost it, and its server came back and wrote again. "
        f"{lost_advice(topics, last.gtid)}"
    )


def _shown(commit_us: int) -> str:
    return datetime.fromtimestamp(commit_us / 1_000_000, UTC).isoformat()


def _mysql_shown(
    server: OpenServer, lasts: Sequence[LastTransaction]
) -> dict[str, BinlogTransaction]:
    """The server's transactions of these GTIDs, as far as its binlogs have them, by GTID."""
    history = server.history()
    executed, wanted = history.executed, MysqlGtidSet()
    for last in lasts:
        wanted = wanted.add_gtid(last.gtid)
    wanted = wanted.subtract(history.purged)
    if wanted.is_empty or not isinstance(executed, MysqlGtidSet):
        return {}
    with suppress(BinlogPurged), closing(server.open_rest(executed.subtract(wanted))) as stream:
        where = f"binlogs of {server.name}"
        found = transactions(stream, server.family.flavor, where)
        return {str(each): each for each in found if wanted.contains_gtid(str(each))}
    return {}


def _same(server: OpenServer, last: LastTransaction) -> BinlogTransaction | None:
    """The very transaction on a MariaDB server; None if its binlogs do not show it."""
    there = _mariadb_shown(server, last)
    return there if there is not None and last.is_same(there.commit_us) else None


def _may_be_shown(server: OpenServer, last: LastTransaction) -> bool:
    """Whether a MariaDB server that has the transaction has it in its binlogs."""
    view = server.view or server.look(is_replica=server.is_replica())
    domain, _, number = parse_mariadb_gtid(last.gtid)
    return has_trace(view, domain) and not is_purged(view, domain, number)


def _mariadb_shown(server: OpenServer, last: LastTransaction) -> BinlogTransaction | None:
    """A MariaDB server's transaction of that GTID, the very same one if there are two."""
    there = at_its_place(server, last)
    if there is not None and last.is_same(there.commit_us):
        return there
    if not _may_be_shown(server, last):
        return None
    found = _by_number(server, last)
    if found is not None and last.is_same(found.commit_us):
        return found
    # Numbers may have run backwards, so that the beginnings of files do not tell.
    return _by_time(server, last) or found


def _by_number(server: OpenServer, last: LastTransaction) -> BinlogTransaction | None:
    """The transaction of that GTID in the last file that begins below its number."""
    domain, _, number = parse_mariadb_gtid(last.gtid)
    with server_errors(server.settings, "looking for a transaction in the binlogs of"):
        names = binlog_files(server.connection)
        for name in reversed(names):
            before = server.family.before_file(server.connection, name)
            if (
                isinstance(before, MariadbGtidSet)
                and before.by_domain().get(domain, (0, 0))[1] < number
            ):
                break
        else:
            return None
    stream = ReplicationStream.open_file(server.settings, server.family, name)
    with closing(_all_of(server, stream)) as found:
        for transaction in found:
            at, _, reached = transaction.gtid
            if at == domain and reached >= number:
                return transaction if str(transaction) == last.gtid else None
    return None


def _by_time(server: OpenServer, last: LastTransaction) -> BinlogTransaction | None:
    """The very transaction in the binlogs from the newest one that surely began before it."""
    with server_errors(server.settings, "looking for a transaction in the binlogs of"):
        names = binlog_files(server.connection)
    name = names[0]
    for name in reversed(names):
        stream = ReplicationStream.open_file(server.settings, server.family, name)
        with closing(stream):
            begin_us = read_begin_us(stream, f"{name} of {server.name}")
        if begin_us + DISORDER_US_MAX < last.commit_us:
            break
    stream = ReplicationStream.open_file(server.settings, server.family, name)
    with closing(_all_of(server, stream)) as found:
        same = (e for e in found if str(e) == last.gtid and last.is_same(e.commit_us))
        return next(same, None)
