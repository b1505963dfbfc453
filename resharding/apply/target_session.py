"""The applier's session on a target, which applies source transactions atomically."""

from collections.abc import Sequence
from typing import Any, Final

import pymysql

from databases.catalog import read_columns
from databases.connection import error_text, is_transient, lost_or_refused, server_errors
from databases.errors import ServerLost
from databases.session import check_session
from databases.sql import rows
from event_token import StreamPosition
from resharding.apply.statements import ReshardTargetTable, TargetStatement
from resharding.bookkeeping import Checkpoint, read_checkpoints
from resharding.errors import CheckpointMoved, DoesNotApply
from resharding.routing import place_of
from resharding.servers import ReshardServer, open_session, takes_writes

# Strict: a value that does not fit stops the applier. Invalid dates are dates that the source
# holds, and 0 in an AUTO_INCREMENT column is 0.
STRICT_MODE: Final = "STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES"
LENIENT_MODE: Final = "NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES"
_SESSION: Final = (
    f"SET SESSION sql_mode = '{STRICT_MODE}', foreign_key_checks = 0, sql_safe_updates = 0",
    # Gap locks would only block verify.
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
)
_ASKED: Final = {"sql_mode": STRICT_MODE, "foreign_key_checks": "0", "sql_safe_updates": "0"}
# Larger packets of statements save nothing more.
PACKET_BYTES: Final = 1024 * 1024
# WARN_DATA_TRUNCATED: the warning for the ENUM error value where it is accepted.
_TRUNCATED: Final = 1265


class TargetSession:
    """One connection to a target, with at most one open transaction.

    Methods raise ServerLost when the server is lost or rolls back (then nothing of the transaction
    is there, or, lost during the commit, possibly all of it, as the checkpoint shows), DoesNotApply
    when it refuses a row, CheckpointMoved when a checkpoint is not where this session left it.
    """

    def __init__(self, server: ReshardServer) -> None:
        """Connect and set the session."""
        self.server = server
        self.connection = open_session(server, many_statements=True)
        try:
            with server_errors(server, "setting the session of"):
                with self.connection.cursor() as cursor:
                    for statement in _SESSION:
                        cursor.execute(statement)
                check_session(self.connection, server.name, _ASKED)
                [(packet,)] = rows(self.connection, "SELECT @@max_allowed_packet")
        except BaseException:
            self.close()
            raise
        # The session's value limits what the client may send; the packet header is not counted.
        self.packet_bytes_max = int(packet) - 1024
        self._open = False
        self.is_shown = False

    def show(self, lock: str) -> None:
        """Hold the named lock by which others see that an applier runs, once it is free."""
        with server_errors(self.server, "taking the applier's lock on"):
            [(held,)] = rows(self.connection, "SELECT GET_LOCK(%s, 0)", (lock,))
        self.is_shown = held == 1

    def checkpoints(self, reshard_id: str) -> dict[str, Checkpoint]:
        """The checkpoints on the target."""
        with server_errors(self.server, "reading the checkpoint of"):
            return read_checkpoints(self.connection, reshard_id)

    def table(self, database: str, table: str, sharding_column: str) -> ReshardTargetTable:
        """A table of the target; it has no columns if it does not exist."""
        with server_errors(self.server, "looking at a table of"):
            columns = read_columns(self.connection, database, table)
        return ReshardTargetTable(
            database,
            table,
            tuple(column.name for column in columns),
            frozenset(column.name for column in columns if column.generation),
            sharding_column,
        )

    def run(self, statements: Sequence[TargetStatement]) -> None:
        """Execute statements in the open transaction; begin one if there is none."""
        with server_errors(self.server, "applying to"):
            if not self._open:
                self.connection.begin()
                self._open = True
            packet: list[TargetStatement] = []
            size = 0
            for statement in statements:
                if statement.error_labels or size + len(statement.sql) > self._packet_bytes():
                    self._send(packet)
                    packet, size = [], 0
                if statement.error_labels:
                    self._run_leniently(statement)
                    continue
                packet.append(statement)
                size += len(statement.sql) + 1
            self._send(packet)

    def _packet_bytes(self) -> int:
        return min(PACKET_BYTES, self.packet_bytes_max)

    def _send(self, packet: list[TargetStatement]) -> None:
        """Send statements as one packet; check the result of each."""
        connection = self.connection
        for i, statement in enumerate(packet):
            try:
                if i == 0:
                    changed = connection.query(";".join(s.sql for s in packet))
                else:
                    changed = connection.next_result()
            except pymysql.err.MySQLError as error:
                if is_transient(error):
                    raise
                if not self._settles(statement, error):
                    raise refused(statement, self.server, error) from error
                self._send(packet[i + 1 :])  # the server has left them out
                return
            self._check_changed(statement, changed)

    def _check_changed(self, statement: TargetStatement, changed: int) -> None:
        """Look at how many rows a statement has changed."""
        if statement.one_row and changed != 1:
            raise CheckpointMoved(
                f"{self.server.name}: the checkpoint is not where this applier left it, at "
                f"{place_of(statement.first)}: another applier of the same reshard is "
                f"running. Nothing was changed; stop one of the two",
            )

    def _settles(self, _statement: TargetStatement, _error: pymysql.err.MySQLError) -> bool:
        """Whether a statement that the server refuses is done in another way."""
        return False

    def settle(self, position: StreamPosition) -> None:
        """Do what is left at the end of a transaction, where the sources are at `position`."""

    def _query_leniently(self, sql: str) -> list[tuple[Any, ...]]:
        """Execute a statement with ENUM error values, and return the warnings."""
        connection = self.connection
        connection.query(f"SET SESSION sql_mode = '{LENIENT_MODE}'")
        try:
            connection.query(sql)
            return rows(connection, "SHOW WARNINGS")
        finally:
            if connection.open:
                connection.query(f"SET SESSION sql_mode = '{STRICT_MODE}'")

    def _run_leniently(self, statement: TargetStatement) -> None:
        """Execute a row with ENUM error values; nothing else in it may be changed by the server."""
        try:
            warnings = self._query_leniently(statement.sql)
        except pymysql.err.MySQLError as error:
            if is_transient(error):
                raise
            if self._settles(statement, error):
                return
            raise refused(statement, self.server, error) from error
        codes = [code for _, code, _ in warnings]
        texts = "; ".join(text for _, _, text in warnings)
        if codes != [_TRUNCATED] * statement.error_labels:
            raise DoesNotApply(
                f"{place_of(statement.first)}: a row of {_table(statement)} cannot be stored "
                f"unchanged on the target {self.server.name}: {texts}",
            )

    def execute(self, sql: str) -> None:
        """Commit what is open, then execute a separate statement."""
        if self._open:
            self.commit()
        with server_errors(self.server, "working on"), self.connection.cursor() as cursor:
            cursor.execute(sql)

    def insert(self, sql: str, error_labels: int) -> None:
        """Insert a row with a number of ENUM error values, outside a transaction."""
        with server_errors(self.server, "working on"):
            if error_labels:
                self._query_leniently(sql)
            else:
                self.connection.query(sql)

    @property
    def aside_rows(self) -> int:
        """How many rows wait aside."""
        return 0

    def check_primary(self) -> None:
        """Raise ServerLost unless the server is still the primary of its shard.

        The account may write to a read-only server, where its changes would be lost.
        """
        if not takes_writes(self.connection, self.server):
            raise ServerLost(f"{self.server.name} is a replica or read-only by now")

    def commit(self) -> None:
        """Commit the open transaction. No error of it is about a row."""
        with server_errors(self.server, "committing on", lost_or_refused):
            self.connection.commit()
        self._open = False

    def close(self) -> None:
        """Close the connection; the server rolls an open transaction back."""
        if self.connection.open:
            self.connection._force_close()  # noqa: SLF001 - a lost server takes no goodbye


def refused(
    statement: TargetStatement, server: ReshardServer, error: pymysql.err.MySQLError
) -> DoesNotApply:
    """The error for a statement that the server rejects."""
    first, last = statement.first, statement.last
    to = "" if first is last else f" to seq {last.seq}, offset {last.offset}"
    return DoesNotApply(
        f"{place_of(first)}{to}: a row of {_table(statement)} does not apply to the target "
        f"{server.name}: {error_text(error)}. Fix the target and start again",
    )


def _table(statement: TargetStatement) -> str:
    return f"{statement.first.database}.{statement.first.table}"
