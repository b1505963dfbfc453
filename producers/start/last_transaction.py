"""Whether a server still has the transaction that a log read last, and not another in its place.

A server that loses the end of its binlog in a crash, or is restored from a backup, gives the same
GTIDs to other transactions. By GTID sets alone that cannot be seen; by commit times it can.
"""

from contextlib import closing, suppress
from datetime import UTC, datetime

from databases.sql import rows
from event_token import Flavor, MariadbGtidSet, MysqlGtidSet
from event_token.mariadb_gtid import parse_mariadb_gtid
from producers.errors import BinlogPurged, HistoryRewritten, ServerBehindLog
from producers.replication.gtid_scan import BinlogTransaction, transactions
from producers.replication.stream import ReplicationStream, server_errors
from producers.servers.choice import is_purged
from producers.servers.server_list import OpenServer
from producers.skip.advice import lost_advice
from producers.skip.out_of_order import check_order
from producers.start.binlog_place import at_its_place
from topics.names import ShardTopics
from topics.progress.record import LastTransaction


def check_last(topics: ShardTopics, server: OpenServer, last: LastTransaction | None) -> str:
    """Compare the log's last transaction with the server's of the same GTID.

    Returns a note for the operator where the server no longer has it, else "". Raises
    HistoryRewritten when it has another one under this GTID, ServerBehindLog when it has others
    around it, NumbersRanBackwards when others behind it have numbers of MariaDB that are not above.
    """
    if last is None:
        return ""
    found = _find(server, last)
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
        check_order(topics, server, last)
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
        names = [str(row[0]) for row in rows(server.connection, "SHOW BINARY LOGS")]
        for name in reversed(names):
            before = server.family.before_file(server.connection, name)
            if (
                isinstance(before, MariadbGtidSet)
                and before.by_domain().get(domain, (0, 0))[1] < number
            ):
                stream = ReplicationStream.open_file(server.settings, server.family, name)
                return _scan(server, stream, last)
    return None
