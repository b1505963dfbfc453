"""Query events: BEGIN and COMMIT, definitions, and statements that stop the shard."""

from producers.decoder.errors import StatementInRowStream, UnloggedCascade, UnsupportedEvent
from producers.decoder.events.statements import (
    Statement,
    classify,
    declares_cascade,
    query_database,
    query_sql_mode,
    query_statement,
    shown,
)
from producers.decoder.stream.table_versions import TableVersions, statement_header
from producers.decoder.stream.transaction import Transaction
from producers.decoder.stream.xa_transactions import XaTransactions
from producers.decoder.values.wire import encode_string


class StatementReader:
    """Takes the statements of one stream."""

    def __init__(
        self,
        transaction: Transaction,
        tables: TableVersions,
        xa: XaTransactions,
        *,
        refuses_cascades: bool,
    ) -> None:
        """`refuses_cascades`: stop at foreign keys that change rows, which are in no binlog."""
        self._transaction: Transaction = transaction
        self._tables: TableVersions = tables
        self._xa: XaTransactions = xa
        self._refuses_cascades: bool = refuses_cascades

    def take(self, body: bytes) -> None:
        """Take a query event's body."""
        raw = query_statement(body)
        statement = classify(raw, query_sql_mode(body))
        transaction = self._transaction
        if statement == Statement.NOTHING:
            if transaction.is_open and not transaction.has_begun:
                transaction.end()
            return
        transaction.require_open("a statement")
        if statement == Statement.DDL:
            self._ddl(body, raw)
        elif statement == Statement.BEGIN:
            transaction.begin()
        elif statement == Statement.COMMIT:
            transaction.end()
        elif statement == Statement.SAVEPOINT:
            pass  # what is rolled back to it never reaches the binlog, or comes as ROLLBACK TO
        elif statement in (Statement.ROLLBACK, Statement.ROLLBACK_TO):
            self._rollback(statement)
        elif statement == Statement.XA:
            self._xa.statement(raw)
        elif statement == Statement.CHANGE:
            raise StatementInRowStream(
                f"a change was logged as a statement, so its rows are in no binlog: "
                f"SET GLOBAL binlog_format=ROW on the source; the statement begins: {shown(raw)}"
            )
        else:
            raise UnsupportedEvent(f"an unknown statement, which begins: {shown(raw)}")

    def _rollback(self, statement: Statement) -> None:
        transaction = self._transaction
        if transaction.has_records or transaction.aside is not None:
            raise UnsupportedEvent(
                "a ROLLBACK after rows: the transaction mixes tables that can be rolled back with "
                "tables that cannot, and the binlog does not say which rows stayed"
            )
        if statement == Statement.ROLLBACK:
            transaction.end()

    def _ddl(self, body: bytes, statement: bytes) -> None:
        """Add a DDL record; outside BEGIN it is a transaction of its own."""
        transaction = self._transaction
        if self._refuses_cascades and declares_cascade(statement, query_sql_mode(body)):
            raise UnloggedCascade(
                f"a foreign key changes rows by itself (CASCADE or SET NULL), and this server "
                f"does not log such changes, or is the replica of one that may not; the statement "
                f"begins: {shown(statement)}. Make the key RESTRICT and the changes explicit, and "
                f"copy the tables again from after it; or set accept_unlogged_cascades = true and "
                f"accept that such changes are missing"
            )
        self._tables.definitions_changed(statement)
        if not transaction.has_records:
            transaction.begin_records()
        database, text = query_database(body), statement.decode("utf-8")
        self._tables.note_statement(text, transaction.record.next_seq)
        transaction.record.add_statement(
            self._tables.statement_prefix("DDL"),
            statement_header(database.encode("utf-8")),
            encode_string(database) + encode_string(""),
            statement,
        )
        if not transaction.has_begun:
            transaction.end()
