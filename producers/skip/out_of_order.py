"""MariaDB's numbers that run backwards: a position cannot tell them from those before it.

Where gtid_strict_mode is off, a session may take any number (`SET gtid_seq_no`), and two servers
may number one domain. A restarted server counts on from the last number, so it may repeat many.
Asked for what follows the higher number, it sends none of those between.
"""

from contextlib import closing
from dataclasses import dataclass
from typing import Final

from databases.sql import rows
from event_token import Flavor, MariadbGtidSet
from event_token.mariadb_gtid import parse_mariadb_gtid
from producers.errors import NumbersRanBackwards
from producers.replication.gtid_scan import BinlogTransaction, transactions
from producers.replication.stream import ReplicationStream, random_server_id, server_errors
from producers.servers.server_list import OpenServer
from producers.skip.advice import no_number_above, out_of_order_advice
from producers.start.binlog_place import at_its_place
from topics.names import ShardTopics
from topics.progress.record import LastTransaction

# All are named in one SKIP record, and each is looked at for marks.
PASSED_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class Following:
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


def following(
    server: OpenServer, position: MariadbGtidSet, domain: int, last: LastTransaction | None
) -> Following:
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
        return Following([], None)
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
                return Following(passed, transaction)
            if number <= newest:
                passed.append(transaction)
                _check_number(server, passed)
            newest = max(newest, number)  # one that was skipped before
    return Following(passed, None)


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


def check_order(topics: ShardTopics, server: OpenServer, last: LastTransaction) -> None:
    """Raise NumbersRanBackwards if the server would leave out what follows the last transaction.

    It starts in its newest file that begins below the position: only files behind the one with the
    log's last transaction are looked at.
    """
    if server.family.flavor is not Flavor.MARIADB or not at_its_place(server, last):
        return
    domain, _, number = parse_mariadb_gtid(last.gtid)
    with server_errors(server.settings, "looking at the beginnings of binlogs of"):
        names = [str(row[0]) for row in rows(server.connection, "SHOW BINARY LOGS")]
        if last.binlog_file not in names:
            return  # purged at this moment
        later = names[names.index(last.binlog_file) + 1 :]
        befores = [server.family.before_file(server.connection, name) for name in later]
    for before in befores:
        if (
            isinstance(before, MariadbGtidSet)
            and before.by_domain().get(domain, (0, 0))[1] < number
        ):
            check_behind(topics, server, last)
            return


def check_behind(topics: ShardTopics, server: OpenServer, last: LastTransaction | None) -> None:
    """Raise NumbersRanBackwards if the server has the log's last transaction, and lower numbers.

    Such a server looks as if a failover had lost transactions.
    """
    if last is None or server.family.flavor is not Flavor.MARIADB:
        return
    if not at_its_place(server, last):
        return
    domain, writer, number = parse_mariadb_gtid(last.gtid)
    found = following(server, MariadbGtidSet.of({domain: (writer, number)}), domain, last)
    if found.passed:
        raise ran_backwards(topics, server, found)


def ran_backwards(topics: ShardTopics, server: OpenServer, found: Following) -> NumbersRanBackwards:
    """The error that names what is out of order, and the way past it."""
    first, count = str(found.passed[0]), len(found.passed)
    how = no_number_above(first) if found.above is None else ""
    return NumbersRanBackwards(
        f"{server.name} has numbered {count} transaction(s), {first} to {found.passed[-1]}, not "
        f"above those that {topics.log} has of their domain: gtid_strict_mode was off. A position "
        f"of MariaDB cannot tell them from earlier ones. {how}{out_of_order_advice(topics, first)}"
    )
