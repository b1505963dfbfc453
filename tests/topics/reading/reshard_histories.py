"""A keyspace that is resharded while written: which rows a reader of a range must get."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from event_token import KeyRange, ShardName, ShardPosition, StreamPosition
from tests.topics.reading.shard_histories import START_US, History
from topics.progress.record import GRID_US, Mark, MarkKind, cell_start_us
from topics.reading.merge import RawRecord

# Bounds of shards: as fine as two bytes of hexadecimal digits that end in 0.
SLOTS = 16


def name_of(first: int, end: int, generation: int = 1) -> str:
    """The shard of the slots first..end-1."""
    low = f"{first:x}0" if first else ""
    high = f"{end:x}0" if end < SLOTS else ""
    return f"{low}-{high}" + (f".{generation}" if generation > 1 else "")


@dataclass
class Reshard:
    """A reshard under way."""

    reshard_id: str
    sources: tuple[str, ...]
    targets: tuple[str, ...]
    ended: list[str] = field(default_factory=list)
    begun: list[str] = field(default_factory=list)
    first_seq: dict[str, int] = field(default_factory=dict)  # of the BEGINs
    left: list[str] = field(default_factory=list)  # once cancelled: sources without a CANCEL
    latest_end_us: int = 0

    @property
    def hop_time_us(self) -> int:
        """End of the grid cell of the latest END."""
        return cell_start_us(self.latest_end_us) + GRID_US


class Keyspace:
    """All shards that ever existed, and which of their rows belong to the stream."""

    def __init__(self, bounds: Sequence[int]) -> None:
        """Begin with the shards between these slots."""
        self.histories: dict[str, History] = {}
        self.serving: list[str] = []
        self.reshards: dict[str, Reshard] = {}
        self.first_seq: dict[str, int] = {}
        self.last_seq: dict[str, int | None] = {}  # None while rows may come
        self.generations: dict[tuple[int, int], int] = {}
        self.hop_times_us: set[int] = set()
        self.retired_us: dict[str, int] = {}
        self.made = 0
        edges = [0, *bounds, SLOTS]
        for first, end in pairwise(edges):
            shard = self.add(first, end)
            self.serving.append(shard)
            self.first_seq[shard] = 1
        self.start = list(self.serving)

    def add(self, first: int, end: int) -> str:
        """Create a shard with a name that was never used."""
        generation = self.generations[first, end] = self.generations.get((first, end), 0) + 1
        shard = name_of(first, end, generation)
        self.histories[shard] = History(shard, now_us=START_US)
        return shard

    def slots(self, shard: str) -> tuple[int, int]:
        """The slots of a shard."""
        low, high = shard.split(".", maxsplit=1)[0].split("-")
        return int(low or "0", 16) // 16, int(high, 16) // 16 if high else SLOTS

    def busy(self) -> set[str]:
        """The serving shards that are being resharded."""
        return {s for r in self.reshards.values() for s in r.sources}

    def begin_reshard(self, sources: Sequence[str], bounds: Sequence[int]) -> Reshard:
        """Make targets that are split at these slots."""
        ordered = sorted(sources, key=self.slots)
        first, end = self.slots(ordered[0])[0], self.slots(ordered[-1])[1]
        edges = [first, *sorted(b for b in set(bounds) if first < b < end), end]
        targets = [self.add(a, b) for a, b in pairwise(edges)]
        self.made += 1
        made = Reshard(f"r{self.made}", tuple(ordered), tuple(targets))
        self.reshards[made.reshard_id] = made
        return made

    def mark(self, shard: str, kind: MarkKind, reshard: Reshard, before: int, step_us: int) -> None:
        """Write a mark, with some rows before it in the same Kafka transaction."""
        hop_us = reshard.hop_time_us if kind is MarkKind.BEGIN else None

        def made(offset: int) -> Mark:
            return Mark(kind, offset, reshard.reshard_id, reshard.sources, reshard.targets, hop_us)

        history = self.histories[shard]
        # The producer's clamp: nothing from BEGIN on is older than the hop time.
        clamp_us = max(0, (hop_us or 0) - history.now_us - step_us)
        rows = [(step_us, before), (clamp_us, 1)] if before else [(step_us + clamp_us, 1)]
        history.commit(rows, mark=made)

    def end(self, reshard: Reshard, shard: str, before: int, step_us: int) -> None:
        """Stop writes on a source."""
        self.mark(shard, MarkKind.END, reshard, before, step_us)
        reshard.ended.append(shard)
        reshard.latest_end_us = max(reshard.latest_end_us, self.histories[shard].now_us)

    def begin(self, reshard: Reshard, shard: str, before: int, step_us: int) -> None:
        """Write BEGIN into a target; the last one makes them serve."""
        self.mark(shard, MarkKind.BEGIN, reshard, before, step_us)
        reshard.begun.append(shard)
        reshard.first_seq[shard] = len(self.histories[shard].rows)
        if len(reshard.begun) == len(reshard.targets):
            self.hop_times_us.add(reshard.hop_time_us)
            self.first_seq |= reshard.first_seq
            for source in reshard.sources:
                self.serving.remove(source)
                self.last_seq[source] = self._seq_of_end(reshard, source)
                self.retired_us[source] = reshard.hop_time_us
            self.serving += reshard.targets
            del self.reshards[reshard.reshard_id]

    def _seq_of_end(self, reshard: Reshard, source: str) -> int:
        marks = [p for p in self.histories[source].progress if p.mark is not None]
        (seq,) = [
            p.last_seq
            for p in marks
            if p.mark and p.mark.kind is MarkKind.END and p.mark.reshard_id == reshard.reshard_id
        ]
        return seq

    def cancel(self, reshard: Reshard, step_us: int) -> None:
        """Write CANCEL into the targets that have no mark: from now on it is cancelled for good."""
        for shard in reshard.targets:
            if shard not in reshard.begun:
                self.mark(shard, MarkKind.CANCEL, reshard, 0, step_us)
        reshard.left = list(reshard.sources)

    def begin_too_late(self, reshard: Reshard, shard: str, step_us: int) -> None:
        """Write BEGIN into a target behind its CANCEL, as a `switch` that wakes late would."""
        self.mark(shard, MarkKind.BEGIN, reshard, 0, step_us)

    def open_source(self, reshard: Reshard, step_us: int) -> None:
        """Write CANCEL into the next source of a reshard that is being cancelled."""
        self.mark(reshard.left.pop(), MarkKind.CANCEL, reshard, 0, step_us)
        if not reshard.left:
            del self.reshards[reshard.reshard_id]

    def under_way(self) -> list[Reshard]:
        """Return the reshards that are neither switched nor cancelled."""
        return [reshard for reshard in self.reshards.values() if not reshard.left]

    def waiting_for_ends(self) -> list[tuple[Reshard, str]]:
        """Return the reshards of which several sources have no END yet, with each of these."""
        left = [(r, [s for s in r.sources if s not in r.ended]) for r in self.under_way()]
        return [(r, source) for r, sources in left if len(sources) > 1 for source in sources]

    def cancelled(self) -> list[Reshard]:
        """Return the reshards whose sources do not all have their CANCEL yet."""
        return [reshard for reshard in self.reshards.values() if reshard.left]

    def writable(self) -> list[str]:
        """Serving shards, and targets, which copy; none with an END unless it is cancelled."""
        ended = {s for r in self.reshards.values() if not r.left for s in r.ended}
        targets = [s for r in self.reshards.values() for s in r.targets]
        return sorted([s for s in self.serving if s not in ended] + targets)

    def finish(self) -> None:
        """Complete reshards in progress, and move heads beyond all rows."""
        for reshard in list(self.reshards.values()):
            if reshard.left:
                for _ in list(reshard.left):
                    self.open_source(reshard, 0)
                continue
            for shard in reshard.sources:
                if shard not in reshard.ended:
                    self.end(reshard, shard, 0, 0)
            for shard in reshard.targets:
                if shard not in reshard.begun:
                    self.begin(reshard, shard, 0, 0)
        end_us = max(h.now_us for h in self.histories.values()) + 1_000_000
        for shard in self.serving:
            history = self.histories[shard]
            history.heartbeat(end_us - history.head_us)

    def beginning(self, key_range: KeyRange) -> StreamPosition:
        """Return the position before everything, for a reader of a range."""
        shards = {
            shard: ShardPosition(0, 0, None)
            for shard in self.start
            if ShardName.parse(shard).key_range.overlaps(key_range)
        }
        return StreamPosition(0, 0, shards)

    def expected(self, key_range: KeyRange) -> list[RawRecord]:
        """Return what a reader of a range must get, in the right order."""
        rows = []
        for shard, first_seq in self.first_seq.items():
            if ShardName.parse(shard).key_range.overlaps(key_range):
                all_rows = self.histories[shard].rows
                rows += all_rows[first_seq - 1 : self.last_seq.get(shard) or len(all_rows)]
        return sorted(rows)
