"""Query events: BEGIN and COMMIT, definitions, and statements that stop the shard."""

from typing import Final

from databases.internal_tables import INTERNAL_DATABASE
from producers.decoder.errors import (
    RolledBack,
    StatementInRowStream,
    UnloggedCascade,
    UnsupportedEvent,
)
from producers.decoder.events.event_types import QUERY
from producers.decoder.events.statement_case import lower_names
from producers.decoder.events.statement_tables import named_tables
from producers.decoder.events.statements import (
    Statement,
    altered_tables,
    classify,
    declares_cascade,
    definition_kind,
    moves_rows,
    query_database,
    query_sql_mode,
    query_statement,
    shown,
)
from producers.decoder.stream.savepoints import Savepoints
from producers.decoder.stream.table_versions import TableVersions, statement_header
from producers.decoder.stream.transaction import Transaction
from producers.decoder.stream.xa_transactions import XaTransactions
from producers.decoder.values.wire import encode_string
from topics.progress.record import LastDdl

ROLLBACK_OF_MYSQL: Final = (
    "a ROLLBACK after rows, which MySQL does not log under enforce_gtid_consistency=ON, and the "
    "binlog does not say which rows stayed: start a new log after it with a copy"
)

# A DROP TABLE may name hundreds.
SHOWN_TABLES_MAX: Final = 3


class StatementReader:
    """Takes the statements of one stream."""

    def __init__(
        self,
        transaction: Transaction,
        tables: TableVersions,
        xa: XaTransactions,
        savepoints: Savepoints,
        *,
        refuses_cascades: bool,
    ) -> None:
        """`refuses_cascades`: stop at foreign keys that change rows, which are in no binlog."""
        self._transaction: Transaction = transaction
        self._tables: TableVersions = tables
        self._xa: XaTransactions = xa
        self._savepoints: Savepoints = savepoints
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
        elif statement == Statement.ACCOUNT:
            # It may hold a password or its hash, which must not reach Kafka.
            if not transaction.has_begun:
                transaction.end()
        elif statement == Statement.BEGIN:
            transaction.begin()
        elif statement == Statement.COMMIT:
            if transaction.aside is not None:
                self._savepoints.log_rows()
            transaction.end()
        elif statement in (Statement.SAVEPOINT, Statement.ROLLBACK_TO):
            self._savepoint(statement, raw)
        elif statement == Statement.ROLLBACK:
            self._rollback()
        elif statement == Statement.XA:
            self._xa.statement(raw)
        elif statement == Statement.CHANGE:
            raise StatementInRowStream(
                f"a change was logged as a statement, so its rows are in no binlog: "
                f"SET GLOBAL binlog_format=ROW on the source, and give a system-versioned table "
                f"that counts its versions by transactions (BIGINT) TIMESTAMP(6) columns instead; "
                f"the statement begins: {shown(raw)}"
            )
        else:
            raise UnsupportedEvent(f"an unknown statement, which begins: {shown(raw)}")

    def _savepoint(self, statement: Statement, raw: bytes) -> None:
        """Take SAVEPOINT, or ROLLBACK TO one, which MySQL logs only where GTIDs allow no rows."""
        transaction = self._transaction
        if transaction.is_rolled_back:
            return
        if transaction.position.is_mysql:
            if statement == Statement.ROLLBACK_TO and self._has_rows():
                raise UnsupportedEvent(ROLLBACK_OF_MYSQL)
        elif statement == Statement.SAVEPOINT:
            self._savepoints.add(raw)
        else:
            self._savepoints.rollback_to(raw)

    def _rollback(self) -> None:
        """Take ROLLBACK. MariaDB logs it after rows beside a temporary table: they are dropped.

        Definitions stay, for MariaDB cannot roll them back: a CREATE OR REPLACE TABLE ... SELECT
        that fails has dropped the table, and its DROP TABLE is logged before a ROLLBACK.
        """
        transaction = self._transaction
        if self._has_rows() and transaction.position.is_mysql:
            raise UnsupportedEvent(ROLLBACK_OF_MYSQL)
        self._savepoints.drop()
        if transaction.has_records and transaction.record.row_index > transaction.definitions:
            # Some of them are with Kafka's client: abort, and read it again without its rows.
            raise RolledBack(transaction.position.gtid())
        transaction.end()

    def _has_rows(self) -> bool:
        return self._transaction.has_records or self._transaction.aside is not None

    def _check_moved_rows(self, body: bytes, statement: bytes) -> None:
        """Refuse a definition that changes rows of a wanted table without row events."""
        if not moves_rows(statement, query_sql_mode(body)):
            return
        names = altered_tables(statement, query_database(body))
        wanted = [(d, t) for d, t in names if not self._tables.leaves_out(d, t)]
        shown_names = ", ".join([f"{d}.{t}" for d, t in wanted])
        if wanted or not names:
            raise StatementInRowStream(
                f"ALTER TABLE with IMPORT TABLESPACE, DISCARD TABLESPACE, EXCHANGE PARTITION or "
                f"CONVERT changed the rows of {shown_names or 'a table'}, which are in no "
                f"binlog: start a new log after it with a copy, or leave the table out by a filter "
                f"rule; the statement begins: {shown(statement)}",
                tuple(wanted),
            )

    def _named(self, body: bytes, statement: bytes) -> tuple[tuple[str, str], ...]:
        """The tables that a definition is about."""
        names = named_tables(statement, query_database(body), query_sql_mode(body))
        return tuple([name for name in names if name[1]])

    def _note_ddl(self, names: list[tuple[str, str]], statement: bytes, sql_mode: int) -> None:
        """Keep what operators are told of a definition; its text may hold values.

        The product's own tables are not what they ask for.
        """
        if names and all(database == INTERNAL_DATABASE for database, _ in names):
            return
        shown_names = [f"{d}.{t}" if t else d for d, t in names[:SHOWN_TABLES_MAX]]
        more = len(names) - len(shown_names)
        self._transaction.ddl = LastDdl(
            int(self._transaction.commit_us),
            definition_kind(statement, sql_mode),
            ", ".join(shown_names) + (f" and {more} more" if more else ""),
        )

    def _ddl(self, body: bytes, statement: bytes) -> None:
        """Add a DDL record; outside BEGIN it is a transaction of its own."""
        transaction = self._transaction
        if transaction.aside is not None:
            transaction.aside.add_event(QUERY, body)
            return
        if self._refuses_cascades and declares_cascade(statement, query_sql_mode(body)):
            raise UnloggedCascade(
                f"a foreign key changes rows by itself (CASCADE or SET NULL), and this server "
                f"does not log such changes, or is the replica of one that may not; the statement "
                f"begins: {shown(statement)}. Make the key RESTRICT and the changes explicit, and "
                f"copy the tables again from after it; or set accept_unlogged_cascades = true and "
                f"accept that such changes are missing",
                self._named(body, statement),
            )
        database = query_database(body)
        if self._tables.lower_case_names:
            statement = lower_names(statement, query_sql_mode(body))
            database = database.lower()
        self._check_moved_rows(body, statement)
        self._tables.definitions_changed(statement)
        names = named_tables(statement, query_database(body), query_sql_mode(body))
        if self._tables.leaves_out_all(names):  # it is about nothing else
            if not transaction.has_begun:
                transaction.end()
            return
        if not transaction.has_records:
            transaction.begin_records()
        text = statement.decode("utf-8")
        self._tables.note_statement(text, transaction.record.next_seq)
        transaction.record.add_statement(
            self._tables.statement_prefix("DDL"),
            statement_header(database.encode("utf-8")),
            encode_string(database) + encode_string(""),
            statement,
        )
        transaction.definitions += 1
        self._note_ddl(names, statement, query_sql_mode(body))
        if not transaction.has_begun:
            transaction.end()
