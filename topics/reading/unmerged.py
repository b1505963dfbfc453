"""Plans the reading of each shard log for itself, without waiting for the merged frontier.

A shard is read as far as its progress goes, whatever the others do: up to its END, if it has one
that no CANCEL follows. A hop replaces the sources of a reshard as soon as each of them has been
read up to its END and all targets have begun. Nothing is ordered between shards.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from event_token import KeyRange, ShardPosition, StreamPosition
from event_token.position import NUMBER_MAX
from topics.progress.cells import Cut
from topics.reading.followed_shards import TICKS_MAX, FollowedShards, Wait
from topics.reading.planner import ShardRange

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
        """Move the frontier of the position, or hop if a hop is due; tell whether it hopped.

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
