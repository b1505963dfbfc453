"""Plans which rows of which shard come next, from progress records alone.

The frontier F is the least head (watermark) of all shards, on the grid. A batch contains, for every
shard, the records between its last cut and the cut at F: exactly those with F(previous) <= t < F.
So batches are disjoint in time, and records beyond F are left unread rather than buffered. At a
reshard the stream hops from the sources to the targets in a separate batch (see `hops`).

`UnmergedPlanner` reads each shard as far as its progress goes, without the frontier: up to its END,
if it has one that no CANCEL follows. It hops as soon as each source has been read up to its END and
all targets have begun.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from types import MappingProxyType
from typing import Final

from event_token import KeyRange, ShardPosition, StreamPosition
from event_token.errors import UsageError
from event_token.position import NUMBER_MAX
from topics.errors import WrongPosition
from topics.progress.record import Cut
from topics.reading.followed_shards import TICKS_MAX, FollowedShards, Wait
from topics.reading.shard_ticks import ShardTicks


class Silence:
    """The shards left out of the frontier by mode MaxHold.

    Times named `..._ms` are on the planner's clock.
    """

    def __init__(self, max_hold_ms: int) -> None:
        """Begin with all shards counting."""
        self._max_hold_ms = max_hold_ms
        self._left_out: dict[str, int] = {}  # with its head at that time
        self._held_since_ms: int | None = None

    def taking_part(self, shards: Iterable[ShardTicks]) -> list[ShardTicks]:
        """Return the shards that are not left out."""
        return [known for known in shards if known.shard not in self._left_out]

    def update(
        self, shards: Sequence[ShardTicks], so_far_us: int, now_ms: int, *, held: bool
    ) -> None:
        """Update the shards left out. `held`: something else holds the frontier at `so_far_us`."""
        names = {known.shard for known in shards}
        self._left_out = {s: head for s, head in self._left_out.items() if s in names}
        self._rejoin(shards, so_far_us)
        self._leave_out(shards, so_far_us, now_ms, held=held)

    def _rejoin(self, shards: Sequence[ShardTicks], so_far_us: int) -> None:
        """Readmit shards that advance and are no further behind than the hold allows."""
        behind_us_max = self._max_hold_ms * 1_000
        for known in shards:
            head_then_us = self._left_out.get(known.shard)
            head_us = known.head_cell_us
            if (
                head_then_us is not None
                and head_us > head_then_us
                and head_us >= so_far_us - behind_us_max
            ):
                del self._left_out[known.shard]

    def _leave_out(
        self, shards: Sequence[ShardTicks], so_far_us: int, now_ms: int, *, held: bool
    ) -> None:
        """Leave out the shards that have held the others back for too long.

        The last shard is never left out, because that would help no other.
        """
        taking_part = self.taking_part(shards)
        holding = [s for s in taking_part if s.head_cell_us <= so_far_us]
        if held or not holding or len(holding) == len(taking_part):
            self._held_since_ms = None
            return
        if self._held_since_ms is None:
            self._held_since_ms = now_ms
        if now_ms - self._held_since_ms >= self._max_hold_ms:
            self._left_out.update({s.shard: s.head_cell_us for s in holding})
            self._held_since_ms = None


@dataclass(frozen=True, slots=True)
class Strict:
    """The frontier waits for shards without progress indefinitely."""


@dataclass(frozen=True, slots=True)
class MaxHold:
    """A shard that holds the frontier back for longer is left out; its rows then come late.

    `max_hold_ms` counts from the moment at which the other shards could have continued.
    """

    max_hold_ms: int

    def __post_init__(self) -> None:
        """Refuse anything but a number of milliseconds."""
        if not isinstance(self.max_hold_ms, int):
            raise UsageError(f"max_hold_ms {self.max_hold_ms!r} is not an int of milliseconds")
        if self.max_hold_ms < 0:
            raise UsageError(f"max_hold_ms {self.max_hold_ms} is negative")


Mode = Strict | MaxHold


@dataclass(frozen=True, slots=True)
class ShardRange:
    """Part of a shard log: the records `first_seq`..`last_seq`, at or after `start_offset`.

    Empty when `last_seq < first_seq`. No record from `end_offset` on belongs to it.
    """

    shard: str
    start_offset: int
    end_offset: int
    first_seq: int
    last_seq: int

    @property
    def rows(self) -> int:
        """Number of records in the range."""
        return self.last_seq - self.first_seq + 1


@dataclass(frozen=True, slots=True)
class Batch:
    """The ranges to read next, for shards that have rows; the reader then stands at `end`.

    All rows are older than `frontier_us`. Rows older than `start_frontier_us` are late; only the
    shards in `late_shards` have them. A batch without ranges only moves the frontier, or hops, in
    which case `end` is of other shards.
    """

    start_frontier_us: int
    frontier_us: int
    ranges: Mapping[str, ShardRange]
    end: StreamPosition
    late_shards: frozenset[str]

    @property
    def rows(self) -> int:
        """Number of records in the batch."""
        return sum(part.rows for part in self.ranges.values())


def ranges_between(start: StreamPosition, end: StreamPosition) -> dict[str, ShardRange]:
    """Return the non-empty ranges between two positions, by shard.

    None lie between the two positions of a hop. WrongPosition when the positions are of different
    shards otherwise, or `end` is before `start`.
    """
    if start.shards.keys() != end.shards.keys():
        if is_hop(start, end):
            return {}
        raise WrongPosition(
            f"positions of different shards: {', '.join(start.shards)} (epoch {start.epoch}) "
            f"and {', '.join(end.shards)} (epoch {end.epoch})",
        )
    ranges = {}
    for shard, at in start.shards.items():
        to = end.shards[shard]
        if to.seq < at.seq or to.offset < at.offset:
            raise WrongPosition(
                f"shard {shard}: the end (seq {to.seq}, offset {to.offset}) lies before the "
                f"start (seq {at.seq}, offset {at.offset})",
            )
        if to.seq > at.seq:
            ranges[shard] = ShardRange(shard, at.offset, to.offset, at.seq + 1, to.seq)
    return ranges


def is_hop(start: StreamPosition, end: StreamPosition) -> bool:
    """Return whether a step replaces shards by others, and does nothing else."""
    kept = start.shards.keys() & end.shards.keys()
    return (
        end.epoch == start.epoch + 1
        and end.frontier_us == start.frontier_us
        and start.shards.keys() != end.shards.keys()
        and all(start.shards[shard] == end.shards[shard] for shard in kept)
    )


class Planner(FollowedShards):
    """Plans batches from a position on: takes progress by `observe`, plans by `next_batch`.

    `position` may lie between any two records, even inside a batch or a transaction, and may be of
    shards that have been resharded since. Times named `..._ms` are milliseconds on a clock of the
    caller. UsageError when the shards of the position do not make up `key_range`.
    """

    def __init__(
        self,
        position: StreamPosition,
        key_range: KeyRange,
        mode: Mode = Strict(),
        *,
        ticks_max: int = TICKS_MAX,
        until_us: int | None = None,
        retired_us: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """Begin at `position` without progress. The frontier does not pass `until_us`.

        `retired_us`: hop times of shards whose logs are known to have an END.
        """
        super().__init__(position, key_range, ticks_max=ticks_max, retired_us=retired_us)
        self.mode = mode
        self._until_us = [] if until_us is None else [until_us]
        self._silence = Silence(mode.max_hold_ms) if isinstance(mode, MaxHold) else None

    def next_batch(self, now_ms: int, max_rows: int | None = None) -> Batch | Wait:
        """Return the next batch, or what it waits for. Nothing changes before `advance`.

        A batch has at most `max_rows` rows, except that one grid cell is never split.
        ProgressBroken when the marks of a reshard contradict each other.
        """
        if max_rows is not None and max_rows < 1:
            raise UsageError(f"max_rows {max_rows}: a batch has at least one row")
        self._hops.check_begins(self._retired_us)
        hop = self._hops.due(self._shards, self.position.frontier_us)
        if hop is not None:
            at, end = self.position, self._after_hop(hop)
            return Batch(at.frontier_us, at.frontier_us, {}, end, frozenset())
        frontier_us = self._frontier_us(now_ms)
        cuts = self._late_cuts(max_rows)
        late_rows = sum(cut.seq - self._shards[shard].at.seq for shard, cut in cuts.items())
        if max_rows is not None:
            frontier_us = self._bounded_frontier_us(frontier_us, cuts, late_rows, max_rows)
        for shard, known in self._shards.items():
            if shard not in cuts:
                cuts[shard] = known.cut(frontier_us)
        batch = self._batch(frontier_us, cuts)
        if batch.ranges or frontier_us > self.position.frontier_us:
            return batch
        return self._wait(now_ms)

    def advance(self, batch: Batch) -> None:
        """Mark a batch as read; the next one begins at its end."""
        if batch.end.shards.keys() != self.position.shards.keys():
            self._hop_to(batch.end)
        for shard, known in self._shards.items():
            to = batch.end.shards[shard]
            known.advance(Cut(to.offset, to.seq))
        self.position = batch.end

    def _counting(self) -> list[ShardTicks]:
        """Return the shards whose heads determine the frontier."""
        known = super()._counting()
        return known if self._silence is None else self._silence.taking_part(known)

    def _frontier_us(self, now_ms: int) -> int:
        """Return the least head of the shards that count, but at least the current frontier."""
        so_far_us = self.position.frontier_us
        bounds_us = self._hops.bounds_us(self._shards) + self._until_us + self._ends_missed()
        if self._silence is not None:
            running = super()._counting()
            held = min(bounds_us, default=so_far_us + 1) <= so_far_us
            self._silence.update(running, so_far_us, now_ms, held=held)
        heads_us = [known.head_cell_us for known in self._counting()]
        return max(so_far_us, min(heads_us + bounds_us))

    def _late_cuts(self, max_rows: int | None) -> dict[str, Cut]:
        """Return cuts of shards with more rows before the current frontier than fit into a batch.

        Late rows get half of a batch, so that neither they nor the other rows starve.
        """
        if max_rows is None:
            return {}
        cuts = {}
        left = max(1, max_rows // 2)
        for shard, known in self._shards.items():
            due = known.cut(self.position.frontier_us)
            if due.seq == known.at.seq:
                continue
            if left <= 0:
                cuts[shard] = known.at
                continue
            cut = known.cut_within(self.position.frontier_us, left)
            left -= cut.seq - known.at.seq
            # Once all of its late rows fit, a shard continues with the others; otherwise one with
            # rows in every cell would stay one batch behind, and late, forever.
            if cut.seq < due.seq:
                cuts[shard] = cut
        return cuts

    def _bounded_frontier_us(
        self, frontier_us: int, late: Mapping[str, Cut], late_rows: int, max_rows: int
    ) -> int:
        """Return the greatest frontier up to `frontier_us` with at most `max_rows` rows before it.

        It includes at least the first cell with rows, unless there are late rows.
        """
        so_far_us = self.position.frontier_us
        shards = [known for shard, known in self._shards.items() if shard not in late]

        def rows_until(time_us: int) -> int:
            return late_rows + sum(known.cut(time_us).seq - known.at.seq for known in shards)

        if rows_until(frontier_us) <= max_rows:
            return frontier_us
        # Cuts change only at ticks, so only ticks are tried: those of a batch, whatever is known.
        fits_us, fits_rows, next_us = so_far_us, rows_until(so_far_us), frontier_us
        rows = rows_until(so_far_us + 1)  # before the next tick
        for time_us, added in merge(*(known.steps(so_far_us, frontier_us) for known in shards)):
            if time_us > fits_us:
                if rows > max_rows:
                    next_us = time_us
                    break
                fits_us, fits_rows = time_us, rows
            rows += added
        return fits_us if fits_rows else next_us

    def _batch(self, frontier_us: int, cuts: Mapping[str, Cut]) -> Batch:
        late = [
            shard
            for shard, known in self._shards.items()
            if known.cut(self.position.frontier_us).seq > known.at.seq
            and cuts[shard].seq > known.at.seq
        ]
        shards = {}
        for shard, at in self.position.shards.items():
            cut = cuts[shard]
            moved = cut.seq > at.seq
            # Progress does not contain the token of a record inside a Kafka transaction.
            shards[shard] = ShardPosition(cut.offset, cut.seq, None) if moved else at
        end = StreamPosition(self.position.epoch, frontier_us, shards)
        return Batch(
            start_frontier_us=self.position.frontier_us,
            frontier_us=frontier_us,
            ranges=ranges_between(self.position, end),
            end=end,
            late_shards=frozenset(late),
        )


# Beyond every tick: a cut there is the end of what is known of a shard.
_FOREVER_US: Final = NUMBER_MAX


@dataclass(frozen=True, slots=True)
class Unmerged:
    """Each shard log as it comes: in order per shard, in no order between shards.

    A shard that is silent never delays another one, and no event is late. A position's frontier is
    the time before which every shard has been read, so a merged stream may continue at it: rows
    that come after it and are older than what was read are then late or out of order, never lost.
    """


class UnmergedPlanner(FollowedShards):
    """Plans ranges of single shards from a position on, from progress records alone.

    Times named `..._ms` are milliseconds on a clock of the caller. UsageError when the shards of
    the position do not make up `key_range`.
    """

    def __init__(
        self,
        position: StreamPosition,
        key_range: KeyRange,
        *,
        ticks_max: int = TICKS_MAX,
        retired_us: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """Begin at `position` without progress; see `Planner`."""
        super().__init__(position, key_range, ticks_max=ticks_max, retired_us=retired_us)

    def next_range(self, shard: str, rows_max: int) -> ShardRange | None:
        """Return the records of a shard to read next, None if there are none.

        They are whole transactions: at most `rows_max` rows, unless one grid cell has more.
        """
        known = self._shards[shard]
        at, to = known.at, known.cut_within(_FOREVER_US, rows_max)
        if to.seq == at.seq:
            return None
        return ShardRange(shard, at.offset, to.offset, at.seq + 1, to.seq)

    def advance(self, part: ShardRange) -> None:
        """Mark a range as read; the next one of the shard begins at its end."""
        self._shards[part.shard].advance(Cut(part.end_offset, part.last_seq))
        at = ShardPosition(part.end_offset, part.last_seq, None)
        shards = {**self.position.shards, part.shard: at}
        self.position = StreamPosition(self.position.epoch, self.position.frontier_us, shards)

    def settle(self) -> bool:
        """Move the frontier of the position, or hop if a hop is due; return whether it hopped.

        PositionTooOld and ProgressBroken as `Planner.next_batch`.
        """
        self._hops.check_begins(self._retired_us)
        hop = self._hops.due(self._shards, _FOREVER_US)
        if hop is not None:
            self.position = self._after_hop(hop)
            self._hop_to(self.position)
            return True
        bounds_us = self._hops.bounds_us(self._shards) + self._ends_missed()
        read_us = [known.read_cell_us for known in self._counting()]
        at = self.position
        frontier_us = max(at.frontier_us, min(read_us + bounds_us))
        if frontier_us > at.frontier_us:
            self.position = StreamPosition(at.epoch, frontier_us, at.shards)
        return False

    def read_us(self) -> dict[str, int]:
        """Return, for each shard, the time before which it has been read."""
        return {shard: known.read_cell_us for shard, known in self._shards.items()}

    def heads_us(self) -> dict[str, int]:
        """Return the head of each shard, 0 while it is unknown."""
        return {shard: known.head_us or 0 for shard, known in self._shards.items()}

    def wait(self, now_ms: int) -> Wait:
        """Return which shards have the oldest head, and what a hop waits for."""
        return self._wait(now_ms)
