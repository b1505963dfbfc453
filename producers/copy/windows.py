"""Chunk windows: which rows of a chunk may be written to the log, and when. Pure.

A window opens before a chunk is read, at a place in the log (`since_seq`: the next record's seq)
of which the chunk's SELECT sees everything. When the log has reached all that the SELECT saw, the
chunk's rows may be written, except those whose keys the log has changed since the window opened.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from producers.copy.chunk import Chunk, Piece
from producers.copy.errors import CannotCopy
from producers.decoder.tables.key_watch import KeyWatch, TransactionEnds

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
        if self.chunk is None or self.pieces_written == len(self.chunk.rows.pieces):
            return None
        return self.chunk.rows.pieces[self.pieces_written]


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
        return len(self.open) < WINDOWS_MAX and chunk is not None and not chunk.is_last

    def after(self, written: tuple[str, ...]) -> tuple[str, ...]:
        """The key after which the next chunk begins; `written` is the last one written."""
        for window in reversed(self.open):
            if window.chunk is not None and window.chunk.rows.pieces:
                return window.chunk.rows.pieces[-1].last_key
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
            "their keys are unknown: SET GLOBAL binlog_row_image=FULL on the source"
        )
    if watch.definition_seq >= since:
        return "the table's definition may have changed"
    if watch.complete_from > since:
        return "more keys changed in the meantime than are remembered"
    if chunk is not None and watch.seen_seq >= since and watch.shape is not None:
        shape = chunk.definition.plan.shape()
        if watch.shape != shape:
            return "the binlog and the server describe the table differently"
    return ""
