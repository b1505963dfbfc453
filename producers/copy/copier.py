"""Runs the copies (snapshots, backfills) of one session, a step at a time.

Threads read chunks over separate connections. Everything else, and every decision, happens in the
session's thread between transactions of the stream, whose events always go first.
"""

import time
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from queue import SimpleQueue
from typing import Final

from databases.errors import ServerLost, TableChanged
from event_token import ShardstreamError
from producers.copy.chunk import Chunk, ChunkJob
from producers.copy.chunk_reader import ChunkReader
from producers.copy.definition import CannotCopy, ChunkSpoiled, refuse_left_out
from producers.copy.requests import (
    Inspection,
    Outcome,
    begun_again,
    carry_out,
    inspect,
    may_go_on,
    outdated,
)
from producers.copy.table_copier import TableCopier, Window
from producers.decoder import Decoder
from producers.publisher import Publisher
from producers.settings import ServerSettings, ShardProducerSettings
from topics.progress.copy_topic import (
    CopyFeed,
    CopyRecord,
    CopyState,
    ProvedTable,
    TableCopy,
    encode,
    record_key,
    request_key,
    with_state,
)

# How often requests are looked for: a person waits for the answer.
FEED_PAUSE_S: Final = 0.1
# How often the session takes a step while chunks are being read.
UNDER_WAY_WAIT_S: Final = 0.002
# Binlog events go first; a stream without a pause makes room for a piece this often.
BUSY_PAUSE_S: Final = 0.1

Name = tuple[str, str]


class Copier:
    """The copies of one session; call `step` between transactions only."""

    def __init__(
        self,
        settings: ShardProducerSettings,
        server: ServerSettings,
        decoder: Decoder,
        publisher: Publisher,
        failed: dict[str, str],
    ) -> None:
        """Read the copy topic; the predecessor has been fenced.

        `failed`: copies that ended a session before, by id, each with the reason; those found are
        removed.
        """
        self._settings = settings
        self._limits = settings.copy
        self._server = server
        self._decoder = decoder
        self._publisher = publisher
        self._writer = decoder.copy_writer
        self._feed = CopyFeed(settings.kafka, settings.shard_topics)
        self._feed.read_to_end()
        self._copies: dict[Name, TableCopy] = dict(self._feed.tables)
        self._tables: dict[Name, TableCopier] = {}
        self._turn: deque[Name] = deque()
        self._records: list[tuple[bytes, bytes | None]] = []
        self._readers: SimpleQueue[ChunkReader] = SimpleQueue()
        self._all_readers = [
            ChunkReader(settings, server) for _ in range(self._limits.tables_at_once + 1)
        ]
        for reader in self._all_readers:
            self._readers.put(reader)
        self._pool = ThreadPoolExecutor(len(self._all_readers), "shardstream-copy")
        self._reads: dict[Future[Chunk], tuple[Name, Window]] = {}
        self._inspection: Future[Inspection] | None = None
        self._answered: set[str] = set()
        self._fed_s = 0.0
        self._written_s = 0.0
        self._is_ready = False
        self._writer.take_renamed()
        self._end_stale(failed)

    def _end_stale(self, failed: dict[str, str]) -> None:
        """Cancel copies that followed another filter rule; mark those that ended a session."""
        for copy in outdated(self._copies, self._settings.filters, _now_us()):
            self._put(copy)
        for copy in list(self._copies.values()):
            reason = failed.pop(copy.copy_id, "")
            if reason and copy.state is CopyState.COPYING:
                self._put(with_state(copy, CopyState.FAILED, _now_us(), reason))

    def close(self) -> None:
        """End the threads, and close the connections to Kafka and the server."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for reader in self._all_readers:
            reader.close()
        self._feed.close()

    def take_proved(self) -> Mapping[Name, ProvedTable]:
        """Return, once, what earlier producers have proved of tables, as the topic has it."""
        return self._feed.take_proved()

    def write(self, records: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Add records of the copy topic to those that the next commit writes."""
        self._records.extend(records)

    @property
    def wait_s_max(self) -> float:
        """How long the session may wait for the stream."""
        if self._is_ready:
            return 0.0
        return UNDER_WAY_WAIT_S if self._reads or self._tables else FEED_PAUSE_S

    def write_records(self) -> None:
        """Add the copy topic's records to the Kafka transaction."""
        self._note_renames()  # the copies that they concern belong to the same transaction
        records, self._records = self._records, []
        topic = self._publisher.topics.copy
        for key, value in records:
            self._publisher.write(topic, key, value, _now_us() // 1000)

    def step(self, *, dry: bool) -> bool:
        """Write at most one piece; return True if the session should commit it now.

        `dry`: the stream has nothing more for now. Inside a transaction nothing happens.
        """
        if self._decoder.in_transaction:
            return False
        self._publisher.begin()
        with self._publisher.errors("writing copied rows"):
            return self._step(dry=dry)

    def _step(self, *, dry: bool) -> bool:
        self._note_renames()
        now_s = time.monotonic()
        if now_s - self._fed_s >= FEED_PAUSE_S:
            self._fed_s = now_s
            self._take_requests()
        if not self._copies and self._inspection is None:
            return bool(self._records)
        self._open_tables()
        self._collect(now_s)
        if dry or now_s - self._written_s >= BUSY_PAUSE_S:
            self._write(now_s)
        self._read(now_s)
        return bool(self._records)

    def _put(self, record: CopyRecord) -> None:
        if isinstance(record, TableCopy):
            self._copies[record.database, record.table] = record
        self._records.append((record_key(record), encode(record)))

    def _take_requests(self) -> None:
        self._feed.poll(0)
        # What was removed may be requested again under its id.
        self._answered &= self._feed.requests.keys()
        if self._inspection is not None:
            if not self._inspection.done():
                return
            inspection = self._inspection.result()
            self._inspection = None
            self._carry_out(inspection)
        for request in list(self._feed.requests.values()):
            if request.id not in self._answered:
                self._answered.add(request.id)
                self._inspection = self._pool.submit(inspect, self._server, self._settings, request)
                return

    def _carry_out(self, inspection: Inspection) -> None:
        begun_us = self._writer.floor_us()
        outcome: Outcome = carry_out(
            inspection, self._copies, self._settings.filters, begun_us=begun_us, now_us=_now_us()
        )
        for copy in outcome.copies:
            name = (copy.database, copy.table)
            if name in self._tables:
                self._end(name)
            # Until the first piece is written, the copy begins here.
            self._put(copy if copy.pieces else replace(copy, begun_seq=self._writer.next_seq))
        self._put(outcome.answer)
        self._records.append((request_key(inspection.request.id), None))

    def _open_tables(self) -> None:
        if self._inspection is not None or self._feed.requests.keys() - self._answered:
            return  # Requests made while no producer ran come first: one may be a cancel.
        for name, copy in self._copies.items():
            if len(self._tables) >= self._limits.tables_at_once:
                return
            if copy.state is CopyState.COPYING and name not in self._tables:
                self._tables[name] = TableCopier(copy, self._writer, self._limits)
                self._turn.append(name)

    def _end(self, name: Name) -> None:
        self._tables.pop(name).close()
        self._turn.remove(name)

    def _fail(self, name: Name, error: ShardstreamError) -> None:
        copy = self._tables[name].copy
        self._end(name)
        self._put(with_state(copy, CopyState.FAILED, _now_us(), str(error)))

    def _is_table_ready(self, name: Name, now_s: float) -> bool:
        try:
            return self._tables[name].is_ready(self._decoder.reached, now_s)
        except CannotCopy as error:
            self._fail(name, error)
            return False

    def _collect(self, now_s: float) -> None:
        for read in [read for read in self._reads if read.done()]:
            name, window = self._reads.pop(read)
            table = self._tables.get(name)
            if table is None or table.is_outdated(window):
                continue
            error = read.exception()
            if error is None:
                table.take(window, read.result())
            elif isinstance(error, TableChanged):
                self._begin_again(name, str(error))
            elif isinstance(error, (ChunkSpoiled, ServerLost)):
                self._failed_read(name, window, error, now_s)
            elif isinstance(error, ShardstreamError):
                self._fail(name, error)
            else:
                raise error

    def _note_renames(self) -> None:
        """Begin copies again whose table's name may belong to other rows now, paused ones too.

        A server that was moved to in the meantime cannot tell: tables have other ids there.
        """
        for renamed in self._writer.take_renamed():
            for name, copy in list(self._copies.items()):
                if may_go_on(copy) and copy.last_key and renamed.includes(*name):
                    self._begin_again(name, f"table {copy.name} was renamed")

    def _begin_again(self, name: Name, reason: str) -> None:
        if name in self._tables:
            self._end(name)
        self._put(
            begun_again(
                self._copies[name],
                reason,
                begun_us=self._writer.floor_us(),
                begun_seq=self._writer.next_seq,
                now_us=_now_us(),
            )
        )

    def _failed_read(
        self, name: Name, window: Window, error: ChunkSpoiled | ServerLost, now_s: float
    ) -> None:
        spoilt = error if isinstance(error, ChunkSpoiled) else ChunkSpoiled(str(error))
        try:
            self._tables[name].failed_read(window, spoilt, now_s)
        except CannotCopy as failure:
            self._fail(name, failure)
            return
        copy = self._tables[name].copy
        if copy.note != self._copies[name].note:
            self._put(copy)  # `copy status` shows what holds it up

    def _write(self, now_s: float) -> None:
        """Write one piece of one table; tables take turns."""
        self._is_ready = False
        for name in list(self._turn):
            self._turn.rotate(-1)
            if self._is_table_ready(name, now_s):
                copy = self._tables[name].write(_now_us())
                self._put(copy)
                if copy.state is not CopyState.COPYING:
                    self._end(name)
                self._written_s = now_s
                self._is_ready = True
                return

    def _read(self, now_s: float) -> None:
        for name, table in self._tables.items():
            found = table.next_job(now_s)
            if found is not None:
                window, job = found
                self._reads[self._pool.submit(self._read_chunk, job)] = (name, window)

    def _read_chunk(self, job: ChunkJob) -> Chunk:
        # Also for copies that began before the rule.
        refuse_left_out(self._settings.filters, job.database, job.table)
        reader = self._readers.get()
        try:
            return reader.read(job)
        finally:
            self._readers.put(reader)


def _now_us() -> int:
    return time.time_ns() // 1000
