"""Adds the log of a server up to tables, and compares them with SELECT before each DROP.

A replica of the same server stands where the log stands: it is stopped right before each
definition, so that its tables can be asked for what the definition removes.
"""

import re
from collections import Counter
from dataclasses import dataclass, field

import pymysql

from databases.catalog import ROW_END, ROW_START
from databases.sql import quoted, rows
from event_token import Flavor
from producers.decoder.events.statements import Definition, Statement
from producers.decoder.tables.server_columns import is_unlogged
from tests.database_servers import DatabaseFixture
from tests.peers.rows import Shown, agrees, selected, shown_cell, shown_row
from tests.producers.servers.replication import statements
from tests.waiting import wait_for
from topics.records.vevent import EventType, VEvent

SYSTEM = {"information_schema", "mysql", "performance_schema", "sys", "_shardstream", "mtr"}
# Definitions after which rows are not where the log has them: they go to another table, to none, or
# (cascades of MariaDB) change without an event.
NOT_FOLLOWED = {
    Flavor.MYSQL: r"ENGINE\s*=?\s*['\"`]?(MERGE|MRG_MYISAM|BLACKHOLE|FEDERATED)",
    Flavor.MARIADB: r"ENGINE\s*=?\s*['\"`]?(MERGE|MRG_MYISAM|BLACKHOLE|FEDERATED|CONNECT|SPIDER)|"
    r"ON\s+(DELETE|UPDATE)\s+(CASCADE|SET\s+NULL)",
}
# Of system-versioned tables: readers need them, and SELECT * does not show them.
PERIOD = {ROW_START, ROW_END}
# A difference shows this many rows of each side.
SHOWN_ROWS = 3

REASON_CHARACTERS = 600

Name = tuple[str, str]


class ReplicaError(Exception):
    """The replica cannot apply a transaction, which says nothing about the log."""


class Replica:
    """A server that follows another one step by step."""

    def __init__(self, server: DatabaseFixture) -> None:
        self.server = server
        self._is_mysql = server.flavor is Flavor.MYSQL

    def run_to(self, gtid: str, *, before: bool) -> None:
        """Apply all up to a transaction, without or with it."""
        if self._is_mysql:
            until = "SQL_BEFORE_GTIDS" if before else "SQL_AFTER_GTIDS"
            self._run(f"START REPLICA SQL_THREAD UNTIL {until} = '{gtid}'")
            return
        domain, origin, number = gtid.split("-")
        place = f"{domain}-{origin}-{int(number) - before}"
        self._run(f"START SLAVE UNTIL master_gtid_pos = '{place}'")

    def _run(self, start: str) -> None:
        try:
            statements(self.server, start)
        except pymysql.MySQLError as error:
            raise ReplicaError(str(error)) from error
        wait_for("the replica stops", self._has_stopped, poll_s=0.004)

    def _has_stopped(self) -> bool:
        with (
            self.server.connect() as connection,
            connection.cursor(pymysql.cursors.DictCursor) as cursor,
        ):
            cursor.execute("SHOW REPLICA STATUS" if self._is_mysql else "SHOW SLAVE STATUS")
            [status] = cursor.fetchall()
        kind = "Replica" if self._is_mysql else "Slave"
        if status["Last_SQL_Errno"]:
            raise ReplicaError(f"{status['Last_SQL_Errno']} {status['Last_SQL_Error']}")
        return bool(status[f"{kind}_SQL_Running"] == "No")


@dataclass
class Replay:
    """The tables that a log adds up to, beside a replica."""

    replica: Replica
    tables: dict[Name, list[Shown]] = field(default_factory=dict)
    compared: int = 0
    events: int = 0
    differences: list[str] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)
    # Why nothing more of this file is compared.
    ended: str = ""

    def add(self, event: VEvent) -> None:
        """Take the next event."""
        self.events += 1
        pattern = NOT_FOLLOWED[self.replica.server.flavor]
        if not self.ended and re.search(pattern, event.statement or "", re.IGNORECASE):
            self._end("rows go to another table, to none, or change without an event")
        if self.ended:
            return
        if event.type is EventType.ROW:
            self._add_row(event)
        elif event.type is EventType.DDL:
            self._define(event)

    def skip(self, gtid: str) -> None:
        """Take a transaction that stopped the decoder from the replica."""
        if not self.ended:
            self._move(gtid, before=False)
        self.tables = {name: self._select(name) for name in self._base_tables()}

    def finish(self, gtid: str) -> None:
        """Compare all tables at the end."""
        if not self.ended:
            self._move(gtid, before=False)
            for name in self._base_tables():
                self._compare(name, f"at the end, {gtid}")

    def _end(self, reason: str) -> None:
        self.ended = reason
        self.notes[f"not compared further: {reason}"] += 1

    def _add_row(self, event: VEvent) -> None:
        name = (event.database, event.table)
        if event.database in SYSTEM or event.shape is None:
            return
        table = self.tables.setdefault(name, [])
        flavor = self.replica.server.flavor
        stood: Shown = {}
        if event.before is not None:
            image = shown_row(event.shape, event.before, flavor)
            place = next((i for i, row in enumerate(table) if agrees(row, image)), None)
            if place is None:
                self.differences.append(f"{name} {event.gtid}: no row is {image}")
            else:
                stood = table.pop(place)
        if event.after is not None:
            table.append({**stood, **shown_row(event.shape, event.after, flavor)})

    def _define(self, event: VEvent) -> None:
        statement = (event.statement or "").encode()
        definition = Definition(Statement(statement), event.database)
        names = definition.names()
        concerned = [
            name
            for name in self.tables
            if not names or any(d == name[0] and t in ("", name[1]) for d, t in names)
        ]
        kind = definition.kind()
        if not concerned or kind.endswith((" VIEW", " TRIGGER", " FUNCTION", " PROCEDURE")):
            return
        self._move(event.gtid, before=True)
        present = self._base_tables()
        for name in concerned:
            if name in present:
                self._compare(name, f"before {event.gtid} {kind}")
        if event.row_index == 0 and event.last:
            self._move(event.gtid, before=False)
            present = self._base_tables()
            for name in concerned:
                del self.tables[name]
            for name in {*concerned, *(names or present)} & present.keys():
                self.tables[name] = self._select(name)
        else:  # its rows follow in the same transaction
            for name in concerned:
                del self.tables[name]

    def _move(self, gtid: str, *, before: bool) -> None:
        """Bring the replica to a transaction; where it cannot apply one, nothing is known."""
        try:
            self.replica.run_to(gtid, before=before)
        except ReplicaError as stop:
            self._end(f"the replica stopped: {str(stop)[:REASON_CHARACTERS]}")

    def _base_tables(self) -> dict[Name, None]:
        with self.replica.server.connect() as connection:
            found = rows(
                connection,
                "SELECT table_schema, table_name FROM information_schema.tables "
                "WHERE table_type IN ('BASE TABLE', 'SYSTEM VERSIONED') AND engine IS NOT NULL "
                "AND engine NOT IN ('MRG_MyISAM', 'MRG_MYISAM', 'BLACKHOLE', 'FEDERATED')",
            )
        return {(d, t): None for d, t in found if d not in SYSTEM}

    def _select(self, name: Name) -> list[Shown]:
        with self.replica.server.connect(read_timeout=60) as connection:
            columns = rows(
                connection,
                "SELECT column_name, data_type FROM information_schema.columns "
                "WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position",
                name,
            )
            parts = ", ".join(selected(column, kind) for column, kind in columns)
            with connection.cursor() as cursor:
                cursor.execute("SET time_zone = '+00:00', sql_mode = ''")
                cursor.execute(f"SELECT {parts} FROM {quoted(name[0])}.{quoted(name[1])}")
                return [
                    {c: shown_cell(v, kind) for (c, kind), v in zip(columns, row, strict=True)}
                    for row in cursor.fetchall()
                ]

    def _unlogged(self, name: Name) -> set[str]:
        """The columns that a producer would leave out: nobody asks the catalog for it here."""
        server = self.replica.server
        with server.connect() as connection:
            columns = rows(
                connection,
                "SELECT column_name, generation_expression FROM information_schema.columns "
                "WHERE table_schema = %s AND table_name = %s",
                name,
            )
        return {column for column, how in columns if is_unlogged(server.flavor, how)}

    def _compare(self, name: Name, where: str) -> None:
        try:
            truth = self._select(name)
        except pymysql.MySQLError as error:
            self.notes[f"not selected: {error}"] += 1
            return
        if self.ended:
            return
        self.compared += 1
        mine = self.tables.get(name, [])
        unlogged = self._unlogged(name)
        known = (set(truth[0] if truth else ()) & set(mine[0] if mine else ())) - unlogged
        for row in mine:
            known &= row.keys()
        logged = {column for row in mine for column in row}
        hidden = logged - truth[0].keys() - PERIOD - unlogged if truth else set()
        counts = [
            Counter(tuple(sorted((c, v) for c, v in row.items() if c in known)) for row in side)
            for side in (mine, truth)
        ]
        if hidden or counts[0] != counts[1]:
            only = [[dict(row) for row in (a - b)][:SHOWN_ROWS] for a, b in (counts, counts[::-1])]
            self.differences.append(
                f"{name} {where}: {len(mine)} rows, {len(truth)} selected; log alone {only[0]}; "
                f"SELECT alone {only[1]}; columns that SELECT does not show: {sorted(hidden)}"
            )
