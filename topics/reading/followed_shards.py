"""The shards that a reader reads, with their progress, and the targets of coming hops.

What planners have in common: each takes progress records by `observe`, and replaces the sources of
a reshard by its targets when its hop is due (see `hops`).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from event_token import KeyRange, ShardName, tiles
from event_token.position import ShardPosition, StreamPosition
from topics.errors import PositionTooOld, WrongPosition
from topics.progress.record import Progress
from topics.reading.hops import Hop, Hops, Target
from topics.reading.shard_ticks import ShardTicks

# One minute of a shard that is busy in every grid cell: far more than a batch needs, in a few
# hundred kilobytes. Progress of a shard that is further ahead is read later.
TICKS_MAX = 6_000


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing can be read yet: `shards` hold the frontier back, for `reason`."""

    reason: str
    shards: tuple[str, ...]


class FollowedShards:
    """The state of each shard of a position, and of the targets of the hops ahead of it.

    UsageError when the shards of the position do not make up `key_range`.
    """

    def __init__(
        self,
        position: StreamPosition,
        key_range: KeyRange,
        *,
        ticks_max: int,
        retired_us: Mapping[str, int],
    ) -> None:
        """Begin at `position` without progress.

        `retired_us`: hop times of shards whose logs are known to have an END.
        """
        check_shards(position, key_range)
        self.position = position
        self._ticks_max = ticks_max
        self._retired_us = retired_us
        self._shards = {shard: ShardTicks(shard, at) for shard, at in position.shards.items()}
        self._hops = Hops(key_range)

    @property
    def targets(self) -> Mapping[str, Target]:
        """Shards whose progress is needed besides those of `position`: targets of coming hops."""
        return self._hops.targets

    def observe(self, shard: str, progress: Progress, seen_at_ms: int) -> None:
        """Process the next progress record of a shard, in the order of its topic.

        The first one must cover or precede the position, else PositionTooOld; ProgressBroken
        when one does not follow its predecessor. Shards that are not wanted are ignored.
        """
        target = self.targets.get(shard)
        if shard in self._shards:
            self._shards[shard].observe(progress, seen_at_ms)
            if progress.mark is not None:
                self._hops.update(self._shards)
        elif target is not None:
            target.observe(progress, seen_at_ms)

    def wants(self, shard: str) -> bool:
        """Return whether to keep reading the progress of a shard; False bounds memory."""
        known = self._shards.get(shard)
        if known is None and (target := self.targets.get(shard)) is not None:
            if target.begin and not self._hops.needs_more(shard):
                return False
            known = target.known if target.begin else None
        # A target needs little memory until it begins; after an END, only CANCEL can come.
        if known is None or known.end is not None:
            return True
        # A shard that holds the frontier back is always wanted: clocks that were ahead can leave
        # many ticks beyond the head.
        return (
            known.ticks < self._ticks_max
            or known.head_cell_us <= self.position.frontier_us
            or self._hops.awaits_end(shard, self._shards)
        )

    def _after_hop(self, hop: Hop) -> StreamPosition:
        """Return the position with the sources of a hop replaced by its targets at BEGIN."""
        at = self.position
        shards = {shard: to for shard, to in at.shards.items() if shard not in hop.sources}
        for shard in hop.targets:
            begin = self._hops.begun(shard).at
            shards[shard] = ShardPosition(begin.offset, begin.seq, None)
        return StreamPosition(at.epoch + 1, at.frontier_us, shards)

    def _hop_to(self, position: StreamPosition) -> None:
        """Take over the shards of a position of `_after_hop`."""
        new = [shard for shard in position.shards if shard not in self._shards]
        self._shards |= {shard: self._hops.begun(shard) for shard in new}
        self._shards = {shard: self._shards[shard] for shard in position.shards}
        self._hops.update(self._shards)

    def _counting(self) -> list[ShardTicks]:
        """Return the shards whose heads determine the frontier."""
        return [known for known in self._shards.values() if not self._hops.is_over(known)]

    def _ends_missed(self) -> list[int]:
        """Return bounds for retired shards still without END; PositionTooOld if none can come."""
        bounds_us = []
        for shard, known in self._shards.items():
            hop_time_us = self._retired_us.get(shard)
            if hop_time_us is None or known.end is not None:
                continue
            if known.head_cell_us >= hop_time_us:
                raise PositionTooOld(
                    f"shard {shard}: it was resharded at {hop_time_us} us, and its progress no "
                    f"longer shows the END: it is unknown where its targets begin. Start again "
                    f"from earliest, or from a time",
                )
            bounds_us.append(hop_time_us)
        return bounds_us

    def _wait(self, now_ms: int) -> Wait:
        so_far_us = self.position.frontier_us
        holding = [known for known in self._counting() if known.head_cell_us <= so_far_us]
        waits = self._hops.waits(self._shards, so_far_us)
        waits += [(_silence(known, now_ms), (known.shard,)) for known in holding]
        reason = "; ".join(reason for reason, _ in waits)
        return Wait(reason, tuple(shard for _, shards in waits for shard in shards))


def check_shards(position: StreamPosition, key_range: KeyRange) -> None:
    """Raise WrongPosition unless the shards of the position, old or new, make up the key range."""
    parts = [ShardName.parse(shard).key_range.intersection(key_range) for shard in position.shards]
    if not tiles([part for part in parts if part], key_range) or None in parts:
        raise WrongPosition(
            f"the position is of the shards {', '.join(position.shards) or '(none)'}, the "
            f"stream of the key range {key_range}: start from a time, or from a position of this "
            f"stream",
        )


def _silence(known: ShardTicks, now_ms: int) -> str:
    if known.head_us is None or known.moved_at_ms is None:
        return f"shard {known.shard} has no progress yet: is its producer running?"
    age_ms = max(0, now_ms - known.moved_at_ms)
    return f"shard {known.shard} is at head {known.head_us} us, unchanged for {age_ms} ms"


class Stall:
    """Which shards have held a stream back since when, from what it is seen to wait for."""

    def __init__(self, now_ms: int) -> None:
        """Begin with a stream that is not held back."""
        self._frontier_us: int | None = None
        self._since_ms = now_ms
        self._shards: frozenset[str] = frozenset()
        self._reason = ""
        self._reported: frozenset[str] = frozenset()

    def observe(self, wait: Wait | None, frontier_us: int | None, now_ms: int) -> None:
        """Note what the stream waits for now; any progress of the frontier ends a stall."""
        if wait is None or frontier_us != self._frontier_us:
            self._frontier_us = frontier_us
            self._since_ms = now_ms
            self._shards = self._reported = frozenset()
        if wait is not None:
            # A shard that advances may still be waited for at one moment, never at all of them.
            held = frozenset(wait.shards)
            self._shards = held & self._shards or held
            self._reason = wait.reason

    def text(self, at_least_ms: int, now_ms: int) -> str | None:
        """Return what the stream has waited for for so long; None while it advances."""
        if not self._shards or now_ms - self._since_ms < at_least_ms:
            return None
        return f"waiting for {', '.join(sorted(self._shards))}: {self._reason}"

    def news(self, at_least_ms: int, now_ms: int) -> str | None:
        """Return `text` once per stall, and again when fewer shards are left that hold it back."""
        found = self.text(at_least_ms, now_ms)
        if found is None or (self._reported and not self._shards < self._reported):
            return None
        self._reported = self._shards
        return found
