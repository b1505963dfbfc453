"""The copy of one table: which chunk is read next, and which piece is written when."""

import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from databases.table_cursor import TableCursor
from producers.copy.chunk import CHUNK_BYTES_MAX, Chunk, ChunkJob, Piece
from producers.copy.definition import (
    CannotCopy,
    ChunkHeld,
    ChunkSpoiled,
    ChunkTooLarge,
    RowNotCopied,
)
from producers.decoder import DecoderHalt
from producers.decoder.stream.copy_writer import CopyWriter
from producers.decoder.tables.plan import KeyWatch, TransactionEnds
from producers.settings import CopySettings
from topics.progress.copy_topic import CopyState, TableCopy

# The next chunk is read while this one waits for the log and is written.
WINDOWS_MAX: Final = 2


@dataclass(slots=True)
class Window:
    """The window of one chunk; `chunk` is set once it has been read."""

    since_seq: int
    rows_max: int
    chunk: Chunk | None = None
    pieces_written: int = 0
    is_reached: bool = False

    @property
    def next_piece(self) -> Piece | None:
        """The piece to write next; None if all are written."""
        if self.chunk is None or self.pieces_written == len(self.chunk.part.rows.pieces):
            return None
        return self.chunk.part.rows.pieces[self.pieces_written]


@dataclass(slots=True)
class Windows:
    """The open windows of one table in key order; only the first may be written."""

    open: deque[Window] = field(default_factory=deque)

    @property
    def may_open(self) -> bool:
        """Whether another chunk may be read: its start is known, and few enough are open."""
        if not self.open:
            return True
        chunk = self.open[-1].chunk
        return len(self.open) < WINDOWS_MAX and chunk is not None and not chunk.part.is_last

    def after(self, written: tuple[str, ...]) -> tuple[str, ...]:
        """The key after which the next chunk begins; `written` is the last one written."""
        for window in reversed(self.open):
            if window.chunk is not None and window.chunk.part.rows.pieces:
                return window.chunk.part.rows.pieces[-1].last_key
        return written

    def oldest_seq(self, next_seq: int) -> int:
        """The first seq from which changed keys are still needed."""
        return min((window.since_seq for window in self.open), default=next_seq)


def settle(window: Window, ends: TransactionEnds) -> str:
    """Set `since_seq` of a chunk read in a snapshot; return why it cannot be, "" if it can.

    The window counts from the end of the transaction at the snapshot's binlog position, which may
    lie before the place where the window opened. Call it after the log has passed the position.
    """
    chunk = window.chunk
    if chunk is None or chunk.snapshot is None:
        return ""
    since_seq = ends.next_seq(*chunk.snapshot)
    if since_seq < 0:
        return "the snapshot's position is not the end of a transaction"
    window.since_seq = since_seq
    return ""


def spoiled(window: Window, watch: KeyWatch) -> str:
    """Why the window's rows must be read again; "" if they need not.

    CannotCopy for row images that lack columns: their keys are unknown.
    """
    chunk = window.chunk
    since = window.since_seq
    if watch.partial_seq >= since:
        raise CannotCopy(
            f"table {watch.database}.{watch.table}: the log has row images without all columns, so "
            "their keys are unknown: set binlog_row_image=FULL on the source"
        )
    if watch.definition_seq >= since:
        return "the table's definition may have changed"
    if watch.complete_from > since:
        return "more keys changed in the meantime than are remembered"
    if chunk is not None and watch.seen_seq >= since and watch.shape is not None:
        shape = chunk.part.definition.plan.shape()
        if watch.shape != shape:
            return "the binlog and the server describe the table differently"
    return ""


ROWS_FIRST: Final = 1_000
ROWS_MIN: Final = 10
# Largest factor per step, up or down: a single slow or fast chunk says little.
STEP: Final = 4
# Aim below the limit, for rows differ in size.
BYTES_AIMED: Final = CHUNK_BYTES_MAX // 2
_US: Final = 1_000_000


def next_rows(
    rows_max: int, rows: int, bytes_read: int, elapsed_s: float, limits: CopySettings
) -> int:
    """The next chunk's limit of rows, after one with `rows_max` that returned `rows`."""
    if rows == 0:
        return rows_max
    by_time = rows * limits.chunk_ms / 1000 / max(elapsed_s, 0.001)
    by_bytes = rows * BYTES_AIMED / max(bytes_read, 1)
    wanted = min(by_time, by_bytes, rows_max * STEP)
    return int(min(max(wanted, rows_max / STEP, ROWS_MIN), limits.chunk_rows_max))


def next_rate(rows_per_s: float, rows: int, elapsed_us: int) -> float:
    """The rate after `rows` more in `elapsed_us`, averaged over about a second for a person."""
    elapsed_us = max(1, elapsed_us)
    weight = min(1.0, elapsed_us / _US)
    return round(rows_per_s * (1 - weight) + rows * _US / elapsed_us * weight, 1)


# A chunk that was spoilt this often in a row, over some minutes, will not succeed.
SPOILS_MAX: Final = 50
SPOIL_PAUSE_S_FIRST: Final = 0.02
SPOIL_PAUSE_S_MAX: Final = 5.0
# How often a copy that is held back tries again.
HELD_PAUSE_S: Final = 1.0
# Changed keys that no window needs are forgotten when this many are remembered.
PRUNE_KEYS: Final = 50_000


class TableCopier:
    """Called between transactions only; writes into the stream by the decoder's CopyWriter."""

    def __init__(self, copy: TableCopy, writer: CopyWriter, limits: CopySettings) -> None:
        """Continue after the last key of `copy`; from here on its changed keys are noted."""
        self.copy = copy
        self._writer = writer
        self._limits = limits
        self._watch = KeyWatch(copy.database, copy.table, writer.next_seq)
        self._windows = Windows()
        self._rows_max = min(ROWS_FIRST, limits.chunk_rows_max)
        self._is_resumed = True
        self._spoils = 0
        self._retry_at_s = 0.0
        self._reason = ""
        writer.watch(self._watch)

    def close(self) -> None:
        """Stop noting keys; drop what was read and not written."""
        self._windows.open.clear()
        self._writer.unwatch(self._watch)

    def next_job(self, now_s: float) -> tuple[Window, ChunkJob] | None:
        """Open a window for the next chunk to read; None if there is none at the moment."""
        if now_s < self._retry_at_s or not self._windows.may_open:
            return None
        copy = self.copy
        window = Window(self._writer.next_seq, self._rows_max)
        after = self._windows.after(copy.last_key)
        job = ChunkJob(
            copy.database,
            copy.table,
            copy.where,
            TableCursor(after, copy.definition, copy.identity) if after else None,
            self._is_resumed,
            self._rows_max,
            self._writer.position,
        )
        self._windows.open.append(window)
        self._prune()
        return window, job

    def _prune(self) -> None:
        watch, writer = self._watch, self._writer
        if len(watch.touched) > PRUNE_KEYS:
            oldest = self._windows.oldest_seq(writer.next_seq)
            # A MariaDB snapshot may name any end that is still known.
            known = writer.ends.oldest_seq() if writer.is_by_place else oldest
            watch.forget_before(min(oldest, known if known >= 0 else oldest))

    def take(self, window: Window, chunk: Chunk) -> None:
        """Take a chunk that was read; it is dropped if its window is no longer open."""
        if self.is_outdated(window):
            return
        window.chunk = chunk
        rows = chunk.part.rows
        self._rows_max = next_rows(
            self._rows_max, rows.rows, rows.bytes_read, chunk.part.elapsed_s, self._limits
        )
        self._is_resumed = False
        if chunk.part.identity:
            self.copy = replace(self.copy, identity=chunk.part.identity)
        if not self.copy.last_key and window is self._windows.open[0]:
            self.copy = replace(
                self.copy,
                key=tuple(column.name for column in chunk.part.definition.key),
                definition=chunk.part.definition.fingerprint,
                rows_estimated=chunk.rows_estimated,
            )

    def failed_read(self, window: Window, error: ChunkSpoiled, now_s: float) -> None:
        """Note that a chunk could not be read. CannotCopy if that keeps happening."""
        if self.is_outdated(window):
            return
        if isinstance(error, ChunkHeld):
            self._windows.open.clear()
            self._retry_at_s = now_s + HELD_PAUSE_S
            self.copy = replace(self.copy, note=str(error), rows_per_s=0.0)
            return
        if isinstance(error, ChunkTooLarge):
            self._rows_max = max(1, error.rows // 2)
        self._spoil(str(error), now_s)

    def is_outdated(self, window: Window) -> bool:
        """Tell whether a read belongs to a window that has been given up."""
        return all(each is not window for each in self._windows.open)

    def _spoil(self, reason: str, now_s: float) -> None:
        self._windows.open.clear()
        self._spoils += 1
        self._reason = reason
        if self._spoils > SPOILS_MAX:
            raise CannotCopy(
                f"table {self.copy.name}: a chunk was read {self._spoils} times and could never be "
                f"used; the last reason: {reason}"
            )
        pause_s = SPOIL_PAUSE_S_FIRST * 2 ** min(self._spoils - 1, 10)
        self._retry_at_s = now_s + min(SPOIL_PAUSE_S_MAX, pause_s)

    def is_ready(self, reached: Callable[[str], bool], now_s: float) -> bool:
        """Whether a piece can be written now; spoilt windows are opened again later."""
        if not self._windows.open:
            return False
        if self._writer.is_ended:
            raise CannotCopy(f"table {self.copy.name}: a reshard has ended this shard's log")
        window = self._windows.open[0]
        chunk = window.chunk
        if chunk is None:
            return False
        if not window.is_reached:
            place = chunk.snapshot if chunk.part.definition.is_in_snapshots else None
            known = place is not None and self._writer.ends.next_seq(*place) >= 0
            if not known and not reached(chunk.high):
                return False
            window.is_reached = True
            reason = settle(window, self._writer.ends)
            if reason:
                self._spoil(reason, now_s)
                return False
        reason = spoiled(window, self._watch)
        if reason:
            self._spoil(reason, now_s)
            return False
        return True

    def write(self, now_us: int) -> TableCopy:
        """Write the first window's next piece; return the state that the copy has then."""
        window = self._windows.open[0]
        chunk = window.chunk
        if chunk is None:
            raise CannotCopy(f"table {self.copy.name}: a window without a chunk was written")
        piece = window.next_piece
        images = b"" if piece is None else piece.images
        plan = chunk.part.definition.plan
        try:
            added = self._writer.copy_rows(plan, images, self._watch, window.since_seq)
        except (DecoderHalt, IndexError, ValueError, KeyError, OverflowError) as error:
            raise RowNotCopied(self.copy.copy_id, f"{self._place()}: {error}") from error
        window.pieces_written += piece is not None
        is_last = chunk.part.is_last and window.next_piece is None
        self.copy = self._moved(piece, added, now_us, is_last=is_last)
        notes = [] if piece is None else [("LAST_PK", self._note(added))]
        if is_last:
            notes.append(("COPY_COMPLETED", self._note(added)))
        self._writer.end(self.copy.database, self.copy.table, notes)
        if window.next_piece is None:
            self._windows.open.popleft()
        self._spoils = 0
        return self.copy

    def _place(self) -> str:
        """The place of a row that cannot be copied, and the way past it."""
        copy = self.copy
        return (
            f"copying {copy.name}, after key {copy.last_key_text or '(none)'} (fix the row, then "
            f"shardstream copy resume {copy.name}; or cancel the copy)"
        )

    def _moved(self, piece: Piece | None, added: int, now_us: int, *, is_last: bool) -> TableCopy:
        copy = self.copy
        rows = 0 if piece is None else piece.rows
        return replace(
            copy,
            state=CopyState.COMPLETED if is_last else CopyState.COPYING,
            updated_us=now_us,
            last_key=copy.last_key if piece is None else piece.last_key,
            last_key_text=copy.last_key_text if piece is None else piece.last_key_text,
            pieces=copy.pieces + 1,
            rows=copy.rows + added,
            rows_read=copy.rows_read + rows,
            rows_per_s=next_rate(copy.rows_per_s, rows, now_us - copy.updated_us),
            note=copy.begun_again,
            seq=self._writer.next_seq,  # of the note that follows
        )

    def _note(self, added: int) -> str:
        """The text of a LAST_PK or COPY_COMPLETED record: JSON."""
        copy = self.copy
        return json.dumps(
            {
                "copy_id": copy.copy_id,
                "last_key": copy.last_key_text,
                "rows": added,
                "rows_total": copy.rows,
            },
            ensure_ascii=False,
        )
