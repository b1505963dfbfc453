"""The state of one shard in a planner: its head, and the record that begins each grid cell."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import NamedTuple, assert_never

from event_token.position import ShardPosition
from topics.errors import PositionTooOld, ProgressBroken
from topics.progress.record import (
    GRID_US,
    Cut,
    Mark,
    MarkKind,
    Progress,
    Tick,
    cell_start_us,
    cut_at,
    first_offset_of,
    offsets_before,
    ordered_from_seq,
)


class End(NamedTuple):
    """An END mark that no CANCEL follows: nothing beyond `cut` belongs to the stream.

    `cell_end_us` is the end of the grid cell of the END record; 0 if it is not known.
    """

    mark: Mark
    cut: Cut
    cell_end_us: int


class ShardTicks:
    """Head and ticks of one shard from a reader's position on.

    Invariant: times and cuts are parallel and increasing. Records below a cut are older than its
    time, later ones are not. The last tick at or below the position is kept, because the position
    may lie inside its cell.
    """

    def __init__(self, shard: str, at: ShardPosition) -> None:
        """Begin at a position, without progress."""
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
        """The head of the shard on the grid; 0 while it is unknown."""
        return 0 if self.head_us is None else cell_start_us(self.head_us)

    @property
    def read_cell_us(self) -> int:
        """A grid time that no record after the position is older than; 0 while it is unknown."""
        if self.at.seq >= self._end.seq:
            return self.head_cell_us
        return self._times_us[0] if self._cuts and self._cuts[0].seq <= self.at.seq else 0

    @property
    def behind_end_us(self) -> int | None:
        """A grid time that no record behind the END is older than; None if there is no record.

        A CANCEL would make them part of the stream.
        """
        if self.end is None or self._end.seq <= self.end.cut.seq:
            return None
        i = bisect_right(self._cuts, self.end.cut.seq, key=lambda cut: cut.seq) - 1
        return self._times_us[i] if i >= 0 else 0

    @property
    def ticks(self) -> int:
        """Number of ticks kept."""
        return len(self._times_us)

    def steps(self, after_us: int, before_us: int) -> Iterator[tuple[int, int]]:
        """Yield the time of each tick between two grid times, in order, both excluded.

        Each with the number of records by which a cut behind it exceeds the cut at it.
        """
        i = bisect_right(self._times_us, after_us)
        seq = self._cut_at(i).seq
        while i < len(self._times_us) and self._times_us[i] < before_us:
            next_seq = self._cut_at(i + 1).seq
            yield self._times_us[i], next_seq - seq
            i, seq = i + 1, next_seq

    def observe(self, progress: Progress, seen_at_ms: int) -> None:
        """Process the next progress record. Halt when it does not follow its predecessor."""
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
        """Follow END and CANCEL; a BEGIN only concerns readers that wait to hop here."""
        if mark.offset != progress.end_offset - 1 or progress.last_seq < progress.first_seq:
            raise ProgressBroken(
                f"shard {self.shard}: the {mark.kind.value} mark of reshard {mark.reshard_id} at "
                f"offset {mark.offset} does not end its Kafka transaction, which ends at offset "
                f"{progress.end_offset}: its producer is faulty",
            )
        is_of_same = self.end is not None and self.end.mark.reshard_id == mark.reshard_id
        match mark.kind:
            case MarkKind.BEGIN:
                pass
            case MarkKind.CANCEL:
                if is_of_same:
                    self.end = None
            case MarkKind.END:
                # One of the same reshard replaces it: a primary was lost before it replicated END.
                if self.end is not None and not is_of_same:
                    raise ProgressBroken(
                        f"shard {self.shard}: END of reshard {mark.reshard_id} at offset "
                        f"{mark.offset} follows END of reshard {self.end.mark.reshard_id} at "
                        f"offset {self.end.mark.offset} without a CANCEL of that one",
                    )
                # The tick of the cell of END; one with its seq belongs to the records after it.
                i = bisect_left(self._cuts, progress.last_seq, key=lambda cut: cut.seq) - 1
                cell_end_us = self._times_us[i] + GRID_US if i >= 0 else 0
                self.end = End(mark, Cut(progress.end_offset, progress.last_seq), cell_end_us)
            case never:
                assert_never(never)

    def _check_chain(self, progress: Progress) -> None:
        first, last = progress.first_seq, progress.last_seq
        if last < first - 1 or first < 1:
            raise ProgressBroken(
                f"shard {self.shard}: a progress record covers seq {first} to {last}, which is "
                f"not a range: its producer is faulty",
            )
        if self._chain_seq is None:
            self._begin_chain(progress, "progress reaches back")
        elif first > self._chain_seq + 1:
            self._begin_chain(
                progress, f"the progress chain breaks at {self._chain_seq} and continues"
            )
        elif first <= self._chain_seq:
            raise ProgressBroken(
                f"shard {self.shard}: progress of seq {first} follows that of seq "
                f"{self._chain_seq}: two producers wrote to it, or records were repeated",
            )

    def _begin_chain(self, progress: Progress, how: str) -> None:
        """Begin the ticks here; PositionTooOld if the position lies before."""
        self._times_us.clear()
        self._cuts.clear()
        if progress.last_seq <= self.at.seq and not progress.ticks:
            # Later records are not older than this head, so a tick here is valid for them. The tick
            # of the cell that they continue may lie before the progress read.
            self._times_us.append(cell_start_us(progress.head_us))
            self._cuts.append(Cut(progress.end_offset, progress.last_seq))
            return
        known_from = ordered_from_seq(progress)
        wanted = self.at.seq + 1
        if known_from > wanted:
            raise PositionTooOld(
                f"shard {self.shard}: {how} to seq {known_from}, the reader is before seq "
                f"{wanted}: the records between can no longer be ordered. Start again from "
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
        if progress.in_parts:  # none of them lies between two parts
            seq = cut_at(progress, tick).seq + 1
            inside = inside and tick.offset == first_offset + offsets_before(progress, seq)
        if rising and inside and tick.timestamp_us == cell_start_us(tick.timestamp_us):
            return
        raise ProgressBroken(
            f"shard {self.shard}: the tick {tick.timestamp_us} at offset {tick.offset} of the "
            f"progress of seq {progress.first_seq} to {progress.last_seq} (offsets {first_offset} "
            f"to {progress.end_offset}) is not on the grid, not increasing, or outside of it: its "
            f"producer is faulty",
        )

    def cut(self, frontier_us: int) -> Cut:
        """Return the cut before the first record that is not older than a grid time.

        Never before the position, never beyond an END that no CANCEL follows.
        """
        return self._cut_at(bisect_left(self._times_us, frontier_us))

    def _cut_at(self, i: int) -> Cut:
        """Return the cut at a tick, or behind the last one."""
        found = self._cuts[i] if i < len(self._cuts) else self._end
        if self.end is not None and found.seq > self.end.cut.seq:
            found = self.end.cut
        return found if found.seq > self.at.seq else self.at

    def cut_within(self, frontier_us: int, rows_max: int) -> Cut:
        """Return the last cut at a tick up to `frontier_us` with at most `rows_max` rows before it.

        If the first cell alone has more, it is included whole.
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
        """Move the position to a cut returned by this object."""
        self.at = at
        self._forget()

    def _forget(self) -> None:
        keep_from = bisect_right(self._cuts, self.at.seq, key=lambda cut: cut.seq) - 1
        if keep_from > 0:
            del self._times_us[:keep_from]
            del self._cuts[:keep_from]
