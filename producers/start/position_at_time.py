"""Finds the position of a time: before the first transaction committed at or after it.

No transaction of the binlogs with that commit time or a later one is skipped, unless times in
them run back by more than DISORDER_US_MAX.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from databases.server_facts import ServerFacts, ServerHistory, before_binlogs, binlog_files
from event_token import Flavor, GtidSet, MariadbGtidSet, MysqlGtidSet
from event_token.errors import UsageError
from event_token.running_set import RunningMariadbSet, RunningMysqlSet
from producers.replication.gtid_scan import BinlogTransaction, RunningSet, transactions
from producers.replication.stream import ReplicationStream, server_errors
from producers.settings import ServerSettings

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def iso(time_us: int) -> str:
    """A time as ISO 8601 text, to the microsecond, in UTC."""
    return (_EPOCH + timedelta(microseconds=time_us)).isoformat().replace("+00:00", "Z")


# Resolution of commit times in a family's binlog.
_GRANULARITY_US: Final = {Flavor.MYSQL: 1, Flavor.MARIADB: 1_000_000}
# Times in a binlog are not monotonic: on MariaDB a transaction bears the second in which its last
# statement began, which may have waited for locks (innodb_lock_wait_timeout is 50 s) and run for
# long; a MySQL replica may commit in another order. So the search starts this much earlier.
DISORDER_US_MAX: Final = 3_600_000_000


@dataclass(frozen=True, slots=True)
class FoundPosition:
    """A position, and a note on it for the operator."""

    position: GtidSet
    note: str


@dataclass(frozen=True, slots=True)
class BinlogFile:
    """A binlog file and the first transaction from its beginning on, None if there is none."""

    name: str
    first: BinlogTransaction | None


def find_position(
    server: ServerSettings,
    family: ServerFacts,
    connection: Any,
    time_us: int,
    history: ServerHistory,
) -> FoundPosition:
    """Find the position before the first transaction committed at or after `time_us`.

    Reads the first transaction of every binlog file, some ms each, and one file as far as needed.
    If nothing is that late yet, the position is the end of the binlogs. Raises UsageError for a
    time in the future, and for one before the oldest binlog, naming the oldest possible time.
    """
    with server_errors(server, "reading clock and binlogs of"):
        clock_us = family.moment(connection).clock_us
        names = binlog_files(connection)
    if time_us > clock_us:
        raise UsageError(
            f"start {iso(time_us)} lies in the future: the clock of {server.name} shows "
            f"{iso(clock_us)}"
        )
    time_us -= time_us % _GRANULARITY_US[family.flavor]
    files = [BinlogFile(name, _first(server, family, name)) for name in names]
    name = file_to_scan(server.name, family.flavor, files, time_us, history)
    with server_errors(server, "reading the beginning of a binlog of"):
        before = family.before_file(connection, name)
    if isinstance(before, MysqlGtidSet):
        before = before.union(history.purged)  # GTIDs purged by hand are in no binlog.
    else:
        begin = before_binlogs(history)
        assert isinstance(begin, MariadbGtidSet)  # noqa: S101 - one family per server
        for domain in begin.by_domain().keys() - before.by_domain().keys():
            before = before.at_domain(domain, begin)  # it came with a backup
    running = _running(before)
    with closing(ReplicationStream.open_file(server, family, name)) as stream:
        for transaction in transactions(stream, family.flavor, f"{name} of {server.name}"):
            if transaction.commit_us >= time_us:
                note = f"the log starts with {transaction}, committed {iso(transaction.commit_us)}"
                return FoundPosition(running.to_set(), note)
            transaction.add_to(running)
    note = f"nothing was committed at or after {iso(time_us)} yet: the log starts with what comes"
    return FoundPosition(running.to_set(), note)


def file_to_scan(
    server_name: str,
    flavor: Flavor,
    files: Sequence[BinlogFile],
    time_us: int,
    history: ServerHistory,
) -> str:
    """The file before the *first* one that begins at or after `time_us`, less the disorder.

    Not a binary search: after a clock was set back several files qualify, and only the first one
    skips nothing. Pure.
    """
    early_us = time_us - DISORDER_US_MAX
    late = (
        index
        for index, file in enumerate(files)
        if file.first is None or file.first.commit_us >= early_us
    )
    index = next(late, len(files))
    if index > 0:
        return files[index - 1].name
    first = files[0].first
    if history.purged.is_empty or (first is not None and first.commit_us < time_us):
        return files[0].name
    if first is None:
        raise UsageError(
            f"start {iso(time_us)}: the binlogs of {server_name} no longer hold a transaction, so "
            "changes since then may be gone: start at `latest`, or use another server"
        )
    oldest_us = first.commit_us + _GRANULARITY_US[flavor]
    raise UsageError(
        f"start {iso(time_us)} is too old: the oldest possible on {server_name} is "
        f"{iso(oldest_us)}; earlier binlogs have been purged. Use a server with older binlogs, or "
        "start later"
    )


def _first(server: ServerSettings, family: ServerFacts, name: str) -> BinlogTransaction | None:
    with closing(ReplicationStream.open_file(server, family, name)) as stream:
        return next(transactions(stream, family.flavor, f"{name} of {server.name}"), None)


def _running(position: GtidSet) -> RunningSet:
    if isinstance(position, MysqlGtidSet):
        return RunningMysqlSet(position)
    return RunningMariadbSet(position)
