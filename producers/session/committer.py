"""Commits decoded rows: each Kafka transaction ends with the progress record that describes it.

Rows are committed by the readers' grid at the live edge, in large batches behind it.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import starmap
from typing import Final

from event_token import parse_gtid_set
from producers.copy.copier import Copier
from producers.decoder import BatchSummary, Decoder
from producers.errors import LogDisagrees, PublisherSpent
from producers.publisher import Publisher
from producers.servers.identity import ShardIdentity
from producers.servers.table_proofs import ProvedTables
from producers.session.context import Committed, SessionContext
from producers.settings import ProducerState
from producers.start.choose_start import ChosenStart
from topics.progress.codec import PROGRESS_KEY, encode_progress, note_headers
from topics.progress.record import (
    GRID_US,
    BinlogReach,
    InParts,
    LastTransaction,
    PassedStatements,
    Progress,
    Tick,
    lasts_of,
)

# Readers' frontier moves by cells of the grid, so rows are committed when those of a new cell have
# come. An earlier commit would show nobody a row sooner, and each costs the broker requests and
# markers. Cells that pass faster than commits share one; rows that no new cell follows wait for
# the longer gap.
CELL_GAP_S: Final = GRID_US / 2_000_000
COMMIT_GAP_S: Final = 2 * GRID_US / 1_000_000
# A transaction is stamped before the server has stored and sent it.
ARRIVAL_US: Final = 1_000
# Rows that trickle in without a pause are committed after this time at the latest, unless
# `commit_ms` is longer.
COMMIT_AGE_S_MAX: Final = 0.25
# A log that is further behind drains a backlog, in fewer and larger commits: each one pauses the
# stream for some 10 ms, and nobody waits for rows this old to the millisecond.
BACKLOG_LAG_MS: Final = 1_000
BACKLOG_FACTOR: Final = 10
# Large rows are committed before their number is reached: readers hold the rows of a transaction,
# and the flush waits for as many bytes.
COMMIT_BYTES_MAX: Final = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class CommitPace:
    """`commit_rows` and `commit_ms` are the settings of these names."""

    commit_rows: int
    commit_ms: int

    def rows_wanted(self, lag_ms: int) -> int:
        """Rows per commit while changes keep coming to a log that is `lag_ms` behind."""
        return self.commit_rows * (BACKLOG_FACTOR if is_backlog(lag_ms) else 1)

    def is_due(self, *, rows: int, size: int, age_s: float, lag_ms: int) -> bool:
        """Whether `rows` of `size` bytes in all are enough, or old enough, for a commit."""
        if rows == 0:
            return False
        is_many = rows >= self.rows_wanted(lag_ms) and age_s * 1000 >= self.commit_ms
        is_old = age_s >= max(COMMIT_AGE_S_MAX, self.commit_ms / 1000)
        return is_many or is_old or size >= COMMIT_BYTES_MAX

    def dry_gap_s(self, head_us: int, committed_us: int, lag_ms: int) -> float:
        """How long after the last commit, with head `committed_us`, rows up to `head_us` are due.

        For a stream with nothing more to read at the moment, on a log that is `lag_ms` behind.
        """
        if self.commit_ms / 1000 > COMMIT_GAP_S:
            return self.commit_ms / 1000
        moves_frontier = head_us // GRID_US > committed_us // GRID_US
        return CELL_GAP_S if moves_frontier and not is_backlog(lag_ms) else COMMIT_GAP_S


def is_backlog(lag_ms: int) -> bool:
    """Whether a log that is `lag_ms` behind drains a backlog."""
    return lag_ms > BACKLOG_LAG_MS


def rest_s(server_us: int) -> float:
    """How long until a row of the grid's next cell can have arrived, by the server's clock."""
    return (GRID_US - server_us % GRID_US + ARRIVAL_US) / 1_000_000


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
        start: ChosenStart,
        committed: Committed,
        publisher: Publisher,
        decoder: Decoder,
        copier: Copier,
        proofs: ProvedTables | None,
        server_clock_us: Callable[[], int],
    ) -> None:
        """`server_clock_us`: the server's clock as far as it is known; it dates progress records.

        Nothing has been committed by this session yet.
        """
        self.context = context
        self.server = start.server
        self.committed = committed
        self.committed_s = 0.0
        self.publisher = publisher
        self.decoder = decoder
        self._copier = copier
        self._proofs = proofs
        self._server_clock_us = server_clock_us
        self._lasts = start.point.lasts
        self._identity = start.identity
        self._pace = CommitPace(context.settings.commit_rows, context.settings.commit_ms)
        self._batch_s = 0.0
        self._committed_gtid = ""

    @property
    def is_careful(self) -> bool:
        """Whether each transaction is committed by itself, because one stops the shard, or may."""
        order = self.context.skip_order
        return bool(self.context.stops_at) or (order is not None and order.is_careful)

    def row_limit(self) -> int:
        """Open a transaction if none is, and say at how many rows the decoder should pause.

        A batch that is due ends with the next transaction of the database: the bytes at hand
        rarely end with one. A batch that is large enough but too young may grow by as much again.
        At 0 the decoder pauses after the next transaction, even if the filters exclude its rows.
        """
        self.publisher.begin()
        messages = self.decoder.messages
        if messages == 0:
            self._batch_s = time.monotonic()
            self.publisher.restart_age()
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
            rows=self.decoder.messages,
            size=self.decoder.bytes_produced,
            age_s=time.monotonic() - self._batch_s,
            lag_ms=self.committed.lag_ms,
        )

    @property
    def dry_due_s(self) -> float:
        """When (monotonic) the rows so far are due even if the stream stays dry."""
        committed = self.committed
        gap_s = self._pace.dry_gap_s(self.decoder.head_us, committed.head_us, committed.lag_ms)
        return self.committed_s + gap_s

    def commit_if_due(self, *, dry: bool) -> None:
        """Commit whole transactions if it is time. `dry`: the stream has nothing more for now."""
        if self.decoder.in_transaction:
            return
        if self.is_careful or self.decoder.messages == 0:
            is_due = self.is_careful or self._is_empty_due()
            if is_due and self.decoder.gtid != self._committed_gtid:
                self.commit()
            return
        if (dry and time.monotonic() >= self.dry_due_s) or self._is_due():
            self.commit()

    def commit_rest(self) -> None:
        """Commit whole transactions at a stop; closing the publisher aborts the rest."""
        if not self.decoder.in_transaction and self.decoder.messages:
            self.commit()

    def commit(self, *, is_live: bool = False) -> None:
        """Commit the rows so far and the progress record in one Kafka transaction.

        `is_live`: the log then has all that the server had executed when it was asked.

        Raises LogDisagrees, PublisherSpent, and the publisher's other errors.
        """
        began_s, size = time.monotonic(), self.decoder.bytes_produced
        self.publisher.begin()
        with self.publisher.errors("writing rows"):
            summary = self.decoder.take_batch()
        count = summary.last_seq - summary.first_seq + 1
        more = sum(parts - 1 for _, parts in summary.in_parts)
        first = self.publisher.flush(count + more) if count else -1
        progress = self._progress(summary, first)
        value = encode_progress(progress, self.context.schema_ids)
        if self._proofs is not None:
            self._copier.write(self._proofs.records())
        self._copier.write_records()
        self.context.ownership.know(self.committed.progress, progress)
        self.publisher.commit(value, PROGRESS_KEY, progress.head_us // 1000, note_headers(progress))
        self.committed_s = time.monotonic()
        self._committed_gtid = self.decoder.gtid
        self._lasts = progress.lasts
        self.context.stops_at.discard(self._committed_gtid)
        committed = self.committed
        if is_live or progress.position != committed.position:
            self.context.counters.restarts_in_place = 0
        committed.position = progress.position
        committed.head_us = progress.head_us
        committed.end_offset = progress.end_offset
        committed.lag_ms = progress.lag_ms
        committed.ddl = progress.ddl
        committed.passed = progress.passed
        committed.progress = progress
        committed.is_live |= is_live
        committed.rows_total += count
        committed.commits += 1
        order = self.context.skip_order
        if order is not None:
            order.committed(summary.transactions)
        self._count(summary, size, self.committed_s - began_s)
        state = ProducerState.STREAMING if count else ProducerState.IDLE
        self.context.report(state, committed, "")
        if self.publisher.spent:
            raise PublisherSpent(
                f"{self.context.topics.log}: {self.publisher.spent}; opening a new producer"
            )

    def _count(self, summary: BatchSummary, size: int, took_s: float) -> None:
        """Add a commit of `size` bytes of records to what the process counts."""
        records = summary.last_seq - summary.first_seq + 1
        counters = self.context.counters
        counters.committed(
            records=records, transactions=summary.transactions, size=size, took_s=took_s
        )
        counters.rows_filtered += summary.rows_filtered
        counters.statements_passed += summary.statements_passed
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
                    f"{self.context.topics.log}: a record was stored at offset {first_offset}, "
                    f"below the log's end offset {end_offset}: the topic was truncated, or deleted "
                    "and recreated. Restore the topic, or start a new log with a copy"
                )

            def offset_of(seq: int) -> int:
                """Return the offset at which a record of this transaction begins."""
                more = sum(parts - 1 for large, parts in summary.in_parts if large < seq)
                return first_offset + seq - summary.first_seq + more

            end_offset = offset_of(summary.last_seq + 1)
            if mark is not None:
                mark = replace(mark, offset=offset_of(mark.offset))
            ticks = tuple(Tick(cell_us, offset_of(seq)) for cell_us, seq in summary.ticks)
            if summary.transactions:
                lag_ms = max(0, server_us - summary.last_commit_us) // 1000
        return Progress(
            first_seq=summary.first_seq,
            last_seq=summary.last_seq,
            end_offset=end_offset,
            flavor=self.context.settings.flavor.value,
            position=summary.position,
            head_us=max(self.committed.head_us, summary.head_us),
            ticks=ticks,
            mark=mark,
            server=self.server.name,
            server_time_us=server_us,
            lag_ms=lag_ms,
            lasts=self._lasts_of(summary),
            identity=self._held_identity(),
            skipped=self.committed.skipped,
            ddl=summary.ddl or self.committed.ddl,
            passed=self._passed(summary, server_us),
            binlogs=self._binlogs(),
            proved=None if self._proofs is None else len(self._proofs),
            in_parts=tuple(starmap(InParts, summary.in_parts)),
        )

    def _binlogs(self) -> BinlogReach | None:
        """How far back the server's binlogs reach, as far as it is known now."""
        counters = self.context.counters
        since_us = counters.oldest_binlog_us
        return None if since_us is None else BinlogReach(since_us, counters.binlog_kept_s)

    def _passed(self, summary: BatchSummary, server_us: int) -> PassedStatements | None:
        """The statements that the log's producers have passed, with those of this batch."""
        before = self.committed.passed
        if not summary.statements_passed:
            return before
        count = (before.count if before else 0) + summary.statements_passed
        return PassedStatements(count, server_us, summary.statement_table)

    def _held_identity(self) -> str:
        """The identity of the servers, once the log has reached where it was seen.

        A server that has all that the log holds must then have the identity too.
        """
        identity = self._identity
        if identity.found and self.decoder.reached(identity.executed):
            self._identity = identity = ShardIdentity(identity.found)
        return identity.known

    def _lasts_of(self, summary: BatchSummary) -> tuple[LastTransaction, ...]:
        """The log's last transactions after this batch."""
        view = self.server.view
        if not summary.transactions or view is None:
            return self._lasts
        newest = (
            summary.gtid,
            summary.last_commit_us,
            summary.binlog_file,
            summary.binlog_pos,
        )
        read = [
            LastTransaction(gtid, commit_us, view.own, name, pos)
            for gtid, commit_us, name, pos in (*summary.left, newest)
        ]
        position = parse_gtid_set(summary.position, self.context.settings.flavor)
        return lasts_of((*self._lasts, *read), position)

    def promise(self, head_us: int) -> None:
        """Raise the head to `head_us`; the next commit publishes it. A lower one changes nothing.

        Records decoded from here on are stamped no earlier.
        """
        if head_us > self.committed.head_us:
            self.committed.head_us = head_us
            self.decoder.advance_head(head_us)
