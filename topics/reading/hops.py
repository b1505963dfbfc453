"""Hops over reshards: from the sources that have ended to the targets that have begun.

The END of a source names the reshard. All of its targets are then watched, also those outside of
the reader's range, until each has its BEGIN, which carries the hop time H. The frontier stops at H,
each source is read to its END, and one step replaces the sources by the targets at their BEGIN
offsets. Marks match by id only, and in a target only the first mark of an id counts: until every
target has begun, the reshard can be cancelled, and nobody has hopped. See docs/architecture.md.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from event_token import KeyRange, ShardName, ShardPosition, tiles
from event_token.key_range import KeyRangeError
from topics.errors import PositionTooOld, ProgressBroken
from topics.progress.record import CLOCK_AHEAD_US_MAX, Cut, Mark, Progress, begins_us
from topics.reading.shard_ticks import End, ShardTicks

# How far the clocks of a source and a target may differ, beyond all that NTP leaves.
CLOCKS_APART_US_MAX = 60_000_000


class Target:
    """The progress of a target: until its BEGIN, and from there on like that of any shard.

    `from_us`: BEGIN is not older than this, so progress from that time on suffices.
    """

    def __init__(self, shard: str, reshard_id: str, from_us: int) -> None:
        """Begin without progress."""
        self.shard = shard
        self.reshard_id = reshard_id
        self.from_us = from_us
        self.begin: Mark | None = None
        self.is_cancelled = False
        self.known: ShardTicks | None = None
        self._reaches_back = True  # whether all progress since `from_us` was there
        self._log_begins_us: int | None = None  # if its first progress record was there

    def observe(self, progress: Progress, seen_at_ms: int) -> None:
        """Process the next progress record. Halt when it does not follow its predecessor."""
        mark = progress.mark
        is_first = (
            self.begin is None
            and not self.is_cancelled
            and mark is not None
            and mark.reshard_id == self.reshard_id
        )
        begins = is_first and mark is not None and mark.begins(self.shard)
        # Records below BEGIN are never read, because the sources contain them.
        at = Cut(progress.end_offset - begins, progress.last_seq - begins)
        if self.known is None:
            self._reaches_back = progress.head_us <= self.from_us - CLOCK_AHEAD_US_MAX
            self._log_begins_us = begins_us(progress)
            self.known = ShardTicks(self.shard, ShardPosition(at.offset, at.seq, None))
        self.known.observe(progress, seen_at_ms)
        if self.begin is None:
            self.known.advance(at)
        if begins and mark is not None:
            self._check_begin(mark, progress)
            self.begin = mark
        self.is_cancelled |= is_first and not begins

    def has_lost(self, hop_time_us: int) -> bool:
        """Return whether compaction, or a log started over, has removed what showed BEGIN."""
        known = self.known
        if known is None or self._reaches_back or self.is_cancelled:
            return False
        begins_us = self._log_begins_us
        is_whole = begins_us is not None and begins_us <= hop_time_us + CLOCKS_APART_US_MAX
        return not is_whole and known.head_cell_us >= hop_time_us

    def _check_begin(self, mark: Mark, progress: Progress) -> None:
        where = f"shard {self.shard}: BEGIN of reshard {mark.reshard_id} at offset {mark.offset}"
        if mark.hop_time_us is None:
            raise ProgressBroken(f"{where} names no hop time")
        if progress.ticks and progress.ticks[-1].timestamp_us < mark.hop_time_us:
            raise ProgressBroken(
                f"{where} is of the time {progress.ticks[-1].timestamp_us} us, before the hop "
                f"time {mark.hop_time_us} us: time would run backwards",
            )


@dataclass(frozen=True, slots=True)
class Hop:
    """A reshard ahead of a reader, with its shards that overlap the range of the reader.

    `awaited`: all targets of the reshard, which must have begun before the hop.
    """

    reshard_id: str
    sources: tuple[str, ...]
    targets: tuple[str, ...]
    awaited: tuple[str, ...]


Active = Mapping[str, ShardTicks]


class Hops:
    """The reshards for which a shard of the reader has an END that no CANCEL follows."""

    def __init__(self, key_range: KeyRange) -> None:
        """Begin with none; shards that do not overlap the range are ignored."""
        self._key_range = key_range
        self._hops: dict[str, Hop] = {}
        self._targets: dict[str, Target] = {}

    @property
    def targets(self) -> Mapping[str, Target]:
        """The targets whose progress is needed, by name."""
        return self._targets

    def update(self, active: Active) -> None:
        """Follow the current marks of the shards being read."""
        marks: dict[str, Mark] = {}
        for known in active.values():
            if known.end is not None:
                mark = known.end.mark
                _check_same(known.shard, mark, marks.setdefault(mark.reshard_id, mark))
        self._hops = {i: self._hops.get(i) or self._hop(mark) for i, mark in marks.items()}
        before, self._targets = self._targets, {}
        for hop in self._hops.values():
            from_us = max(end.cell_end_us for end in _ends(hop, active))
            for shard in hop.awaited:
                known_target = before.get(shard)
                if known_target is None or known_target.reshard_id != hop.reshard_id:
                    known_target = Target(shard, hop.reshard_id, from_us)
                self._targets[shard] = known_target

    def _hop(self, mark: Mark) -> Hop:
        _check_ranges(mark)
        return Hop(
            mark.reshard_id,
            self._overlapping(mark.sources),
            self._overlapping(mark.targets),
            mark.targets,
        )

    def _overlapping(self, shards: Iterable[str]) -> tuple[str, ...]:
        return tuple(s for s in shards if ShardName.parse(s).key_range.overlaps(self._key_range))

    def needs_more(self, shard: str) -> bool:
        """Return whether the progress of a target matters beyond its BEGIN."""
        return any(shard in hop.targets for hop in self._hops.values())

    def is_over(self, known: ShardTicks) -> bool:
        """Return whether the END of a shard is final, because all targets have begun."""
        hop = self._hops.get(known.end.mark.reshard_id) if known.end else None
        return hop is not None and not self._silent_targets(hop)

    def bounds_us(self, active: Active) -> list[int]:
        """Return the times that the frontier may not pass before the hop, one per reshard."""
        return [time_us for hop in self._hops.values() for time_us in self._bounds_us(hop, active)]

    def _bounds_us(self, hop: Hop, active: Active) -> list[int]:
        ends = _ends(hop, active)
        bounds_us = self._behind_ends_us(hop, active)
        hop_time_us = self._hop_time_us(hop, ends)
        if hop_time_us is not None:
            bounds_us.append(hop_time_us)
        elif len(ends) == len(hop.sources):
            bounds_us.append(max(end.cell_end_us for end in ends))
        return bounds_us

    def _behind_ends_us(self, hop: Hop, active: Active) -> list[int]:
        """Return times of records that come next if the reshard is cancelled; none once it hops."""
        if not self._silent_targets(hop):
            return []
        behind = (active[shard].behind_end_us for shard, _ in _pairs(hop, active))
        return [time_us for time_us in behind if time_us is not None]

    def awaits_end(self, shard: str, active: Active) -> bool:
        """Return whether the frontier may wait for this shard's END, however far ahead it is."""
        return any(
            shard in hop.sources and self._behind_ends_us(hop, active)
            for hop in self._hops.values()
        )

    def due(self, active: Active, frontier_us: int) -> Hop | None:
        """Return a reshard with all sources read to END, at the hop time, and all targets begun."""
        for hop in self._hops.values():
            ends = _ends(hop, active)
            hop_time_us = self._hop_time_us(hop, ends)
            if (
                hop_time_us is not None
                and frontier_us >= hop_time_us
                and len(ends) == len(hop.sources)
                and not self._silent_targets(hop)
                and all(active[end_of].at.seq == end.cut.seq for end_of, end in _pairs(hop, active))
            ):
                return hop
        return None

    def begun(self, shard: str) -> ShardTicks:
        """Return the state of a target that has begun."""
        known = self._targets[shard].known
        assert known is not None  # noqa: S101 - a hop is due once all have begun
        return known

    def check_begins(self, retired_us: Mapping[str, int]) -> None:
        """Raise PositionTooOld if a BEGIN that was written can no longer be seen.

        `retired_us`: hop times of the sources of switched reshards, which have all BEGINs.
        """
        for hop in self._hops.values():
            hop_time_us = max((retired_us.get(source, 0) for source in hop.sources), default=0)
            for shard in self._silent_targets(hop):
                target = self._targets[shard]
                if hop_time_us and target.has_lost(hop_time_us):
                    raise PositionTooOld(
                        f"reshard {hop.reshard_id} of {', '.join(hop.sources)} was switched at "
                        f"{hop_time_us} us, but the progress of target {shard} no longer shows "
                        f"its BEGIN: it is unknown where the shard begins. Start again from "
                        f"earliest, or from a time",
                    )

    def waits(self, active: Active, so_far_us: int) -> list[tuple[str, tuple[str, ...]]]:
        """Return why a reshard holds the frontier back, and by which shards."""
        found: list[tuple[str, tuple[str, ...]]] = []
        for hop in self._hops.values():
            silent = self._silent_targets(hop)
            running = tuple(s for s in hop.sources if s not in dict(_pairs(hop, active)))
            bounds_us = self._bounds_us(hop, active)
            if not bounds_us or min(bounds_us) > so_far_us:
                continue
            if running:
                found.append((f"reshard {hop.reshard_id}: no END of {', '.join(running)}", running))
            cancelled = [s for s in silent if self._targets[s].is_cancelled]
            if cancelled:
                reason = (
                    f"reshard {hop.reshard_id} is cancelled on {', '.join(cancelled)}, but not yet "
                    f"on {', '.join(hop.sources)}: run `shardstream reshard cancel` again"
                )
                found.append((reason, hop.sources))
            elif silent:
                reason = (
                    f"reshard {hop.reshard_id} has ended {', '.join(hop.sources)}, but "
                    f"{', '.join(silent)} has no BEGIN yet: was the switch finished or cancelled, "
                    f"and are the producers running?"
                )
                found.append((reason, silent))
        return found

    def _silent_targets(self, hop: Hop) -> tuple[str, ...]:
        return tuple(s for s in hop.awaited if self._targets[s].begin is None)

    def _hop_time_us(self, hop: Hop, ends: list[End]) -> int | None:
        """Return the hop time of the BEGINs so far; None while there is none."""
        begins = (self._targets[shard].begin for shard in hop.awaited)
        times = {begin.hop_time_us for begin in begins if begin is not None}
        if not times:
            return None
        hop_time_us = max(time_us or 0 for time_us in times)
        latest_us = max((end.cell_end_us for end in ends), default=0)
        if len(times) > 1 or hop_time_us < latest_us:
            raise ProgressBroken(
                f"reshard {hop.reshard_id}: its BEGINs name the hop times "
                f"{sorted(time_us or 0 for time_us in times)} us, its latest END's grid cell ends "
                f"at {latest_us} us: the switch was faulty",
            )
        return hop_time_us


def _pairs(hop: Hop, active: Active) -> list[tuple[str, End]]:
    found = []
    for shard in hop.sources:
        known = active.get(shard)
        if known and known.end and known.end.mark.reshard_id == hop.reshard_id:
            found.append((shard, known.end))
    return found


def _ends(hop: Hop, active: Active) -> list[End]:
    return [end for _, end in _pairs(hop, active)]


def _check_same(shard: str, mark: Mark, first: Mark) -> None:
    if (mark.sources, mark.targets) != (first.sources, first.targets) or shard not in mark.sources:
        raise ProgressBroken(
            f"shard {shard}: END of reshard {mark.reshard_id} at offset {mark.offset} leads from "
            f"{', '.join(mark.sources)} to {', '.join(mark.targets)}, another one with that id "
            f"from {', '.join(first.sources)} to {', '.join(first.targets)}",
        )


def _check_ranges(mark: Mark) -> None:
    """Refuse a mark whose targets do not cover its sources: a hop would lose changes."""
    try:
        sources, targets = (
            [ShardName.parse(shard).key_range for shard in shards]
            for shards in (mark.sources, mark.targets)
        )
        ordered = sorted(sources, key=lambda key_range: key_range.start)
        whole = KeyRange(ordered[0].start, ordered[-1].end)
        fits = tiles(sources, whole) and tiles(targets, whole)
    except (KeyRangeError, IndexError):
        fits = False
    if not fits:
        raise ProgressBroken(
            f"reshard {mark.reshard_id}: its sources {', '.join(mark.sources)} and its targets "
            f"{', '.join(mark.targets)} do not make up the same key range",
        )
