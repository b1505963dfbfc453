"""The statements of a fresh read: the executed set is asked for before the rows are read.

A read is a transaction of its own. Every statement in it sees at least the changes that its token
names, with any commits meanwhile.

The time of a read is that of the newest heartbeat row: everything in the shard's log from before
the row is in the read, if the server shows commits in the order of the log. Times are compared
only across a reshard, so a target has none before its BEGIN, and a source none after its END.
The same row says up to which true time a read holds everything. The hop time of a BEGIN does not:
it is later than the sources' END by up to a cell of the grid, and the target may take writes by
then.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from caching.reading.connections import OpenConnection, error_code
from databases.errors import ServerRefused
from databases.internal_tables import HEARTBEAT, JOURNAL, ROLE
from databases.server_facts import (
    SHOW_PLACE,
    SOURCES_FOLLOWED,
    START_SNAPSHOT,
    Place,
    filters_in,
    is_on,
    mariadb_executed,
    replica_status_statement,
    snapshot_place,
    status_privilege,
    version_of,
)
from databases.sql import text_literal
from event_token import Flavor, GtidSet, MariadbGtidSet, MysqlGtidSet, UsageError
from event_token.token import GRANULARITY_US
from topics.progress.record import JournalKind

# The columns that `time_columns` selects.
TIME_COLUMNS: Final = 6


@dataclass(frozen=True, slots=True)
class ShardTime:
    """The rows of `_shardstream` about a shard.

    `heartbeat_us`: the newest heartbeat row, 0 for none. `at_min_us`, `at_max_us`: the true time
    just before it was written lies between them; 0 if that is unknown. `begun_us`: the hop time of
    its BEGIN, 0 if the shard was never a target, None if it is one without BEGIN. `has_ended`: it
    has its END.
    """

    heartbeat_us: int
    at_min_us: int
    at_max_us: int
    begun_us: int | None
    has_ended: bool

    def timestamp_us(self, *, keeps_order: bool) -> int | None:
        """The time of a read, None if there is none. `keeps_order`: commits show in log order."""
        if self.begun_us is None or self.has_ended or not keeps_order:
            return None
        return max(self.heartbeat_us, self.begun_us) or None


@dataclass(frozen=True, slots=True)
class TimeBound:
    """The true time up to which a read holds everything, and how long before it that can be.

    `clocks_us`: what the bounds of the clocks add to the age.
    """

    complete_us: int
    age_us: int
    clocks_us: int


def time_columns(keyspace: str, shard: str) -> str:
    """Return the columns to select for the time of a shard, on either family. Pure."""
    name, listed = text_literal(shard), text_literal(json.dumps(shard))
    own = f"keyspace = {text_literal(keyspace)}"
    row = f"FROM {HEARTBEAT} WHERE {own} AND shard = {name}"
    return (
        f"(SELECT at_us {row}), (SELECT at_min_us {row}), (SELECT at_max_us {row}), "
        f"(SELECT COUNT(*) FROM {ROLE} WHERE {own} AND shard = {name} AND role = 'target'), "
        f"(SELECT MAX(hop_time_us) FROM {JOURNAL} "
        f"WHERE {own} AND kind = '{JournalKind.BEGIN}' AND JSON_CONTAINS(targets, {listed})), "
        f"(SELECT COUNT(*) FROM {JOURNAL} "
        f"WHERE {own} AND kind = '{JournalKind.END}' AND JSON_CONTAINS(sources, {listed}))"
    )


def shard_time(columns: tuple[Any, ...]) -> ShardTime:
    """Read the values of `time_columns`. Pure."""
    *heartbeat, target_roles, hop_time_us, ends = columns
    begun_us = None if hop_time_us is None else int(hop_time_us)
    if begun_us is None and not int(target_roles):
        begun_us = 0
    heartbeat_us, at_min_us, at_max_us = (int(each or 0) for each in heartbeat)
    return ShardTime(heartbeat_us, at_min_us, at_max_us, begun_us, bool(int(ends)))


# Shows a MySQL server's role; PROCESS or SUPER would show it, too, with much else.
ROLE_GRANT: Final = "SELECT ON performance_schema.replication_connection_configuration"
# What a MySQL replica leaves out, by channel and for all of them.
_FILTERS: Final = (
    "performance_schema.replication_applier_filters",
    "performance_schema.replication_applier_global_filters",
)
FILTER_GRANTS: Final = tuple(f"SELECT ON {table}" for table in _FILTERS)
_ASK_FILTERS: Final = " UNION ALL ".join(
    f"SELECT filter_name, filter_rule FROM {table}" for table in _FILTERS
)

OPEN_TRANSACTION: Final = (
    "the connection has an open transaction: commit or roll it back first. With autocommit off, a "
    "SELECT opens one"
)
# In no time zone, so that no hour comes twice.
_CLOCK: Final = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
# From here on MySQL calls its settings replica_... instead of slave_...
_SAYS_REPLICA: Final = (8, 0, 26)
# Characteristics of a transaction cannot be changed within one.
_IN_TRANSACTION: Final = 1568
_IDENTITY: Final = "CONCAT(@@hostname, ':', @@port)"
_MYSQL_MOMENT: Final = (
    f"@@GLOBAL.gtid_executed, {_IDENTITY}, @@GLOBAL.read_only, {SOURCES_FOLLOWED}, "
    "@@GLOBAL.binlog_order_commits, @@GLOBAL.{0}_preserve_commit_order"
)
_MARIADB_MOMENT: Final = f"@@GLOBAL.gtid_slave_pos, @@GLOBAL.read_only, @@server_id, {_IDENTITY}"
# Shows which servers wrote before the last GTID of a domain.
_KNOWN: Final = "@@GLOBAL.gtid_binlog_state, @@GLOBAL.gtid_slave_pos"


@dataclass(frozen=True, slots=True)
class ReadTransaction:
    """An open read transaction: its server, and the position that all reads in it have at least.

    `position`: None where that is unknown. `timestamp_us`: its time, None for none. `time`:
    None if `_shardstream` is not shown. `place`: of the snapshot on a MariaDB primary.
    """

    server: str
    is_primary: bool
    position: GtidSet | None
    timestamp_us: int | None
    time: ShardTime | None
    place: Place | None = None

    def bound(self, begun_us: int, opened_us: int, off_us: int) -> TimeBound | None:
        """The time of a read that began, and saw its heartbeat row, at these times of this host.

        `off_us`: how far its clock may be off. None if nothing shows it, or if the row would be
        from the future: then one of the two clocks is off by more than is said of it.
        """
        time, clock_us = self.time, opened_us + off_us
        if time is None or self.timestamp_us is None or not 0 < time.at_min_us <= clock_us:
            return None
        age_us = max(0, begun_us + off_us - time.at_min_us)
        return TimeBound(time.at_min_us, age_us, off_us + (time.at_max_us - time.at_min_us) // 2)


class Snapshots(ABC):
    """How a server family ties a read to the transactions that it has executed."""

    @abstractmethod
    def begin(self, opened: OpenConnection, times: str) -> ReadTransaction:
        """Begin the transaction; `times`: see `time_columns`.

        UsageError if one is open, or if the server is of the other family.
        """

    def is_settled(self, opened: OpenConnection, transaction: ReadTransaction) -> bool:
        """Return, after the read, whether the position is still the one that was read before."""
        del opened, transaction
        return True

    @abstractmethod
    def wait(self, opened: OpenConnection, wanted: GtidSet, wait_s: float) -> None:
        """Outside a transaction: wait on a replica, at most `wait_s`, until it has executed it."""

    @abstractmethod
    def filters(self, opened: OpenConnection) -> list[tuple[str, str]]:
        """The replication filters of a replica, by which its rows lack what its position names.

        ServerRefused, with the fix, if the account may not see them.
        """

    @abstractmethod
    def last_commit(self, opened: OpenConnection) -> tuple[GtidSet, int]:
        """Return a position with the last commit, and the server's clock in microseconds.

        UsageError if a transaction is open.
        """


class MysqlSnapshots(Snapshots):
    """MySQL: every statement sees all transactions of an executed set that was read before."""

    def begin(self, opened: OpenConnection, times: str) -> ReadTransaction:
        """See Snapshots."""
        _check_flavor(opened, Flavor.MYSQL)
        set_transaction(opened, "ISOLATION LEVEL READ COMMITTED, READ ONLY")
        opened.begin("START TRANSACTION")
        prefix = "replica" if version_of(opened.version) >= _SAYS_REPLICA else "slave"
        with transaction(opened, stays_open=True), _with_grant(opened, ROLE_GRANT):
            moment, time = _moment(opened, _MYSQL_MOMENT.format(prefix), times)
        executed, name, read_only, channels, in_log_order, in_source_order = moment
        keeps_order = is_on(in_log_order)
        if channels:
            # It cannot change while appliers run, as their number can, which is another by then.
            keeps_order &= is_on(in_source_order)
        is_primary = not channels and not is_on(read_only)
        position = MysqlGtidSet.parse(str(executed))
        return ReadTransaction(name, is_primary, position, _timestamp_us(time, keeps_order), time)

    def wait(self, opened: OpenConnection, wanted: GtidSet, wait_s: float) -> None:
        """See Snapshots."""
        opened.ask(f"SELECT WAIT_FOR_EXECUTED_GTID_SET('{wanted}', {wait_s:.3f})")

    def filters(self, opened: OpenConnection) -> list[tuple[str, str]]:
        """See Snapshots."""
        with _with_grant(opened, *FILTER_GRANTS):
            found = opened.ask(_ASK_FILTERS)
        return _filters(dict([each]) for each in found)

    def last_commit(self, opened: OpenConnection) -> tuple[GtidSet, int]:
        """See Snapshots. No driver returns a commit's own GTID: the executed set contains it."""
        set_transaction(opened, "READ WRITE")
        [(executed, clock_us)] = opened.ask(f"SELECT @@GLOBAL.gtid_executed, {_CLOCK}")
        return MysqlGtidSet.parse(str(executed)), int(clock_us)


class MariadbSnapshots(Snapshots):
    """MariaDB: a replica's position before the snapshot, a primary's place of the snapshot."""

    def begin(self, opened: OpenConnection, times: str) -> ReadTransaction:
        """See Snapshots."""
        _check_flavor(opened, Flavor.MARIADB)
        [(applied, read_only, *identity)] = opened.ask(f"SELECT {_MARIADB_MOMENT}")
        is_replica = bool(applied) and is_on(read_only)
        if not is_replica:
            [(_, running)] = opened.ask("SHOW GLOBAL STATUS LIKE 'Slaves_running'")
            is_replica = int(running) > 0
        set_transaction(opened, "ISOLATION LEVEL REPEATABLE READ")
        opened.begin(f"{START_SNAPSHOT}, READ ONLY")
        with transaction(opened, stays_open=True):
            place = None if is_replica else snapshot_place(opened.ask(SHOW_PLACE))
            columns = f"@@server_id, {_IDENTITY}, {_place_columns(place)}, {_KNOWN}"
            (*same, found, beginning, state, followed), time = _moment(opened, columns, times)
            if same != identity:
                raise UsageError(
                    f"{identity[-1]} and {same[-1]} answered on one connection: a proxy spreads "
                    "statements over servers, and a read proves nothing. Connect to the servers"
                )
        if place is not None:
            # At a file's beginning the last group of the file before may not be visible yet. What
            # came with a backup is in no binlog.
            is_known = found != beginning
            applied = str(mariadb_executed(applied, found)) if is_known else None
        position = None if applied is None else MariadbGtidSet.of_server(applied, state, followed)
        # Domains commit independently of each other.
        keeps_order = position is not None and len(position.domains) <= 1
        timestamp_us = _timestamp_us(time, keeps_order)
        return ReadTransaction(
            str(identity[-1]), not is_replica, position, timestamp_us, time, place
        )

    def is_settled(self, opened: OpenConnection, transaction: ReadTransaction) -> bool:
        """See Snapshots."""
        place = transaction.place
        return place is None or snapshot_place(opened.ask(SHOW_PLACE)) == place

    def wait(self, opened: OpenConnection, wanted: GtidSet, wait_s: float) -> None:
        """See Snapshots."""
        last = wanted.last_gtids() if isinstance(wanted, MariadbGtidSet) else str(wanted)
        opened.ask(f"SELECT MASTER_GTID_WAIT('{last}', {wait_s:.3f})")

    def filters(self, opened: OpenConnection) -> list[tuple[str, str]]:
        """See Snapshots."""
        with _with_grant(opened, f"{status_privilege(opened.version)} ON *.*"):
            return _filters(opened.ask_named(replica_status_statement(opened.version)))

    def last_commit(self, opened: OpenConnection) -> tuple[GtidSet, int]:
        """See Snapshots."""
        columns = f"@@last_gtid, @@in_transaction, {_CLOCK}, {_KNOWN}"
        [(gtid, is_open, clock_us, *known)] = opened.ask(f"SELECT {columns}")
        if int(is_open):
            raise UsageError(OPEN_TRANSACTION)
        if not gtid:
            raise UsageError("the connection has committed no change, so it has no token")
        second_us = GRANULARITY_US[Flavor.MARIADB]
        position = MariadbGtidSet.of_server(gtid, *known)
        return position, int(clock_us) // second_us * second_us


def snapshots_of(flavor: Flavor) -> Snapshots:
    """How servers of that family are read."""
    match Flavor(flavor):
        case Flavor.MYSQL:
            return MysqlSnapshots()
        case Flavor.MARIADB:
            return MariadbSnapshots()


@contextmanager
def transaction(opened: OpenConnection, *, stays_open: bool = False) -> Iterator[None]:
    """End the read's transaction with the block; `stays_open`: only if the block fails."""
    try:
        yield
    except BaseException as error:
        if opened.outlives(error):  # else it ends with its connection
            opened.end("ROLLBACK")
        raise
    if not stays_open:
        opened.end("COMMIT")


def set_transaction(opened: OpenConnection, characteristics: str) -> None:
    """Set those of the next transaction. UsageError if one is open, which stays as it is."""
    try:
        opened.ask(f"SET TRANSACTION {characteristics}")
    except Exception as error:
        if error_code(error) != _IN_TRANSACTION:
            raise
        raise UsageError(OPEN_TRANSACTION) from error


@contextmanager
def _with_grant(opened: OpenConnection, *grants: str) -> Iterator[None]:
    """Add the statements that grant what the account lacks."""
    try:
        yield
    except ServerRefused as refusal:
        [(account,)] = opened.ask("SELECT CURRENT_USER()")
        user, _, host = str(account).rpartition("@")
        fix = " ".join(f"GRANT {each} TO '{user}'@'{host}';" for each in grants)
        raise ServerRefused(f"{refusal}. Fix: {fix}") from refusal


def _filters(states: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """The filters of several channels. Pure."""
    return sorted({item for state in states for item in filters_in(state).items()})


def _check_flavor(opened: OpenConnection, flavor: Flavor) -> None:
    found = Flavor.MARIADB if "mariadb" in opened.version.lower() else Flavor.MYSQL
    if found is not flavor:
        raise UsageError(f"the reader's flavor is {flavor}, but its server is {opened.version}")


def _moment(
    opened: OpenConnection, columns: str, times: str
) -> tuple[tuple[Any, ...], ShardTime | None]:
    """Select the columns, together with the shard's time if its tables are shown."""
    if not opened.hides_tables:
        found = opened.ask_if_shown(f"SELECT {columns}, {times}")
        if found is not None:
            return found[0][:-TIME_COLUMNS], shard_time(found[0][-TIME_COLUMNS:])
        opened.hide_tables()
    [moment] = opened.ask(f"SELECT {columns}")
    return moment, None


def _timestamp_us(time: ShardTime | None, keeps_order: bool) -> int | None:
    return None if time is None else time.timestamp_us(keeps_order=keeps_order)


def _place_columns(place: Place | None) -> str:
    """The position at the snapshot's place, and at the beginning of its file."""
    if place is None:
        return "NULL, NULL"
    file = text_literal(place[0])
    return f"BINLOG_GTID_POS({file}, {place[1]}), BINLOG_GTID_POS({file}, 4)"
