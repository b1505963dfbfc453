"""The copy of one table: which chunk is read next, and which piece is written when."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from producers.copy.chunk import Chunk, ChunkJob, Piece
from producers.copy.errors import (
    CannotCopy,
    ChunkHeld,
    ChunkSpoiled,
    ChunkTooLarge,
    RowNotCopied,
)
from producers.copy.pace import ROWS_FIRST, next_rate, next_rows
from producers.copy.windows import Window, Windows, settle, spoiled
from producers.decoder import DecoderHalt
from producers.decoder.stream.copy_writer import CopyWriter
from producers.decoder.tables.key_watch import KeyWatch
from producers.options import CopySettings
from topics.progress.copy_topic import CopyState, TableCopy

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
        job = ChunkJob(
            copy.database,
            copy.table,
            copy.where,
            copy.key,
            self._windows.after(copy.last_key),
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
        if window not in self._windows.open:
            return
        window.chunk = chunk
        rows = chunk.rows
        self._rows_max = next_rows(
            self._rows_max, rows.rows, rows.bytes_read, chunk.elapsed_s, self._limits
        )
        if not self.copy.key:
            names = tuple(column.name for column in chunk.definition.key)
            self.copy = replace(self.copy, key=names, rows_estimated=chunk.rows_estimated)

    def failed_read(self, window: Window, error: ChunkSpoiled, now_s: float) -> None:
        """Note that a chunk could not be read. CannotCopy if that keeps happening."""
        if window not in self._windows.open:
            return
        if isinstance(error, ChunkHeld):
            self._windows.open.clear()
            self._retry_at_s = now_s + HELD_PAUSE_S
            self.copy = replace(self.copy, note=str(error), rows_per_s=0.0)
            return
        if isinstance(error, ChunkTooLarge):
            self._rows_max = max(1, error.rows // 2)
        self._spoil(str(error), now_s)

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
            place = chunk.snapshot if chunk.definition.is_in_snapshots else None
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
        plan = chunk.definition.plan
        try:
            added = self._writer.copy_rows(plan, images, self._watch, window.since_seq)
        except (DecoderHalt, IndexError, ValueError, KeyError, OverflowError) as error:
            raise RowNotCopied(self.copy.copy_id, f"{self._place()}: {error}") from error
        window.pieces_written += piece is not None
        is_last = chunk.is_last and window.next_piece is None
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
            note="",
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
