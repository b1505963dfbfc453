"""What a server's catalog shows now was so at a place of the binlog: no definition lies between.

The catalog is asked while the table is locked against definitions, and the server's executed set
then has all those whose work the catalog shows: a definition holds its lock until its GTID counts
as executed.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Final

from pymysql.constants import ER
from pymysql.err import MySQLError

from databases.connection import error_code
from databases.table_cursor import hold_definition
from event_token import Flavor, GtidSet, MariadbGtidSet, MysqlGtidSet, parse_gtid_set
from event_token.errors import Rebuild
from event_token.gtid_flavor import GtidError
from event_token.running_set import RunningMariadbSet, RunningMysqlSet
from producers.decoder.events.statements import Definition
from producers.errors import AnswerTooLate, TableLocked
from producers.replication.gtid_scan import BinlogTransaction, RunningSet, definitions
from producers.servers.server_list import OpenServer
from topics.progress.record import LastTransaction

# Between two attempts to lock a table a stop is noticed.
LOCK_WAIT_S: Final = 1
# Definitions that were found ahead of the stream are kept for the next question, up to this number
# of tokens in all. A token has some 150 bytes; most definitions have less than 100 of them, a large
# routine has 100,000.
TOKENS_KEPT_MAX: Final = 300_000
# What a definition takes beside its tokens, for its GTID.
_TOKENS_EACH: Final = 10

Concerns = Callable[[Definition | None], bool]
# (what is waited for, since when in seconds) -> False: the rows so far can wait no longer. Raises
# Rebuild at a stop.
Wait = Callable[[str, float], bool]


@dataclass(frozen=True, slots=True)
class _Found:
    """A definition with its GTID, which `at` has as a set; None: it cannot be read."""

    at: GtidSet
    gtid: str
    definition: Definition | None


@dataclass(slots=True)
class Looked:
    """What sessions of one process have found ahead in the binlogs of one server.

    `found`: all definitions behind `since`, up to `up_to`. `is_full`: there were too many of them,
    or numbers of MariaDB ran backwards; what is behind `up_to` is not kept.
    `locked`, `locked_s`: the table that a lock keeps from being asked for, with its server, and for
    how long that was tried.
    """

    since: GtidSet | None = None
    up_to: RunningSet | None = None
    found: list[_Found] = field(default_factory=list)
    is_full: bool = False
    locked: str = ""
    locked_s: float = 0.0
    _tokens: int = 0
    _last: BinlogTransaction | None = None
    _own: str = ""

    @property
    def last(self) -> LastTransaction | None:
        """The last transaction that was looked at, None before the first."""
        last = self._last
        if last is None:
            return None
        place = last.binlog_file, last.binlog_pos
        return LastTransaction(str(last), last.commit_us, self._own, *place)

    def reached(self, read: GtidSet) -> GtidSet:
        """Return `up_to`, for whoever asks from `read` on: begin there if that is not between."""
        if self.since is not None and self.up_to is not None and read.includes(self.since):
            up_to = self.up_to.to_set()
            if up_to.includes(read):
                if self.is_full:
                    self._make_room(read)
                return up_to
        self.forget()
        self.since = read
        self.up_to = _running(read)
        return read

    def forget(self) -> None:
        """Forget what was found."""
        self.since = self.up_to = self._last = None
        self.found, self._tokens, self.is_full = [], 0, False

    def _make_room(self, read: GtidSet) -> None:
        """Drop what lies at or behind `read`, from where the next look goes on at `up_to`."""
        kept = [each for each in self.found if not read.reaches(each.at)]
        self.is_full = len(kept) == len(self.found)
        self.since, self.found, self._tokens = read, kept, _tokens_of(kept)

    def add(self, transaction: BinlogTransaction, found: list[_Found], own: str) -> None:
        """Add the next transaction of the server `own`, if there is room for its definitions."""
        if self.is_full or self.up_to is None:
            return
        tokens = _tokens_of(found)
        if self._tokens + tokens > TOKENS_KEPT_MAX:
            self.is_full = True
            return
        try:
            transaction.add_to(self.up_to)
        except GtidError:
            self.is_full = True  # numbers that run backwards, at which the stream will stop
            return
        self._tokens += tokens
        self.found += found
        self._last, self._own = transaction, own


def _tokens_of(found: list[_Found]) -> int:
    """What definitions count for; one that cannot be read has its GTID alone."""
    texts = sum(each.definition.size() for each in found if each.definition is not None)
    return texts + _TOKENS_EACH * len(found)


def _running(read: GtidSet) -> RunningSet:
    if isinstance(read, MariadbGtidSet):
        return RunningMariadbSet(read)
    assert isinstance(read, MysqlGtidSet)  # noqa: S101 - there are two kinds
    return RunningMysqlSet(read)


class DefinitionsAhead:
    """The definitions that a server has executed and a stream has not read yet.

    Whoever asks again, from a later place, has only what is new looked for: a stream that lies far
    behind does not read the rest of the binlogs for each table. Nor does the next session, which
    goes on where this one ended.
    """

    def __init__(self, server: OpenServer, looked: Looked, wait: Wait, outage_s: float) -> None:
        """`looked` is of this very server. A table may be locked for `outage_s`.

        `wait` is called again and again while a question is not answered.
        """
        self._server = server
        self._looked = looked
        self._wait = wait
        self._outage_s = outage_s

    @contextmanager
    def locked(self, database: str, table: str) -> Iterator[None]:
        """Keep definitions of a table away; the server's connection is in no transaction.

        Raises MySQLError, TableLocked after `outage_s`, and AnswerTooLate.
        """
        with self._server.connection.cursor() as cursor:
            cursor.execute(f"SET SESSION lock_wait_timeout = {LOCK_WAIT_S}")
            cursor.execute("START TRANSACTION READ ONLY")
            try:
                name = f"{database}.{table} is locked on {self._server.name}"
                while not self._lock(database, table):
                    self._wait_for_lock(name)
                if self._looked.locked == name:
                    self._looked.locked = ""
                yield
            finally:
                cursor.execute("COMMIT")
                cursor.execute("SET SESSION lock_wait_timeout = DEFAULT")

    def _lock(self, database: str, table: str) -> bool:
        try:
            hold_definition(self._server.connection, database, table)
        except MySQLError as error:
            if error_code(error) != ER.LOCK_WAIT_TIMEOUT:
                raise
            return False
        return True

    def _wait_for_lock(self, name: str) -> None:
        """Raise where the lock of a table is not waited for any longer."""
        looked = self._looked
        if looked.locked != name:
            looked.locked, looked.locked_s = name, 0.0
        looked.locked_s += LOCK_WAIT_S
        what = f"table {name}, so its definition cannot be asked for"
        if looked.locked_s > self._outage_s:
            raise TableLocked(
                f"{what}: not for {looked.locked_s:.0f} s (outage_s). A definition of it, "
                f"LOCK TABLES, or a transaction that a definition waits for is under way: SHOW "
                f"PROCESSLIST and XA RECOVER show which. End it, then start the producer again; "
                f"nothing is lost"
            )
        if not self._wait(what, time.monotonic() - looked.locked_s):
            raise AnswerTooLate(f"{what}; the rows so far are read again")

    def first(
        self, read: GtidSet, executed: GtidSet, concerns: Concerns
    ) -> tuple[str, Definition | None] | None:
        """The first one that `concerns`, with its GTID, beyond `read` and up to `executed`.

        `concerns` takes None for what cannot be read. Raises AnswerTooLate where the rest of the
        binlogs is too long for this session.
        """
        looked, is_mysql = self._looked, self._server.family.flavor is Flavor.MYSQL
        start = looked.reached(read)

        def is_one(each: _Found) -> bool:
            # Later ones do not show in the catalog's answer.
            is_later = is_mysql and not executed.includes(each.at)
            return not is_later and not read.reaches(each.at) and concerns(each.definition)

        for each in looked.found:
            if is_one(each):
                return each.gtid, each.definition
        if start.includes(executed):
            return None
        return self._scan(start, is_one)

    def _scan(
        self, start: GtidSet, is_one: Callable[[_Found], bool]
    ) -> tuple[str, Definition | None] | None:
        """Read the binlogs behind `start` up to the first one, or to their end."""
        server, looked = self._server, self._looked
        where, flavor, own = f"binlogs of {server.name}", server.family.flavor, server.own_name()
        began_s, seen, place = time.monotonic(), 0, ""

        def beat() -> None:
            what = f"looking ahead for definitions in the {where}"
            if place:
                what += f": {seen:,} transactions so far, now in {place}"
            if self._wait(what, began_s):
                return
            if looked.is_full:
                raise Rebuild(
                    f"{what}. They have more definitions than are kept for the next session, and "
                    f"reading them takes longer than brokers allow a transaction "
                    f"(transaction.max.timeout.ms): the producer is too far behind. Begin a new "
                    f"log with a copy"
                )
            if not seen:
                raise Rebuild(f"{what}: the server has sent no whole transaction")
            raise AnswerTooLate(f"{what}; the rows so far are read again")

        with closing(server.open_rest(start, own)) as stream:
            for transaction, defined in definitions(stream, flavor, where, beat):
                seen, place = seen + 1, transaction.binlog_file
                gtid = str(transaction) if defined else ""
                found = [_Found(parse_gtid_set(gtid, flavor), gtid, each) for each in defined]
                looked.add(transaction, found, own)
                for each in found:
                    if is_one(each):
                        return each.gtid, each.definition
        return None
