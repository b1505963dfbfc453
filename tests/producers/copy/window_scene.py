"""A table, its log and its copy, advanced step by step: the real decoder and the real windows.

The server is a list of states, so that every order of commit, delivery and visibility that a real
one occasionally shows can be played. The log's bytes are a real server's, patched.
"""

import struct
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

from event_token import Flavor
from producers.copy.chunk import Chunk, ChunkJob, ChunkRows, Piece, TablePart
from producers.copy.definition import read_definition
from producers.copy.table_copier import TableCopier, Window
from producers.filters.binding import TableFilters
from producers.filters.rules import FilterRule, FilterSettings, TablePattern
from producers.settings import CopySettings
from tests.database_servers import DatabaseFixture
from tests.producers.copy.copying import check_copied_log, check_no_stale_read, replay_upserts
from tests.producers.decoder.capture import capture, executed_set, packets_of, run_statements
from tests.producers.decoder.decoding import ALL_ROWS, Sink, new_decoder
from tests.producers.session.producing import WrittenLog, settings_alone
from topics.progress.copy_topic import CopyState, TableCopy

# Values that stand nowhere else in a packet, to be patched: (id, v) before and after.
_BEFORE: Final = (0x11223344, 0x55667788)
_AFTER: Final = (0x21324354, 0x65768798)
_GTID_EVENT: Final = 33
# A packet's header and its OK byte, then an event: type, position of its end, UUID and number.
_TYPE, _END_POS, _UUID, _NUMBER = 5 + 4, 5 + 13, 5 + 20, 5 + 36
FIRST_NUMBER: Final = 1_000_001
FILE: Final = "scene-bin.000001"
# More steps than any copy of these few rows needs.
STEPS_MAX: Final = 400

Rows = dict[int, int]


class LogTemplate:
    """A server's packets of one insert, update, delete and DDL on a table `t (id, v)`."""

    def __init__(self, server: DatabaseFixture) -> None:
        self.database = server.new_database()
        run_statements(server, self.database, ("CREATE TABLE t (id INT PRIMARY KEY, v INT)",))
        self.position = executed_set(server)
        run_statements(
            server,
            self.database,
            (
                f"INSERT INTO t VALUES {_AFTER}",
                f"UPDATE t SET id = {_BEFORE[0]}, v = {_BEFORE[1]}",
                f"UPDATE t SET id = {_AFTER[0]}, v = {_AFTER[1]}",
                f"UPDATE t SET id = {_BEFORE[0]}, v = {_BEFORE[1]}",
                "DELETE FROM t",
                "ALTER TABLE t COMMENT = 'of the same columns'",
            ),
        )
        groups: list[list[bytes]] = [[]]
        for packet in packets_of(capture(server, self.position)):
            if packet[_TYPE] == _GTID_EVENT:
                groups.append([])
            groups[-1].append(packet)
        self.head, insert, _, update, _, delete, ddl = groups
        self._groups = {"insert": insert, "update": update, "delete": delete, "ddl": ddl}
        # For all scenes: each reads the definition again, because its plan belongs to its decoder.
        self.connection = server.connect()
        self.settings = settings_alone(server)
        self.uuid = str(UUID(bytes=insert[0][_UUID : _UUID + 16]))

    def close(self) -> None:
        """Leave the server."""
        self.connection.close()

    def transaction(
        self,
        number: int,
        before: tuple[int, int] | None,
        after: tuple[int, int] | None,
    ) -> bytes:
        """The packets of the `number`-th transaction; a DDL where there is no image."""
        kinds = {(False, True): "insert", (True, True): "update", (True, False): "delete"}
        kind = kinds.get((before is not None, after is not None), "ddl")
        packets = [bytearray(packet) for packet in self._groups[kind]]
        packets[0][_NUMBER : _NUMBER + 8] = struct.pack("<q", FIRST_NUMBER + number - 1)
        packets[-1][_END_POS : _END_POS + 4] = struct.pack("<I", end_pos(number))
        found = b"".join(packets)
        for marker, row in ((_BEFORE, before), (_AFTER, after)):
            if row is not None:
                assert found.count(struct.pack("<ii", *marker)) == 1
                found = found.replace(struct.pack("<ii", *marker), struct.pack("<ii", *row))
        return found

    def executed(self, count: int) -> str:
        """The GTID set of the first transactions."""
        return f"{self.uuid}:{FIRST_NUMBER}-{FIRST_NUMBER + count - 1}" if count else self.position


def end_pos(number: int) -> int:
    """Where the `number`-th transaction ends in its file."""
    return number * 1000


@dataclass
class Reading:
    """A chunk that is asked for; `seen` once its SELECT has run."""

    window: Window
    job: ChunkJob
    since: int
    chunk_rows: list[tuple[int, int]] | None = None
    seen: int = 0
    snapshot: tuple[str, int] | None = None


class Scene:
    """The states after each transaction, and how many are in the log, visible and executed."""

    def __init__(
        self,
        template: LogTemplate,
        rows: Rows,
        *,
        by_snapshot: bool = False,
        kept: Collection[int] | None = None,
    ) -> None:
        """`by_snapshot`: chunks are tied to the log by places, as MariaDB's are.

        `kept`: the values of `v` that a filter rule lets through; None for no rule.
        """
        self._template = template
        self._kept = kept
        self._by_snapshot = by_snapshot
        self.states: list[Rows] = [dict(rows)]
        self._pending: list[bytes] = []
        self.delivered = self.visible = self.executed = 0
        self.sink = Sink()
        rules = None
        if kept is not None:
            where = f"v IN ({', '.join(map(str, kept))})"
            rule = FilterRule(TablePattern(f"{template.database}.t"), where=where)
            rules = TableFilters(FilterSettings(rules=(rule,)), {})
        self.decoder = new_decoder(
            self.sink, Flavor.MYSQL, template.position, verify_checksum=False, rules=rules
        )
        for packet in template.head:
            self._feed(packet)
        self._definition = read_definition(
            template.connection, template.settings, template.database, "t"
        )
        copy = TableCopy(template.database, "t", "c", CopyState.COPYING, 0, 0)
        self.copier = TableCopier(copy, self.decoder.copy_writer, CopySettings(chunk_rows_max=2))
        self._readings: list[Reading] = []
        self._needs: dict[int, int] = {}
        self._now_s = 0.0
        self._version = max([0, *rows.values()])

    def _feed(self, stream: bytes) -> None:
        assert self.decoder.feed(stream, 0, len(stream), ALL_ROWS) == len(stream)

    @property
    def log(self) -> WrittenLog:
        """What the log holds so far."""
        self.decoder.take_batch()
        times_ms = [message.timestamp_ms for message in self.sink.messages]
        return WrittenLog(self.sink.events(), times_ms, [])

    def commit(self, key: int, to: int | None) -> None:
        """A change of the row `key`: put (`to` is the key), moved to another key, deleted (None).

        What cannot be in the state as it is changes nothing. Each write raises `v`.
        """
        rows = dict(self.states[-1])
        before = (key, rows.pop(key)) if key in rows else None
        if (to is None and before is None) or (to != key and to in rows):
            return
        if to is not None and to != key and before is None:
            return
        after = None
        if to is not None:
            self._version += 1
            after = (to, self._version)
            rows[to] = self._version
        self._append(rows, before, after)

    def _append(
        self, rows: Rows, before: tuple[int, int] | None, after: tuple[int, int] | None
    ) -> None:
        self.states.append(rows)
        number = len(self.states) - 1
        self._pending.append(self._template.transaction(number, before, after))

    def show_at_once(self) -> None:
        """The table is of an engine without snapshots."""
        self._definition = replace(self._definition, is_in_snapshots=False)

    def alter(self) -> None:
        """A DDL that leaves the columns as they are."""
        self._append(dict(self.states[-1]), None, None)

    def deliver(self) -> None:
        """The log takes the next transaction."""
        if self.delivered < len(self.states) - 1:
            self._feed(self._pending[self.delivered])
            self.delivered += 1

    def show(self) -> None:
        """A SELECT sees the next transaction."""
        self.visible = min(self.visible + 1, len(self.states) - 1)

    def execute(self) -> None:
        """The executed set has the next transaction that is visible."""
        self.executed = min(self.executed + 1, self.visible)

    def ask(self) -> None:
        """A window opens where there is room for one."""
        self._now_s += 60.0  # no spoilt chunk waits
        found = self.copier.next_job(self._now_s)
        if found is not None:
            self._readings.append(Reading(*found, self.delivered))

    def select(self, behind: int = 0, *, waits: bool = True) -> None:
        """Read the oldest chunk asked for, if the server shows all that the log had (`waits`).

        `behind`: so much older than what is visible is what a snapshot sees; its place says it.
        """
        reading = next((r for r in self._readings if r.chunk_rows is None), None)
        if reading is None:
            return
        everything = len(self.states) - 1
        is_quiet = not behind and reading.since == self.visible == self.executed == everything
        if self._by_snapshot and not is_quiet:
            reading.seen = max(0, self.visible - behind)
            reading.snapshot = (self.decoder.binlog_file, end_pos(reading.seen))
        elif not waits or self.executed >= reading.since:
            reading.seen = self.visible
        else:
            return
        after = int(reading.job.after.after[0]) if reading.job.after else -1
        left = sorted(row for row in self.states[reading.seen].items() if row[0] > after)
        reading.chunk_rows = left[: reading.job.rows_max]

    def hand_over(self) -> None:
        """Read the executed set behind the SELECT, and give the chunk to the copy."""
        reading = next((r for r in self._readings if r.chunk_rows is not None), None)
        if reading is None or reading.chunk_rows is None:
            return
        self._readings.remove(reading)
        pieces = [
            Piece(b"\0" + struct.pack("<ii", *row), 1, (str(row[0]),), {"id": str(row[0])})
            for row in reading.chunk_rows
        ]
        # MariaDB's executed set runs ahead of what a SELECT sees.
        high = len(self.states) - 1 if reading.snapshot else self.executed
        self._needs[id(reading.window)] = reading.seen if reading.snapshot else high
        chunk_rows = ChunkRows(pieces, len(pieces), len(pieces))
        is_last = len(pieces) < reading.job.rows_max
        chunk = Chunk(
            TablePart(self._definition, chunk_rows, is_last, 0.0, ()),
            self._template.executed(high),
            reading.snapshot,
            0,
        )
        self.copier.take(reading.window, chunk)

    def write(self) -> None:
        """Write a piece if it may be written; never before the log has what its SELECT saw."""
        if self.copier.copy.state is CopyState.COMPLETED:
            return
        if self.copier.is_ready(self.decoder.reached, self._now_s):
            window: Any = self.copier._windows.open[0]
            assert self.delivered >= self._needs[id(window)]
            self.copier.write(0)

    def chunk(self, behind: int = 0) -> None:
        """Ask for a chunk, read it and hand it over at one go."""
        self.ask()
        self.select(behind)
        self.hand_over()

    def log_all(self) -> None:
        """All that was committed is visible, executed and in the log."""
        for _ in self.states:
            self.play("show", "execute", "deliver")

    def play(self, *steps: str) -> None:
        """Take steps of which nothing else need be said."""
        for step in steps:
            getattr(self, step)()

    def finish(self) -> None:
        """Let the server come to rest and the copy end."""
        self.log_all()
        for _ in range(STEPS_MAX):
            if self.copier.copy.state is CopyState.COMPLETED:
                return
            self.play("ask", "select", "hand_over", "write")
        raise AssertionError(f"the copy does not end: {self.copier._reason}")

    def check(self) -> None:
        """Log and copy make what a rule keeps of the table; no READ follows a newer change."""
        log = self.log
        check_copied_log(log)
        check_no_stale_read(log, self._template.database, "t", "v")
        found = replay_upserts(log, self._template.database, "t")
        kept, rows = self._kept, self.states[-1]
        wanted = {key: v for key, v in rows.items() if kept is None or v in kept}
        assert {key: row["v"] for (key,), row in found.items()} == wanted
