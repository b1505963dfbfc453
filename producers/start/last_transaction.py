"""Whether a server still has the transaction that a log read last, and not another in its place.

A server that loses the end of its binlog in a crash, or is restored from a backup, gives the same
GTIDs to other transactions. By GTID sets alone that cannot be seen; by commit times it can.
"""

from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from databases.server_facts import binlog_files
from event_token import Flavor, MariadbGtidSet, MysqlGtidSet
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
)
from producers.replication.gtid_scan import BinlogTransaction, transactions
from producers.replication.stream import ReplicationStream, random_server_id, server_errors
from producers.servers.choice import is_purged
from producers.servers.server_list import OpenServer
from topics.progress.record import LastTransaction

# What the server answers, or what is read, where a binlog has no event at a position.
_NO_EVENT_THERE: Final = (Halt, BinlogPurged, StreamFailed, IndexError, ValueError)


def at_its_place(server: OpenServer, last: LastTransaction) -> BinlogTransaction | None:
    """The transaction at the place where it was read, if this is the server it was read from."""
    if server.view is None or server.view.own != last.server:
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
    server: OpenServer, position: MariadbGtidSet, domain: int, last: LastTransaction | None
) -> DomainTail:
    """What follows in a domain, from the place of the log's last transaction if it is known.

    NumbersRanBackwards when more than PASSED_MAX are out of order.
    """
    reached = newest = position.by_domain().get(domain, (0, 0))[1]
    is_at_place = last is not None and _number_in(last, domain) > 0 and at_its_place(server, last)
    if last is not None and is_at_place:
        newest = _number_in(last, domain)
        stream = ReplicationStream.open_file(
            server.settings, server.family, last.binlog_file, last.binlog_pos
        )
    elif _executed(server, domain) > reached:
        stream = ReplicationStream.open(
            server.settings, server.family, position, random_server_id()
        )
    else:
        return DomainTail([], None)
    passed: list[BinlogTransaction] = []
    with closing(stream):
        behind = transactions(stream, Flavor.MARIADB, f"binlogs of {server.name}")
        if is_at_place:
            next(behind, None)  # the last one itself
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


def _number_in(last: LastTransaction, domain: int) -> int:
    """The number of a transaction, 0 if it is of another domain."""
    at, _, number = parse_mariadb_gtid(last.gtid)
    return number if at == domain else 0


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


def check_order(server: OpenServer, last: LastTransaction) -> None:
    """Raise NumbersRanBackwards if the server would leave out what follows the last transaction.

    It starts in its newest file that begins below the position: only files behind the one with the
    log's last transaction are looked at.
    """
    if server.family.flavor is not Flavor.MARIADB or not at_its_place(server, last):
        return
    domain, _, number = parse_mariadb_gtid(last.gtid)
    with server_errors(server.settings, "looking at the beginnings of binlogs of"):
        names = binlog_files(server.connection)
        if last.binlog_file not in names:
            return  # purged at this moment
        later = names[names.index(last.binlog_file) + 1 :]
        befores = [server.family.before_file(server.connection, name) for name in later]
    for before in befores:
        if (
            isinstance(before, MariadbGtidSet)
            and before.by_domain().get(domain, (0, 0))[1] < number
        ):
            check_behind(server, last)
            return


def check_behind(server: OpenServer, last: LastTransaction | None) -> None:
    """Raise NumbersRanBackwards if the server has the log's last transaction, and lower numbers.

    Such a server looks as if a failover had lost transactions.
    """
    if last is None or server.family.flavor is not Flavor.MARIADB:
        return
    if not at_its_place(server, last):
        return
    domain, writer, number = parse_mariadb_gtid(last.gtid)
    found = read_domain_tail(server, MariadbGtidSet.of({domain: (writer, number)}), domain, last)
    if found.passed:
        raise ran_backwards(server, found)


def ran_backwards(server: OpenServer, found: DomainTail) -> NumbersRanBackwards:
    """The error that names what is out of order, and the way past it."""
    topics, first, count = server.topics, str(found.passed[0]), len(found.passed)
    how = no_number_above(first) if found.above is None else ""
    return NumbersRanBackwards(
        f"{server.name} has numbered {count} transaction(s), {first} to {found.passed[-1]}, not "
        f"above those that {topics.log} has of their domain: gtid_strict_mode was off. A position "
        f"of MariaDB cannot tell them from earlier ones. {how}{out_of_order_advice(topics, first)}"
    )


def check_last(server: OpenServer, last: LastTransaction | None) -> str:
    """Compare the log's last transaction with the server's of the same GTID.

    Returns a note for the operator where the server no longer has it, else "". Raises
    HistoryRewritten when it has another one under this GTID, ServerBehindLog when it has others
    around it, NumbersRanBackwards when others behind it have numbers of MariaDB that are not above.
    """
    if last is None:
        return ""
    topics, found = server.topics, _find(server, last)
    if found is None and _is_lost(server, last):
        raise ServerBehindLog(
            f"{topics.log} ends with transaction {last.gtid}, committed at "
            f"{_shown(last.commit_us)}, and {server.name} has transactions before and after it, "
            "but not this one: a failover lost it, and its server came back and wrote again. "
            f"{lost_advice(topics, last.gtid)}"
        )
    if found is None:
        return (
            f"unverified: the binlogs of {server.name} no longer contain {last.gtid}, the last "
            f"transaction of {topics.log}, so whether it is still the same one cannot be checked"
        )
    if found.commit_us == last.commit_us:
        check_order(server, last)
        return ""
    raise HistoryRewritten(
        f"{topics.log} ends with transaction {last.gtid}, committed at {_shown(last.commit_us)} "
        f"(read from server {last.server}, {last.binlog_file}:{last.binlog_pos}), but "
        f"{server.name} has another one under this GTID, committed at {_shown(found.commit_us)}: "
        "it lost the end of its binlog in a crash, or was restored from a backup, and gave the "
        "GTIDs to other transactions. The log holds changes that this server does not have, and "
        "would skip others. If another server of the shard has the log's transactions, make that "
        f"one the primary and remove this one from `servers`. {lost_advice(topics, last.gtid)} (it "
        "answers with all that were lost, and takes them then)"
    )


def _is_lost(server: OpenServer, last: LastTransaction) -> bool:
    """Whether a MariaDB server, in whose binlogs it was not found, has not purged it either."""
    if server.family.flavor is not Flavor.MARIADB or server.view is None:
        return False
    domain, _, number = parse_mariadb_gtid(last.gtid)
    return not is_purged(server.view, domain, number)


def _shown(commit_us: int) -> str:
    return datetime.fromtimestamp(commit_us / 1_000_000, UTC).isoformat()


def _find(server: OpenServer, last: LastTransaction) -> BinlogTransaction | None:
    """The server's transaction of that GTID; None if its binlogs do not contain one."""
    history = server.history()
    if isinstance(history.executed, MysqlGtidSet):
        gtid = MysqlGtidSet.parse(last.gtid)
        if history.purged.includes(gtid):
            return None
        with suppress(BinlogPurged):
            stream = ReplicationStream.open_rest(
                server.settings, server.family, history.executed.subtract(gtid)
            )
            return _scan(server, stream, last)
        return None
    return at_its_place(server, last) or _by_search(server, last)


def _scan(
    server: OpenServer, stream: ReplicationStream, last: LastTransaction
) -> BinlogTransaction | None:
    with closing(stream):
        for transaction in transactions(stream, server.family.flavor, f"binlogs of {server.name}"):
            if str(transaction) == last.gtid:
                return transaction
            if _is_past(transaction, last):
                return None
    return None


def _is_past(transaction: BinlogTransaction, last: LastTransaction) -> bool:
    """Whether a MariaDB binlog cannot contain the transaction behind this one."""
    domain, _, number = transaction.gtid
    if not isinstance(domain, int):
        return False
    wanted_domain, _, wanted = parse_mariadb_gtid(last.gtid)
    return domain == wanted_domain and number >= wanted


def _by_search(server: OpenServer, last: LastTransaction) -> BinlogTransaction | None:
    """The transaction in the last file that begins before it."""
    domain, _, number = parse_mariadb_gtid(last.gtid)
    with server_errors(server.settings, "looking for a transaction in the binlogs of"):
        names = binlog_files(server.connection)
        for name in reversed(names):
            before = server.family.before_file(server.connection, name)
            if (
                isinstance(before, MariadbGtidSet)
                and before.by_domain().get(domain, (0, 0))[1] < number
            ):
                stream = ReplicationStream.open_file(server.settings, server.family, name)
                return _scan(server, stream, last)
    return None
