"""Rows after a SAVEPOINT of MariaDB, put aside until it is known whether they are rolled back.

MariaDB logs ROLLBACK TO where the transaction has also created or dropped a temporary table, or
changed a table that cannot be rolled back; the rows of such a table are in a transaction of their
own. So all rows after the savepoint, in this transaction, are rolled back.
"""

import re
from collections.abc import Callable
from typing import Final

from producers.decoder.errors import CorruptBinlog
from producers.decoder.stream.prepared import EventSpool, PreparedTransactions
from producers.decoder.stream.table_versions import TableVersions
from producers.decoder.stream.transaction import Transaction

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
