"""What a planner knows of one shard: its head, and which record begins which grid cell."""

from bisect import bisect_left, bisect_right
from typing import NamedTuple

from event_token.position import ShardPosition
from topics.errors import PositionTooOld, ProgressBroken
from topics.progress.cells import Cut, cut_at, first_offset_of, ordered_from_seq
from topics.progress.record import GRID_US, Mark, MarkKind, Progress, Tick, cell_start_us


class End(NamedTuple):
    """An END mark that no CANCEL follows: nothing beyond `cut` belongs to the stream.

    `cell_end_us` is the end of the grid cell of END's record; 0 where progress no longer says.
    """

    mark: Mark
    cut: Cut
    cell_end_us: int


class ShardTicks:
    """Head and ticks of one shard from a reader's position on.

    Invariant: times and cuts are parallel and rising; records below a cut are older than its
    time, those from it on are not; the last tick at or below the position is kept, because the
    position may lie inside its cell.
    """

    def __init__(self, shard: str, at: ShardPosition) -> None:
        """Begin at a position, with nothing known."""
        self.shard = shard
        self.at = Cut(at.offset, at.seq)
        self.head_us: int | None = None
        self.end: End | None = None
        self.moved_at_ms: int | None = None
        self._end = self.at
        self._chain_seq: int | None = None
        self._times_us: list[int] = []
        self._cuts: list[Cut] = []

    @property
    def head_cell_us(self) -> int:
        """The shard's own frontier: its head on the grid; 0 while it has promised nothing."""
        return 0 if self.head_us is None else cell_start_us(self.head_us)

    @property
    def ticks(self) -> int:
        """How many ticks are kept."""
        return len(self._times_us)

    @property
    def times_us(self) -> list[int]:
        """The kept ticks' times, rising."""
        return self._times_us

    def observe(self, progress: Progress, seen_at_ms: int) -> None:
        """Take in the next progress record. Halt when it does not follow the one before."""
        self._check_chain(progress)
        self._take_ticks(progress)
        self._chain_seq = progress.last_seq
        if self.head_us is None or progress.head_us > self.head_us:
            self.head_us = progress.head_us
            self.moved_at_ms = seen_at_ms
        if progress.last_seq > self._end.seq:
            self._end = Cut(progress.end_offset, progress.last_seq)
        if progress.mark is not None and progress.last_seq >= self.at.seq:
            self._take_mark(progress.mark, progress)

    def _take_mark(self, mark: Mark, progress: Progress) -> None:
        """Follow END and CANCEL; a BEGIN concerns those who wait for it before they read here."""
        if mark.offset != progress.end_offset - 1 or progress.last_seq < progress.first_seq:
            raise ProgressBroken(
                f"shard {self.shard}: the {mark.kind.value} mark of reshard {mark.reshard_id} at "
                f"offset {mark.offset} does not end its Kafka transaction, which ends at offset "
                f"{progress.end_offset}: its producer is faulty",
            )
        if (
            mark.kind is MarkKind.CANCEL
            and self.end
            and self.end.mark.reshard_id == mark.reshard_id
        ):
            self.end = None
        elif mark.kind is MarkKind.END:
            if self.end is not None:
                raise ProgressBroken(
                    f"shard {self.shard}: END of reshard {mark.reshard_id} at offset "
                    f"{mark.offset} follows END of reshard {self.end.mark.reshard_id} at offset "
                    f"{self.end.mark.offset} without a CANCEL of that one",
                )
            # The tick of END's own cell; one with END's seq is of what comes behind it.
            i = bisect_left(self._cuts, progress.last_seq, key=lambda cut: cut.seq) - 1
            cell_end_us = self._times_us[i] + GRID_US if i >= 0 else 0
            self.end = End(mark, Cut(progress.end_offset, progress.last_seq), cell_end_us)

    def _check_chain(self, progress: Progress) -> None:
        first, last = progress.first_seq, progress.last_seq
        if last < first - 1 or first < 1:
            raise ProgressBroken(
                f"shard {self.shard}: a progress record covers seq {first} to {last}, which is "
                f"no range: its producer is faulty",
            )
        if self._chain_seq is None:
            self._begin_chain(progress, "progress reaches back")
        elif first > self._chain_seq + 1:
            self._begin_chain(
                progress, f"the progress chain breaks at {self._chain_seq} and goes on"
            )
        elif first <= self._chain_seq:
            raise ProgressBroken(
                f"shard {self.shard}: progress of seq {first} follows that of seq "
                f"{self._chain_seq}: two producers have written, or records were repeated",
            )

    def _begin_chain(self, progress: Progress, how: str) -> None:
        """Begin the ticks here, or raise PositionTooOld where the position lies before."""
        self._times_us.clear()
        self._cuts.clear()
        if progress.last_seq <= self.at.seq and not progress.ticks:
            # Later records are not older than this one's head, so a tick there is true for
            # them; the tick of the cell in which they go on may lie before what was read.
            self._times_us.append(cell_start_us(progress.head_us))
            self._cuts.append(Cut(progress.end_offset, progress.last_seq))
            return
        known_from = ordered_from_seq(progress)
        wanted = self.at.seq + 1
        if known_from > wanted:
            raise PositionTooOld(
                f"shard {self.shard}: {how} to seq {known_from}, the reader stands before seq "
                f"{wanted}: what lies between can no longer be ordered. Start again from "
                f"earliest, or from a later position or time",
            )

    def _take_ticks(self, progress: Progress) -> None:
        first_offset = first_offset_of(progress)
        for tick in progress.ticks:
            self._check_tick(progress, tick, first_offset)
            if self._times_us and tick.timestamp_us == self._times_us[-1]:
                continue  # the chain began inside this cell
            self._times_us.append(tick.timestamp_us)
            self._cuts.append(cut_at(progress, tick))
        self._forget()

    def _check_tick(self, progress: Progress, tick: Tick, first_offset: int) -> None:
        rising = not self._times_us or tick.timestamp_us >= self._times_us[-1]
        inside = first_offset <= tick.offset < progress.end_offset
        if rising and inside and tick.timestamp_us == cell_start_us(tick.timestamp_us):
            return
        raise ProgressBroken(
            f"shard {self.shard}: the tick {tick.timestamp_us} at offset {tick.offset} of the "
            f"progress of seq {progress.first_seq} to {progress.last_seq} (offsets {first_offset} "
            f"to {progress.end_offset}) is not on the grid, not rising or outside of it: its "
            f"producer is faulty",
        )

    def cut(self, frontier_us: int) -> Cut:
        """The first record that is not older than a grid time.

        Never before the position, never beyond an END that no CANCEL follows.
        """
        i = bisect_left(self._times_us, frontier_us)
        found = self._cuts[i] if i < len(self._cuts) else self._end
        if self.end is not None and found.seq > self.end.cut.seq:
            found = self.end.cut
        return found if found.seq > self.at.seq else self.at

    def cut_within(self, frontier_us: int, rows_max: int) -> Cut:
        """The furthest cut on a tick up to `frontier_us` with at most `rows_max` rows.

        Where the first cell alone has more, all of that cell.
        """
        furthest = self.cut(frontier_us)
        if furthest.seq - self.at.seq <= rows_max:
            return furthest
        best = furthest
        for cut in self._cuts:
            if not self.at.seq < cut.seq < furthest.seq:
                continue
            if best is not furthest and cut.seq - self.at.seq > rows_max:
                break
            best = cut
        return best

    def advance(self, at: Cut) -> None:
        """Move the position to a cut that this object has given."""
        self.at = at
        self._forget()

    def _forget(self) -> None:
        keep_from = bisect_right(self._cuts, self.at.seq, key=lambda cut: cut.seq) - 1
        if keep_from > 0:
            del self._times_us[:keep_from]
            del self._cuts[:keep_from]
