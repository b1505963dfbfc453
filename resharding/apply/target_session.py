"""The applier's session on a target, which applies source transactions atomically."""

from collections.abc import Sequence
from typing import Any, Final

import pymysql

from databases.connection import error_text, is_transient, server_errors
from databases.errors import ServerLost
from databases.sql import rows
from resharding.apply.routing import place_of
from resharding.apply.statements import Statement, TargetTable
from resharding.bookkeeping import Checkpoint, read_checkpoints
from resharding.errors import CheckpointMoved, DoesNotApply
from resharding.primaries import takes_writes
from resharding.server import ReshardServer, open_session
from topics.records.vevent import VEvent

# Strict: a value that does not fit stops the applier. Invalid dates are dates that the source
# holds, and 0 in an AUTO_INCREMENT column is 0.
STRICT_MODE: Final = "STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES"
LENIENT_MODE: Final = "NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES"
_SESSION: Final = (
    f"SET SESSION sql_mode = '{STRICT_MODE}'",
    "SET SESSION foreign_key_checks = 0",
    "SET SESSION sql_safe_updates = 0",
    # Gap locks would only block verify.
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
)
# Larger packets of statements save nothing more.
PACKET_BYTES: Final = 1024 * 1024
# WARN_DATA_TRUNCATED: the warning for the ENUM error value where it is accepted.
_TRUNCATED: Final = 1265


class TargetSession:
    """One connection to a target, with at most one open transaction.

    Methods raise ServerLost when the server is lost or rolls back (then nothing of the transaction
    is there, or, lost during the commit, possibly all of it: the checkpoint tells), DoesNotApply
    when it refuses a row, CheckpointMoved when a checkpoint is not where this session left it.
    """

    def __init__(self, server: ReshardServer) -> None:
        """Connect and set the session."""
        self.server = server
        self._connection = open_session(server, many_statements=True)
        try:
            with server_errors(server, "setting the session of"):
                with self._connection.cursor() as cursor:
                    for statement in _SESSION:
                        cursor.execute(statement)
                [(packet,)] = rows(self._connection, "SELECT @@max_allowed_packet")
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
            [(held,)] = rows(self._connection, "SELECT GET_LOCK(%s, 0)", (lock,))
        self.is_shown = held == 1

    def checkpoints(self, reshard_id: str) -> dict[str, Checkpoint]:
        """The checkpoints on the target."""
        with server_errors(self.server, "reading the checkpoint of"):
            return read_checkpoints(self._connection, reshard_id)

    def table(self, database: str, table: str, sharding_column: str) -> TargetTable:
        """A table of the target; it has no columns if it does not exist."""
        with server_errors(self.server, "looking at a table of"):
            found = rows(
                self._connection,
                "SELECT column_name, generation_expression FROM information_schema.columns "
                "WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position",
                (database, table),
            )
        return TargetTable(
            database,
            table,
            tuple(name for name, _ in found),
            frozenset(name for name, expression in found if expression),
            sharding_column,
        )

    def holds_rows_apart(self, event: VEvent) -> bool:
        """Whether no rows of a record's table with different primary keys can exclude each other.

        Not with other unique keys, and not with text, whose collations take some values as equal.
        """
        with server_errors(self.server, "looking at the keys of"):
            found = rows(
                self._connection,
                "SELECT k.index_name, k.column_name, k.sub_part, c.collation_name "
                "FROM information_schema.statistics k LEFT JOIN information_schema.columns c "
                "ON c.table_schema = k.table_schema AND c.table_name = k.table_name "
                "AND c.column_name = k.column_name "
                "WHERE k.table_schema = %s AND k.table_name = %s AND k.non_unique = 0",
                (event.database, event.table),
            )
        assert event.shape is not None  # noqa: S101 - rows have a shape
        key = {event.shape.columns[i].name for i in event.shape.primary_key}
        return {column for _, column, _, _ in found} == key and all(
            index == "PRIMARY" and length is None and collation is None
            for index, _, length, collation in found
        )

    def run(self, statements: Sequence[Statement]) -> None:
        """Execute statements in the open transaction; begin one if there is none."""
        with server_errors(self.server, "applying to"):
            if not self._open:
                self._connection.begin()
                self._open = True
            packet: list[Statement] = []
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

    def _send(self, packet: list[Statement]) -> None:
        """Send statements as one packet; check the result of each."""
        connection = self._connection
        for i, statement in enumerate(packet):
            try:
                if i == 0:
                    changed = connection.query(";".join(s.sql for s in packet))
                else:
                    changed = connection.next_result()
            except pymysql.err.MySQLError as error:
                if is_transient(error):
                    raise
                raise refused(statement, self.server, error) from error
            if statement.one_row and changed != 1:
                raise CheckpointMoved(
                    f"{self.server.name}: the checkpoint is not where this applier left it, at "
                    f"{place_of(statement.first)}: another applier of the same reshard is "
                    f"running. Nothing was changed; stop one of the two",
                )

    def _run_leniently(self, statement: Statement) -> None:
        """Execute a row with ENUM error values; nothing else in it may be changed by the server."""
        connection = self._connection
        try:
            connection.query(f"SET SESSION sql_mode = '{LENIENT_MODE}'")
            connection.query(statement.sql)
            warnings = rows(connection, "SHOW WARNINGS")
            connection.query(f"SET SESSION sql_mode = '{STRICT_MODE}'")
        except pymysql.err.MySQLError as error:
            if is_transient(error):
                raise
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
        with server_errors(self.server, "working on"), self._connection.cursor() as cursor:
            cursor.execute(sql)

    @property
    def connection(self) -> Any:
        """The connection, for queries."""
        return self._connection

    def check_primary(self) -> None:
        """Raise ServerLost unless the server is still the primary of its shard.

        The account may write to a read-only server, where its changes would be lost.
        """
        if not takes_writes(self._connection, self.server):
            raise ServerLost(f"{self.server.name} is a replica or read-only by now")

    def commit(self) -> None:
        """Commit the open transaction."""
        with server_errors(self.server, "committing on"):
            self._connection.commit()
        self._open = False

    def close(self) -> None:
        """Close the connection; the server rolls an open transaction back."""
        if self._connection.open:
            self._connection._force_close()  # noqa: SLF001 - a lost server takes no goodbye


def refused(
    statement: Statement, server: ReshardServer, error: pymysql.err.MySQLError
) -> DoesNotApply:
    """The error for a statement that the server rejects."""
    first, last = statement.first, statement.last
    to = "" if first is last else f" to seq {last.seq}, offset {last.offset}"
    return DoesNotApply(
        f"{place_of(first)}{to}: a row of {_table(statement)} does not apply to the target "
        f"{server.name}: {error_text(error)}. Fix the target and start again",
    )


def _table(statement: Statement) -> str:
    return f"{statement.first.database}.{statement.first.table}"
