"""The statements of a fresh read: what is executed is asked for before the rows are read.

A read is a transaction of its own. Its token says what every statement in it is shown at least,
however the server commits beside it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

from caching.reading.connections import OpenConnection, error_code
from caching.reading.shard_time import TIME_COLUMNS, ShardTime, shard_time
from databases.errors import ServerLost, ServerRefused
from databases.mariadb_snapshot import SHOW_PLACE, START_SNAPSHOT, Place, snapshot_place
from databases.server_facts import is_on, version_of
from databases.sql import text_literal
from event_token import Flavor, GtidSet, MariadbGtidSet, MysqlGtidSet, UsageError
from event_token.token import GRANULARITY_US

# What tells a MySQL server's role; PROCESS or SUPER would tell it, too, with much else.
ROLE_GRANT: Final = "SELECT ON performance_schema.replication_connection_configuration"

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
# Members of a replication group have channels of their own, its primary too.
_MYSQL_MOMENT: Final = (
    "@@GLOBAL.gtid_executed, " + _IDENTITY + ", @@GLOBAL.read_only, "
    "(SELECT COUNT(*) FROM performance_schema.replication_connection_configuration "
    "WHERE host <> '' AND channel_name NOT LIKE 'group\\_replication\\_%'), "
    "@@GLOBAL.binlog_order_commits, @@GLOBAL.{0}_preserve_commit_order, "
    "@@GLOBAL.{0}_parallel_workers"
)
_MARIADB_MOMENT: Final = f"@@GLOBAL.gtid_slave_pos, @@GLOBAL.read_only, @@server_id, {_IDENTITY}"
# What tells which servers wrote before the last GTID of a domain.
_KNOWN: Final = "@@GLOBAL.gtid_binlog_state, @@GLOBAL.gtid_slave_pos"


@dataclass(frozen=True, slots=True)
class Opening:
    """An open read transaction: who answers, and what all reads in it are shown at least.

    `position`: None where that cannot be told. `timestamp_us`: its time, None for none. `time`:
    None if `_shardstream` is not shown. `place`: of the snapshot on a MariaDB primary.
    """

    server: str
    is_primary: bool
    position: GtidSet | None
    timestamp_us: int | None
    time: ShardTime | None
    place: Place | None = None


class Snapshots(Protocol):
    """How a server family ties a read to what it has executed."""

    def begin(self, opened: OpenConnection, times: str) -> Opening:
        """Begin the transaction; `times`: see `time_columns`.

        UsageError if one is open, or if the server is of the other family.
        """
        ...

    def is_settled(self, opened: OpenConnection, opening: Opening) -> bool:
        """After the read: whether the position is still the one that was told before."""
        ...

    def wait(self, opened: OpenConnection, wanted: GtidSet, wait_s: float) -> None:
        """Outside a transaction: wait on a replica, at most `wait_s`, until it has executed it."""
        ...

    def last_commit(self, opened: OpenConnection) -> tuple[GtidSet, int]:
        """What holds the connection's last commit, and the server's clock in microseconds.

        UsageError if a transaction is open.
        """
        ...


class MysqlSnapshots:
    """MySQL: whatever is in the executed set is seen by every statement that follows."""

    def begin(self, opened: OpenConnection, times: str) -> Opening:
        """See Snapshots."""
        _check_flavor(opened, Flavor.MYSQL)
        set_transaction(opened, "ISOLATION LEVEL READ COMMITTED, READ ONLY")
        opened.ask("START TRANSACTION")
        prefix = "replica" if version_of(opened.version) >= _SAYS_REPLICA else "slave"
        with transaction(opened, stays_open=True), _with_grant(opened):
            moment, time = _moment(opened, _MYSQL_MOMENT.format(prefix), times)
        executed, name, read_only, channels, in_log_order, in_source_order, workers = moment
        keeps_order = is_on(in_log_order)
        if channels:
            keeps_order &= is_on(in_source_order) or int(workers) <= 1
        is_primary = not channels and not is_on(read_only)
        position = MysqlGtidSet.parse(str(executed))
        return Opening(name, is_primary, position, _timestamp_us(time, keeps_order), time)

    def is_settled(self, opened: OpenConnection, opening: Opening) -> bool:
        """See Snapshots."""
        del opened, opening
        return True

    def wait(self, opened: OpenConnection, wanted: GtidSet, wait_s: float) -> None:
        """See Snapshots."""
        opened.ask(f"SELECT WAIT_FOR_EXECUTED_GTID_SET('{wanted}', {wait_s:.3f})")

    def last_commit(self, opened: OpenConnection) -> tuple[GtidSet, int]:
        """See Snapshots. Drivers do not tell a commit's own GTID: the executed set contains it."""
        set_transaction(opened, "READ WRITE")
        [(executed, clock_us)] = opened.ask(f"SELECT @@GLOBAL.gtid_executed, {_CLOCK}")
        return MysqlGtidSet.parse(str(executed)), int(clock_us)


class MariadbSnapshots:
    """MariaDB: a replica's position before the snapshot, a primary's place of the snapshot."""

    def begin(self, opened: OpenConnection, times: str) -> Opening:
        """See Snapshots."""
        _check_flavor(opened, Flavor.MARIADB)
        [(applied, read_only, *identity)] = opened.ask(f"SELECT {_MARIADB_MOMENT}")
        is_replica = bool(applied) and is_on(read_only)
        if not is_replica:
            [(_, running)] = opened.ask("SHOW GLOBAL STATUS LIKE 'Slaves_running'")
            is_replica = int(running) > 0
        set_transaction(opened, "ISOLATION LEVEL REPEATABLE READ")
        opened.ask(f"{START_SNAPSHOT}, READ ONLY")
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
            # At a file's beginning the last group of the file before may not be visible yet.
            applied = None if found == beginning else found
        position = None if applied is None else MariadbGtidSet.of_server(applied, state, followed)
        # Domains commit independently of each other.
        keeps_order = position is not None and len(position.domains) <= 1
        timestamp_us = _timestamp_us(time, keeps_order)
        return Opening(str(identity[-1]), not is_replica, position, timestamp_us, time, place)

    def is_settled(self, opened: OpenConnection, opening: Opening) -> bool:
        """See Snapshots."""
        if opening.place is None:
            return True
        return snapshot_place(opened.ask(SHOW_PLACE)) == opening.place

    def wait(self, opened: OpenConnection, wanted: GtidSet, wait_s: float) -> None:
        """See Snapshots."""
        last = wanted.last_gtids() if isinstance(wanted, MariadbGtidSet) else str(wanted)
        opened.ask(f"SELECT MASTER_GTID_WAIT('{last}', {wait_s:.3f})")

    def last_commit(self, opened: OpenConnection) -> tuple[GtidSet, int]:
        """See Snapshots."""
        columns = f"@@last_gtid, @@in_transaction, {_CLOCK}, {_KNOWN}"
        [(gtid, is_open, clock_us, *known)] = opened.ask(f"SELECT {columns}")
        if int(is_open):
            raise UsageError(OPEN_TRANSACTION)
        if not gtid:
            raise UsageError("the connection has committed no change, so there is no token of it")
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
    except ServerLost:
        raise  # it has ended with its connection
    except Exception:
        opened.ask("ROLLBACK")
        raise
    if not stays_open:
        opened.ask("COMMIT")


def set_transaction(opened: OpenConnection, characteristics: str) -> None:
    """Set those of the next transaction. UsageError if one is open, which stays as it is."""
    try:
        opened.ask(f"SET TRANSACTION {characteristics}")
    except Exception as error:
        if error_code(error) != _IN_TRANSACTION:
            raise
        raise UsageError(OPEN_TRANSACTION) from error


@contextmanager
def _with_grant(opened: OpenConnection) -> Iterator[None]:
    """Add the statement that grants what the account lacks."""
    try:
        yield
    except ServerRefused as refusal:
        [(account,)] = opened.ask("SELECT CURRENT_USER()")
        user, _, host = str(account).rpartition("@")
        fix = f"GRANT {ROLE_GRANT} TO '{user}'@'{host}';"
        raise ServerRefused(f"{refusal}. Fix: {fix}") from refusal


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
