"""Commits decoded rows: each Kafka transaction ends with the progress record that describes it."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from event_token import Flavor
from producers.copy.copier import Copier
from producers.decoder import BatchSummary, Decoder
from producers.errors import LogDisagrees, PublisherSpent
from producers.servers.identity import ShardIdentity
from producers.servers.server_list import OpenServer
from producers.session.commit_pace import CommitPace, dry_gap_s
from producers.session.context import SessionContext
from producers.session.counters import ProducerCounters
from producers.session.status import Committed
from producers.settings import ProducerState
from producers.shard_log.publisher import Publisher
from producers.skip.skip_order import SkipOrder
from topics.progress.codec import PROGRESS_KEY, encode_progress
from topics.progress.notes import note_headers
from topics.progress.record import LastTransaction, Progress, Tick

# Transactions whose rows the filters exclude are committed this often: a session that starts over
# repeats no more of them, and the head (watermark) of the shard advances.
EMPTY_COMMIT_S: Final = 1.0


class Committer:
    """Decides when rows are committed, and commits them.

    `committed` is updated by each commit; `committed_s` is the time (monotonic) of the last one.
    """

    def __init__(
        self,
        context: SessionContext,
        publisher: Publisher,
        decoder: Decoder,
        copier: Copier,
        committed: Committed,
        *,
        server: OpenServer,
        server_clock_us: Callable[[], int],
        last: LastTransaction | None,
        identity: ShardIdentity,
    ) -> None:
        """`server_clock_us`: the server's clock as far as it is known; it dates progress records.

        `last`: the log's last transaction; `identity`: of its servers. Nothing has been committed
        by this session yet.
        """
        self.committed = committed
        self.committed_s = 0.0
        self._context = context
        self._publisher = publisher
        self._decoder = decoder
        self._copier = copier
        self._server = server
        self._server_clock_us = server_clock_us
        self._last = last
        self._identity = identity
        self._pace = CommitPace(context.settings.commit_rows, context.settings.commit_ms)
        self._batch_s = 0.0
        self._committed_gtid = ""

    @property
    def counters(self) -> ProducerCounters:
        """What the process counts."""
        return self._context.counters

    @property
    def order(self) -> SkipOrder | None:
        """The operator's order to pass stops, if there is one."""
        return self._context.skip_order

    @property
    def flavor(self) -> Flavor:
        """The family of the shard's servers."""
        return self._context.settings.flavor

    @property
    def is_careful(self) -> bool:
        """Whether each transaction is committed by itself, because one stops the shard, or may."""
        return bool(self._context.stops_at) or (self.order is not None and self.order.is_careful)

    def row_limit(self) -> int:
        """Open a transaction if none is, and say at how many rows the decoder should pause.

        A batch that is due ends with the next transaction of the database: the bytes at hand
        rarely end with one. A batch that is large enough but too young may grow by as much again.
        At 0 the decoder pauses after the next transaction, even if the filters exclude its rows.
        """
        self._publisher.begin()
        messages = self._decoder.messages
        if messages == 0:
            self._batch_s = time.monotonic()
            self._publisher.restart_age()
            if self.is_careful or self._is_empty_due():
                return 0
        if self._is_due():
            return messages + 1
        rows = self._pace.rows_wanted(self.committed.lag_ms)
        return rows if messages < rows else messages + rows

    def _is_empty_due(self) -> bool:
        """Whether a commit without rows is due, if there is anything to commit."""
        return time.monotonic() - self.committed_s >= EMPTY_COMMIT_S

    def _is_due(self) -> bool:
        return self._pace.is_due(
            rows=self._decoder.messages,
            size=self._decoder.bytes_produced,
            age_s=time.monotonic() - self._batch_s,
            lag_ms=self.committed.lag_ms,
        )

    @property
    def dry_due_s(self) -> float:
        """When (monotonic) the rows so far are due even if the stream stays dry."""
        committed = self.committed
        gap_s = dry_gap_s(self._decoder.head_us, committed.head_us, committed.lag_ms)
        return self.committed_s + gap_s

    def commit_if_due(self, *, dry: bool) -> None:
        """Commit whole transactions if it is time. `dry`: the stream has nothing more for now."""
        if self._decoder.in_transaction:
            return
        if self.is_careful or self._decoder.messages == 0:
            is_due = self.is_careful or self._is_empty_due()
            if is_due and self._decoder.gtid != self._committed_gtid:
                self.commit()
            return
        if (dry and time.monotonic() >= self.dry_due_s) or self._is_due():
            self.commit()

    def commit_rest(self) -> None:
        """Commit whole transactions at a stop; closing the publisher aborts the rest."""
        if not self._decoder.in_transaction and self._decoder.messages:
            self.commit()

    def commit(self, *, is_live: bool = False) -> None:
        """Commit the rows so far and the progress record in one Kafka transaction.

        `is_live`: the log then has all that the server had executed when it was asked.

        Raises LogDisagrees, PublisherSpent, and the publisher's other errors.
        """
        began_s, size = time.monotonic(), self._decoder.bytes_produced
        self._publisher.begin()
        with self._publisher.errors("writing rows"):
            summary = self._decoder.take_batch()
        count = summary.last_seq - summary.first_seq + 1
        first = self._publisher.flush(count) if count else -1
        progress = self._progress(summary, first)
        value, head_ms = (
            encode_progress(progress, self._context.schema_ids),
            progress.head_us // 1000,
        )
        self._copier.write_records()
        self._publisher.commit(value, PROGRESS_KEY, head_ms, note_headers(progress))
        self.committed_s = time.monotonic()
        self._committed_gtid = self._decoder.gtid
        self._last = progress.last
        self._context.stops_at.discard(self._committed_gtid)
        committed = self.committed
        if is_live or progress.position != committed.position:
            self.counters.restarts_in_place = 0
        committed.position = progress.position
        committed.head_us = progress.head_us
        committed.end_offset = progress.end_offset
        committed.lag_ms = progress.lag_ms
        committed.ddl = progress.ddl
        committed.progress = progress
        committed.is_live |= is_live
        committed.rows_total += count
        committed.commits += 1
        if self.order is not None:
            self.order.committed(summary.transactions)
        self._count(summary, size, self.committed_s - began_s)
        state = ProducerState.STREAMING if count else ProducerState.IDLE
        self._context.report(state, committed, "")
        if self._publisher.spent:
            raise PublisherSpent(
                f"{self._context.topics.log}: {self._publisher.spent}; opening a new producer"
            )

    def _count(self, summary: BatchSummary, size: int, took_s: float) -> None:
        """Add a commit of `size` bytes of records to what the process counts."""
        records = summary.last_seq - summary.first_seq + 1
        counters = self.counters
        counters.committed(
            records=records, transactions=summary.transactions, size=size, took_s=took_s
        )
        counters.rows_filtered += summary.rows_filtered
        counters.prepared_us = summary.prepared_us
        if records and summary.transactions:
            age_us = self._server_clock_us() - summary.last_commit_us
            counters.event_age_s.observe(max(0, age_us) / 1e6)

    def _progress(self, summary: BatchSummary, first_offset: int) -> Progress:
        """The record of this transaction; `first_offset` is its first row's, -1 without rows."""
        end_offset = self.committed.end_offset
        server_us = self._server_clock_us()
        lag_ms = 0
        ticks: tuple[Tick, ...] = ()
        mark = summary.mark
        if first_offset >= 0:
            if first_offset < end_offset:
                raise LogDisagrees(
                    f"{self._context.topics.log}: a record was stored at offset {first_offset}, "
                    f"below the log's end offset {end_offset}: the topic was truncated, or deleted "
                    "and recreated. Restore the topic, or start a new log with a copy"
                )
            shift = first_offset - summary.first_seq
            end_offset = summary.last_seq + shift + 1
            if mark is not None:
                mark = replace(mark, offset=mark.offset + shift)
            ticks = tuple(Tick(cell_us, seq + shift) for cell_us, seq in summary.ticks)
            if summary.transactions:
                lag_ms = max(0, server_us - summary.last_commit_us) // 1000
        return Progress(
            first_seq=summary.first_seq,
            last_seq=summary.last_seq,
            end_offset=end_offset,
            flavor=self._context.settings.flavor.value,
            position=summary.position,
            head_us=max(self.committed.head_us, summary.head_us),
            ticks=ticks,
            mark=mark,
            server=self._server.name,
            server_time_us=server_us,
            lag_ms=lag_ms,
            last=self._last_of(summary),
            identity=self._held_identity(),
            skipped=self.committed.skipped,
            ddl=summary.ddl or self.committed.ddl,
        )

    def _held_identity(self) -> str:
        """The identity of the servers, once the log has reached where it was seen.

        A server that has all that the log holds must then have the identity too.
        """
        identity = self._identity
        if identity.found and self._decoder.reached(identity.executed):
            self._identity = identity = ShardIdentity(identity.found)
        return identity.known

    def _last_of(self, summary: BatchSummary) -> LastTransaction | None:
        """The log's last transaction after this batch."""
        view = self._server.view
        if not summary.transactions or view is None:
            return self._last
        return LastTransaction(
            summary.gtid,
            summary.last_commit_us,
            view.own,
            summary.binlog_file,
            summary.binlog_pos,
        )

    def promise(self, head_us: int) -> None:
        """Raise the head to `head_us`; the next commit publishes it. A lower one changes nothing.

        Records decoded from here on are stamped no earlier.
        """
        if head_us > self.committed.head_us:
            self.committed.head_us = head_us
            self._decoder.advance_head(head_us)
