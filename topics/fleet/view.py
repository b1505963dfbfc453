"""The state of a keyspace's shards, from their progress records alone. Pure.

A producer that is dead reports nothing, but its progress topic stands still: what readers depend on
is seen there, whatever happened to the process, its machine or its network.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from topics.fleet.limits import SILENT_MS, STILL_MS
from topics.fleet.reader_views import ApplierView, ReaderView, applier_views, reader_views
from topics.keyspace.topology import (
    UNDER_WAY,
    ReshardEntry,
    ReshardState,
    ShardState,
    Topology,
)
from topics.progress.copy_topic import CopyState, TableCopy
from topics.progress.record import GRID_US, LastDdl, Progress, Skipped, StopReason
from topics.readers.record import NamedReader

# Of hops; a timeline of some days in a keyspace that is resharded often.
HOPS_MAX: Final = 50

# What stops one producer mostly stops all of them; the first ones say what it is.
REASONS_MAX: Final = 3
# Where the runbook says what to do: by the error's class, and without one.
STOPPED: Final = "docs/runbook.md#errors-that-stop-a-process"
SILENT: Final = "docs/runbook.md#shardsilent"

_COPYING: Final = frozenset((CopyState.COPYING, CopyState.PAUSED, CopyState.FAILED))


class ShardCondition(StrEnum):
    """The condition of a shard for its readers."""

    SERVING = "serving"
    SILENT = "silent"  # serves, but its producer has written nothing for SILENT_MS
    FILLING = "filling"  # a target of a reshard, which nobody reads yet
    ENDED = "ended"  # a source after its reshard


class ShardLevel(StrEnum):
    """How bad it is, as `status` and the page color it."""

    OK = "ok"
    AMBER = "amber"  # late by more than STILL_MS
    RED = "red"  # silent, or late by more than SILENT_MS: it holds readers back
    FILLING = "filling"
    ENDED = "ended"


_READ: Final = frozenset((ShardCondition.SERVING, ShardCondition.SILENT))
_ADVANCING: Final = frozenset((ShardCondition.SERVING, ShardCondition.FILLING))


@dataclass(frozen=True, slots=True)
class ShardLook:
    """The end of a shard's topics: its last progress, when it was written, its rate, its copies.

    `progress` is None, and `written_us` too, while no producer of the shard has written anything.
    `ended_us`: when END was written to a source, by running reshard; only an END that still counts.
    """

    progress: Progress | None = None
    written_us: int | None = None
    records_per_s: float = 0.0
    copies: tuple[TableCopy, ...] = ()
    ended_us: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ShardView:
    """One shard. `watermark_us`: no later record is older; `behind_ms`: its age.

    `source_lag_ms` is the age of the newest transaction when the producer read it. `silent_ms` is
    how long the producer has written nothing, `written_us` since when; None if it never has.
    `flavor` is mysql or mariadb, "" while unknown. `skipped`: the log's SKIP records. `ddl`: its
    last DDL, None before the first, and while a release without it produces. `stopped`: the reason
    that the producer has left when an error ended it, until the next one commits.
    """

    shard: str
    condition: ShardCondition
    watermark_us: int | None
    behind_ms: int | None
    records: int
    records_per_s: float
    source_lag_ms: int
    silent_ms: int | None
    server: str
    skipped: Skipped | None = None
    written_us: int | None = None
    flavor: str = ""
    ddl: LastDdl | None = None
    stopped: StopReason | None = None

    @property
    def is_silent(self) -> bool:
        """Whether its producer writes nothing, or never has."""
        return self.silent_ms is None or self.silent_ms > SILENT_MS

    @property
    def level(self) -> ShardLevel:
        """How bad it is."""
        if self.condition is ShardCondition.FILLING:
            return ShardLevel.FILLING
        if self.condition is ShardCondition.ENDED:
            return ShardLevel.ENDED
        late_ms = max(self.silent_ms or 0, self.behind_ms or 0)
        if self.condition is ShardCondition.SILENT or late_ms > SILENT_MS:
            return ShardLevel.RED
        return ShardLevel.AMBER if late_ms > STILL_MS else ShardLevel.OK


@dataclass(frozen=True, slots=True)
class StoppedWrites:
    """Writes are stopped on these sources of a reshard; `since_us`: END of the first one."""

    reshard_id: str
    shards: tuple[str, ...]
    since_us: int


@dataclass(frozen=True, slots=True)
class KeyspaceView:
    """All shards in the order of their key ranges.

    `frontier_us`: everything older can be read, None while a serving shard has no progress.
    `held_by`: the shards that readers wait for longer than for the others, with the reason.
    `held_since_us`: since when, as far as these and earlier looks tell; None if they do not, and
    where all keep up.
    `hops`: the last HOPS_MAX reshards with a hop time, in its order. `appliers`: those of the
    reshards under way that have reported.
    """

    keyspace: str
    epoch: int
    shards: tuple[ShardView, ...]
    frontier_us: int | None
    behind_ms: int | None
    held_by: tuple[str, ...]
    reason: str
    reshards: tuple[ReshardEntry, ...]
    copies: tuple[tuple[str, TableCopy], ...]
    readers: tuple[ReaderView, ...] = ()
    held_since_us: int | None = None
    stopped: tuple[StoppedWrites, ...] = ()
    hops: tuple[ReshardEntry, ...] = ()
    appliers: tuple[ApplierView, ...] = ()

    def is_held_back(self, behind_ms_max: int) -> bool:
        """Whether readers lack what is older than that, or soon will: a producer has stopped."""
        has_stopped = any(
            view.stopped and view.condition is ShardCondition.SILENT for view in self.shards
        )
        return has_stopped or self.behind_ms is None or self.behind_ms > behind_ms_max


def written_at_us(progress: Progress, now_us: int) -> int:
    """When a progress record was written, as far as clocks tell. A head says when rows committed.

    While a producer works off a backlog its head is old, and what it writes is not. A head follows
    the clock of the producer's host where that of the server is far off.
    """
    ahead_us = progress.server_time_us - now_us
    if ahead_us > SILENT_MS * 1_000:
        return progress.head_us
    return max(progress.head_us, progress.server_time_us)


def keyspace_view(
    topology: Topology,
    looks: Mapping[str, ShardLook],
    now_us: int,
    readers: Sequence[NamedReader] = (),
    before: KeyspaceView | None = None,
) -> KeyspaceView:
    """Combine a topology with the ends of its shards' topics; a shard without a look has none.

    `before`: the view of the look before this one, if there was one.
    """
    entries = sorted(topology.shards, key=lambda entry: (entry.key_range.start, entry.name))
    shards = tuple(
        _shard_view(entry.name, entry.state, looks.get(entry.name, ShardLook()), now_us)
        for entry in entries
    )
    serving = [
        view for view in shards if view.condition in {ShardCondition.SERVING, ShardCondition.SILENT}
    ]
    watermarks = [view.watermark_us for view in serving if view.watermark_us is not None]
    frontier_us = None
    if len(watermarks) == len(serving):
        frontier_us = min(watermarks) // GRID_US * GRID_US
    held_by, reason = _held_by(topology.keyspace, serving)
    under_way = tuple(entry for entry in topology.reshards if entry.state in UNDER_WAY)
    return KeyspaceView(
        topology.keyspace,
        topology.epoch,
        shards,
        frontier_us,
        None if frontier_us is None else max(0, now_us - frontier_us) // 1_000,
        held_by,
        reason,
        under_way,
        tuple(
            (view.shard, copy)
            for view in shards
            for copy in looks.get(view.shard, ShardLook()).copies
            if copy.state in _COPYING
        ),
        reader_views(readers, {view.shard: view.records for view in shards}, frontier_us, now_us),
        _held_since_us([view for view in serving if view.shard in held_by], before, now_us),
        _stopped(topology.reshards, looks),
        _hops(topology.reshards),
        applier_views(readers, {entry.reshard_id for entry in under_way}, now_us),
    )


def _held_since_us(
    holding: list[ShardView], before: KeyspaceView | None, now_us: int
) -> int | None:
    """A silent shard has held readers back since it last wrote, another one since it was seen.

    The first look cannot tell for how long a shard has been late: None.
    """
    if not holding:
        return None
    times = [] if before is None else [before.held_since_us or now_us]
    times += [
        view.written_us
        for view in holding
        if view.condition is ShardCondition.SILENT and view.written_us is not None
    ]
    return min(times, default=None)


def _stopped(
    reshards: Sequence[ReshardEntry], looks: Mapping[str, ShardLook]
) -> tuple[StoppedWrites, ...]:
    found = []
    for entry in reshards:
        ended = {
            source: looks[source].ended_us[entry.reshard_id]
            for source in entry.sources
            if source in looks and entry.reshard_id in looks[source].ended_us
        }
        if entry.state == ReshardState.RUNNING.value and ended:
            found.append(StoppedWrites(entry.reshard_id, tuple(ended), min(ended.values())))
    return tuple(found)


def _hops(reshards: Sequence[ReshardEntry]) -> tuple[ReshardEntry, ...]:
    hopped = [entry for entry in reshards if entry.hop_time_us is not None]
    return tuple(sorted(hopped, key=lambda entry: entry.hop_time_us or 0)[-HOPS_MAX:])


def _shard_view(shard: str, state: ShardState, look: ShardLook, now_us: int) -> ShardView:
    progress = look.progress
    silent_ms = None
    if look.written_us is not None:
        silent_ms = max(0, now_us - look.written_us) // 1_000
    condition = ShardCondition.SERVING
    if state is ShardState.TARGET:
        condition = ShardCondition.FILLING
    elif state is ShardState.RETIRED:
        condition = ShardCondition.ENDED
    elif silent_ms is None or silent_ms > SILENT_MS or _has_ended(progress):
        condition = ShardCondition.SILENT
    if progress is None:
        return ShardView(shard, condition, None, None, 0, 0.0, 0, silent_ms, "")
    return ShardView(
        shard,
        condition,
        progress.head_us,
        max(0, now_us - progress.head_us) // 1_000,
        progress.last_seq,
        look.records_per_s
        if condition in {ShardCondition.SERVING, ShardCondition.FILLING}
        else 0.0,
        progress.lag_ms,
        silent_ms,
        progress.server,
        progress.skipped,
        look.written_us,
        progress.flavor,
        progress.ddl,
        progress.stopped,
    )


def _has_ended(progress: Progress | None) -> bool:
    """Whether the producer has said that it ends, so nobody needs to wait to see it."""
    stopped = None if progress is None else progress.stopped
    return stopped is not None and not stopped.restarts


def _held_by(keyspace: str, serving: list[ShardView]) -> tuple[tuple[str, ...], str]:
    """Return the shards that hold readers back and why; none where all keep up."""
    new = [view for view in serving if view.silent_ms is None]
    if new:
        which = new[0].shard if len(new) == 1 else "SHARD"
        how = f"run shardstream produce {keyspace} {which}{'' if len(new) == 1 else ' for each'}"
        return _names(new), f"no producer has written progress yet; {how}"
    silent = [view for view in serving if view.condition is ShardCondition.SILENT]
    if silent:
        silent_s = max(view.silent_ms or 0 for view in silent) // 1_000
        servers = ", ".join(sorted({view.server for view in silent}))
        reasons = [
            f"; {view.shard} {view.stopped.condition}: {view.stopped}"
            for view in silent
            if view.stopped
        ]
        text = f"no progress for {silent_s} s, last from {servers}{''.join(reasons[:REASONS_MAX])}"
        return _names(silent), f"{text}; see {STOPPED if reasons else SILENT}"
    late = [view for view in serving if (view.behind_ms or 0) > SILENT_MS]
    if late:
        behind_s = max(view.behind_ms or 0 for view in late) // 1_000
        return _names(late), f"the producer is still reading what was committed {behind_s} s ago"
    return (), ""


def _names(views: list[ShardView]) -> tuple[str, ...]:
    return tuple(view.shard for view in views)
