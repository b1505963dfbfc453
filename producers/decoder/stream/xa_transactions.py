"""Rows put aside until they are decided: XA transactions of MySQL, savepoints of MariaDB.

MySQL's XA rows are put aside up to PREPARE, and logged at COMMIT. MariaDB logs ROLLBACK TO where
the transaction has also created or dropped a temporary table, or changed a table that cannot be
rolled back; the rows of such a table are in a separate transaction. So all rows after the
savepoint, in this transaction, are rolled back.
"""

import re
from collections.abc import Callable
from typing import Final

from producers.decoder.errors import CorruptBinlog, UnsupportedEvent
from producers.decoder.stream.prepared import (
    EventSpool,
    Prepared,
    PreparedTransactions,
    parse_xa,
    parse_xa_prepare,
)
from producers.decoder.stream.table_versions import TableVersions
from producers.decoder.stream.transaction import Transaction


class XaTransactions:
    """The XA transaction that is read now, and those that are prepared."""

    def __init__(
        self,
        transaction: Transaction,
        tables: TableVersions,
        take_event: Callable[[bytes, int, int], None],
    ) -> None:
        """`take_event(event, 0, len(event))` logs an event that was put aside."""
        self._transaction: Transaction = transaction
        self._tables: TableVersions = tables
        self._take_event: Callable[[bytes, int, int], None] = take_event
        self._prepared: PreparedTransactions = PreparedTransactions()
        self._xid: str = ""

    def gtids(self) -> list[str]:
        """Return the GTIDs of all PREPAREs that wait for a decision."""
        return self._prepared.gtids()

    def prepared_us(self) -> list[int]:
        """Return when those were prepared."""
        return self._prepared.times_us()

    def statement(self, statement: bytes) -> None:
        """Take an XA statement."""
        verb, xid = parse_xa(statement)
        transaction = self._transaction
        if transaction.aside is not None and verb != "END":
            raise UnsupportedEvent(f"XA {verb} of {xid} inside {self._xid}, after its rows")
        if verb == "START":
            transaction.put_aside_to(EventSpool(self._prepared, self._tables.year_sign))
            self._xid = xid
        elif verb == "COMMIT":
            prepared = self._decided(xid)
            if prepared is None:
                raise UnsupportedEvent(
                    f"XA COMMIT of {xid}, whose PREPARE and rows are before this log's start: "
                    f"start the log before the PREPARE, or after the COMMIT with a copy"
                )
            self._replay(prepared.spool)
        elif verb == "ROLLBACK":
            prepared = self._decided(xid)
            if prepared is not None:
                prepared.spool.close()
            transaction.end()
        elif verb != "END" or xid != self._xid:
            raise CorruptBinlog(f"XA {verb} of {xid} inside {self._xid or 'no XA transaction'}")

    def prepare(self, body: bytes) -> None:
        """Take the event that ends an XA transaction: prepared, or committed in one phase."""
        is_one_phase, xid = parse_xa_prepare(body)
        transaction = self._transaction
        spool = transaction.aside
        if spool is None or xid != self._xid:
            raise CorruptBinlog(f"XA PREPARE of {xid} inside {self._xid or 'no XA transaction'}")
        transaction.aside = None
        if is_one_phase:
            self._replay(spool)
            return
        gtid = transaction.position.gtid()
        self._prepared.put(xid, Prepared(gtid, spool, int(transaction.commit_us)))
        transaction.position.remove(gtid)
        transaction.end()

    def _decided(self, xid: str) -> Prepared | None:
        """Take out a prepared transaction; its PREPARE counts as executed from now on."""
        prepared = self._prepared.pop(xid)
        if prepared is not None:
            self._transaction.position.put_back(prepared.gtid)
        return prepared

    def _replay(self, spool: EventSpool) -> None:
        """Log what was put aside, as the open transaction."""
        self._transaction.begin()
        now = self._tables.use_year_sign(spool.year_sign)
        for event in spool.events():
            self._take_event(event, 0, len(event))
        self._tables.use_year_sign(now)
        self._transaction.end()


_NAME: Final = re.compile(
    rb"(?:SAVEPOINT|ROLLBACK\s+TO(?:\s+SAVEPOINT)?)\s+(.+)", re.IGNORECASE | re.DOTALL
)


class Savepoints:
    """The savepoints of the open transaction, in order; the latest of a name counts."""

    def __init__(
        self,
        transaction: Transaction,
        tables: TableVersions,
        take_event: Callable[[bytes, int, int], None],
    ) -> None:
        """`take_event(event, 0, len(event))` logs an event that was put aside."""
        self._transaction: Transaction = transaction
        self._tables: TableVersions = tables
        self._take_event: Callable[[bytes, int, int], None] = take_event
        self._memory: PreparedTransactions = PreparedTransactions()
        self._names: list[bytes] = []
        self._spools: list[EventSpool] = []  # one per savepoint

    def add(self, statement: bytes) -> None:
        """Take SAVEPOINT: what follows is put aside."""
        self._names.append(_name(statement))
        self._begin_spool()

    def _begin_spool(self) -> None:
        spool = EventSpool(self._memory, self._tables.year_sign)
        self._spools.append(spool)
        self._transaction.put_aside_to(spool)

    def rollback_to(self, statement: bytes) -> None:
        """Take ROLLBACK TO: drop what was put aside since that savepoint."""
        name = _name(statement)
        if name not in self._names:
            raise CorruptBinlog("a ROLLBACK TO a savepoint that the transaction does not have")
        while self._names[-1] != name:
            self._names.pop()
            self._spools.pop().close()
        self._spools.pop().close()
        self._begin_spool()

    def log_rows(self) -> None:
        """Log what is put aside, before the transaction is committed."""
        if len(self._spools) == 0:
            return
        spools = self._spools
        self._forget()
        self._transaction.begin()
        for spool in spools:
            for event in spool.events():
                self._take_event(event, 0, len(event))

    def drop(self) -> None:
        """Drop what is put aside: the whole transaction is rolled back."""
        for spool in self._spools:
            spool.close()
        self._forget()

    def _forget(self) -> None:
        self._names = []
        self._spools = []
        self._transaction.aside = None


def _name(statement: bytes) -> bytes:
    """Return the name of a savepoint; case does not count."""
    found = _NAME.match(statement)
    if found is None:
        raise CorruptBinlog("a savepoint without a name")
    return found[1].strip(b" `").lower()
