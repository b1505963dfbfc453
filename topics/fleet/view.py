"""The state of a keyspace's shards, from their progress records alone. Pure.

A dead producer reports nothing, but its progress topic stands still. So the condition of readers is
visible there, no matter what happened to the process, its machine or its network.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from topics.keyspace.topology import (
    UNDER_WAY,
    ReshardEntry,
    ReshardState,
    ShardState,
    Topology,
)
from topics.named_readers import RUNNING_S, NamedReader
from topics.names import ApplierName
from topics.progress.copy_topic import CopyState, TableCopy
from topics.progress.record import (
    GRID_US,
    BinlogReach,
    LastDdl,
    PassedStatements,
    Progress,
    Skipped,
    StopReason,
)

# A producer advances its watermark every 250 ms, so this is forty missing heartbeats.
SILENT_MS: Final = 10_000
# A shard that is late by this much no longer keeps up; stalls of a second or two are common.
STILL_MS: Final = 3_000


@dataclass(frozen=True, slots=True)
class ReaderView:
    """One named reader. `position` is where a restart would continue, as an opaque string.

    `behind_ms`: the frontier's time minus the reader's, None while there is no frontier.
    `events_behind`: by shard of the position, how many records its log has beyond it. `said_ms`:
    how long ago the reader reported, by its own clock. `failed`: how many reports of that process
    did not reach Kafka. `others`: the hosts, with versions, of other processes that report under
    the same name. `kind`: as of a ReaderRecord.
    """

    name: str
    key_range: str
    behind_ms: int | None
    events_behind: dict[str, int]
    said_ms: int
    epoch: int
    frontier_us: int
    position: str
    host: str
    version: str
    failed: int
    others: tuple[str, ...]
    kind: str


@dataclass(frozen=True, slots=True)
class ApplierView:
    """The applier of a reshard's target, by its own report.

    `behind_ms`: the age of the changes that the target has from all sources, as of the last report,
    or as of now if that is older than RUNNING_S. `said_ms`: as of a ReaderView.
    """

    reshard_id: str
    target: str
    behind_ms: int
    said_ms: int
    host: str

    @property
    def is_silent(self) -> bool:
        """Whether several reports are missing."""
        return self.said_ms > RUNNING_S * 1_000


def applier_views(
    readers: Sequence[NamedReader], reshard_ids: Collection[str], now_us: int
) -> tuple[ApplierView, ...]:
    """Return the views of the appliers of these reshards."""
    found = []
    for reader in readers:
        name, last = ApplierName.parse(reader.last.name), reader.last
        if name is None or name.reshard_id not in reshard_ids:
            continue
        said_ms = max(0, now_us - last.at_us) // 1_000
        as_of_us = now_us if said_ms > RUNNING_S * 1_000 else last.at_us
        behind_ms = max(0, as_of_us - last.position.frontier_us) // 1_000
        found.append(ApplierView(name.reshard_id, name.target, behind_ms, said_ms, last.host))
    return tuple(found)


def reader_views(
    readers: Sequence[NamedReader],
    records: Mapping[str, int],
    frontier_us: int | None,
    now_us: int,
) -> tuple[ReaderView, ...]:
    """Return the views of all readers; `records`: by shard, the `seq` of its last record."""
    return tuple(
        _view(reader, records, frontier_us, now_us)
        for reader in readers
        if ApplierName.parse(reader.last.name) is None
    )


def _view(
    reader: NamedReader, records: Mapping[str, int], frontier_us: int | None, now_us: int
) -> ReaderView:
    last = reader.last
    position = last.position
    behind_us = None if frontier_us is None else max(0, frontier_us - position.frontier_us)
    return ReaderView(
        name=last.name,
        key_range=str(last.key_range),
        behind_ms=None if behind_us is None else behind_us // 1_000,
        events_behind={
            shard: max(0, records[shard] - at.seq)
            for shard, at in position.shards.items()
            if shard in records
        },
        said_ms=max(0, now_us - last.at_us) // 1_000,
        epoch=position.epoch,
        frontier_us=position.frontier_us,
        position=position.to_string(),
        host=last.host,
        version=last.version,
        failed=last.failed,
        others=tuple(f"{other.host} ({other.version})" for other in reader.others),
        kind=last.kind,
    )


# Hops in a view: some days in a keyspace that is resharded often.
HOPS_MAX: Final = 50

# One cause often stops all producers, and the first reasons show it.
REASONS_MAX: Final = 3
_COPYING: Final = frozenset((CopyState.COPYING, CopyState.PAUSED, CopyState.FAILED))


class ShardCondition(StrEnum):
    """The condition of a shard for its readers."""

    SERVING = "serving"
    SILENT = "silent"  # serves, but its producer has written nothing for SILENT_MS
    FILLING = "filling"  # a target of a reshard, which nobody reads yet
    ENDED = "ended"  # a source after its reshard


class ShardLevel(StrEnum):
    """The severity by which `status` and the page color a shard."""

    OK = "ok"
    AMBER = "amber"  # late by more than STILL_MS
    RED = "red"  # silent, or late by more than SILENT_MS: it holds readers back
    FILLING = "filling"
    ENDED = "ended"


_READ: Final = frozenset((ShardCondition.SERVING, ShardCondition.SILENT))
_ADVANCING: Final = frozenset((ShardCondition.SERVING, ShardCondition.FILLING))


@dataclass(frozen=True, slots=True)
class ShardEnds:
    """The end of a shard's topics: its last progress, when it was written, its rate, its copies.

    `progress` is None, and `written_us` too, while no producer of the shard has written anything.
    `ended_us`: by running reshard, when END was written to a source; without cancelled ones.
    `retention_ms`: for how long the log keeps a record; None for ever, or not known.
    """

    progress: Progress | None = None
    written_us: int | None = None
    records_per_s: float = 0.0
    copies: tuple[TableCopy, ...] = ()
    ended_us: Mapping[str, int] = field(default_factory=dict)
    retention_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ShardView:
    """One shard. `watermark_us`: no later record is older; `behind_ms`: its age.

    `source_lag_ms` is the age of the newest transaction when the producer read it. `silent_ms` is
    how long the producer has written nothing, `written_us` since when; None if it never has.
    `flavor` is mysql or mariadb, "" while unknown. `skipped`: the log's SKIP records. `ddl`: its
    last DDL, None before the first. `stopped`: why an error ended the producer, until the next
    one commits. `retention_ms`: as of ShardEnds.
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
    passed: PassedStatements | None = None
    binlogs: BinlogReach | None = None
    proved: int | None = None
    retention_ms: int | None = None

    @property
    def off_ms_max(self) -> int | None:
        """How long the producer may be off: as far back as binlogs reached when it wrote last."""
        if self.binlogs is None or self.written_us is None:
            return None
        return max(0, self.written_us - self.binlogs.since_us) // 1_000

    @property
    def is_silent(self) -> bool:
        """Whether its producer writes nothing, or never wrote."""
        return self.silent_ms is None or self.silent_ms > SILENT_MS

    @property
    def level(self) -> ShardLevel:
        """The severity."""
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
class Cause:
    """Why a shard holds readers back, in full, and the command to type; "" if it passes by itself.

    `error`: the class of the error that stopped its producer, "" where none is known. `alert`: the
    one that fires then; the runbook has a section for each. `when`: words that stand before the
    command, where it is not the first thing to do.
    """

    shard: str
    text: str
    command: str = ""
    error: str = ""
    alert: str = "ShardSilent"
    when: str = ""


@dataclass(frozen=True, slots=True)
class KeyspaceView:
    """All shards in the order of their key ranges.

    `frontier_us`: everything older can be read, None while a serving shard has no progress.
    `held_by`: the shards that readers wait for longer than for the others, with the reason in a few
    words, which follow their names; `causes`: of the first REASONS_MAX of them.
    `held_since_us`: since when, if this view and the one before show it; None if all keep up.
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
    causes: tuple[Cause, ...] = ()

    def is_held_back(self, behind_ms_max: int) -> bool:
        """Whether readers are further behind than that, or soon will be: a producer has stopped."""
        has_stopped = any(
            view.stopped and view.condition is ShardCondition.SILENT for view in self.shards
        )
        return has_stopped or self.behind_ms is None or self.behind_ms > behind_ms_max


def written_at_us(progress: Progress, now_us: int) -> int:
    """Estimate when a progress record was written; its head only says when rows were committed.

    While a producer works off a backlog, its head is old but its records are new. A head follows
    the clock of the producer's host if that of the server is far off.
    """
    ahead_us = progress.server_time_us - now_us
    if ahead_us > SILENT_MS * 1_000:
        return progress.head_us
    return max(progress.head_us, progress.server_time_us)


def keyspace_view(
    topology: Topology,
    looks: Mapping[str, ShardEnds],
    now_us: int,
    readers: Sequence[NamedReader] = (),
    before: KeyspaceView | None = None,
) -> KeyspaceView:
    """Combine a topology with the ends of its shards' topics; a shard without a look has none.

    `before`: the view before this one, if there was one.
    """
    entries = sorted(topology.shards, key=lambda entry: (entry.key_range.start, entry.name))
    shards = tuple(
        _shard_view(entry.name, entry.state, looks.get(entry.name, ShardEnds()), now_us)
        for entry in entries
    )
    serving = [view for view in shards if view.condition in _READ]
    watermarks = [view.watermark_us for view in serving if view.watermark_us is not None]
    frontier_us = None
    if len(watermarks) == len(serving):
        frontier_us = min(watermarks) // GRID_US * GRID_US
    holding, reason, causes = _held_by(topology.keyspace, serving)
    held_by = tuple(view.shard for view in holding)
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
            for copy in looks.get(view.shard, ShardEnds()).copies
            if copy.state in _COPYING
        ),
        reader_views(readers, {view.shard: view.records for view in shards}, frontier_us, now_us),
        _held_since_us(holding, before, now_us),
        _stopped(topology.reshards, looks),
        _hops(topology.reshards),
        applier_views(readers, {entry.reshard_id for entry in under_way}, now_us),
        causes[:REASONS_MAX],
    )


def _held_since_us(
    holding: list[ShardView], before: KeyspaceView | None, now_us: int
) -> int | None:
    """Return since when: the last write of a silent shard, else the first view of a late one.

    None if the first view finds a late shard: nothing shows for how long it has been late.
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
    reshards: Sequence[ReshardEntry], looks: Mapping[str, ShardEnds]
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


def _shard_view(shard: str, state: ShardState, look: ShardEnds, now_us: int) -> ShardView:
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
        look.records_per_s if condition in _ADVANCING else 0.0,
        progress.lag_ms,
        silent_ms,
        progress.server,
        progress.skipped,
        look.written_us,
        progress.flavor,
        progress.ddl,
        progress.stopped,
        progress.passed,
        progress.binlogs,
        progress.proved,
        look.retention_ms,
    )


def _has_ended(progress: Progress | None) -> bool:
    """Whether the producer has recorded that it ends, so it is silent at once."""
    stopped = None if progress is None else progress.stopped
    return stopped is not None and not stopped.restarts


def _held_by(
    keyspace: str, serving: list[ShardView]
) -> tuple[list[ShardView], str, tuple[Cause, ...]]:
    """Return the shards that hold readers back and why, in short and in full; none if none does."""
    new = [view for view in serving if view.silent_ms is None]
    if new:
        reason = f"{'has' if len(new) == 1 else 'have'} no producer yet"
        return new, reason, tuple(_never_written(keyspace, view) for view in new)
    silent = [view for view in serving if view.condition is ShardCondition.SILENT]
    if silent:
        return silent, _stopped_in_short(silent), tuple(_silent(keyspace, view) for view in silent)
    late = [view for view in serving if (view.behind_ms or 0) > SILENT_MS]
    if not late:
        return [], "", ()
    behind_s = max(view.behind_ms or 0 for view in late) // 1_000
    verb = "is" if len(late) == 1 else "are"
    reason = f"{verb} still reading what was committed {behind_s} s ago"
    return late, reason, tuple(map(_late, late))


def _stopped_in_short(silent: list[ShardView]) -> str:
    errors = sorted({view.stopped.error for view in silent if view.stopped})
    many = len(silent) != 1
    said = f"{'have' if many else 'has'} written nothing"
    if len([view for view in silent if view.stopped]) == len(silent):
        over = all(view.stopped and view.stopped.restarts for view in silent)
        said = ("start over" if many else "starts over") if over else "stopped"
    ago_s = max(view.silent_ms or 0 for view in silent) // 1_000
    since = f"for {_age(ago_s)}" if said != "stopped" else f"{_age(ago_s)} ago"
    return f"{said} {since}{': ' if errors else ''}{', '.join(errors)}"


def _age(seconds: int) -> str:
    if seconds < 2 * 60:
        return f"{seconds} s"
    minutes = seconds // 60
    return f"{minutes} min" if minutes < 2 * 60 else f"{minutes // 60} h"


# A `skip` leaves changes out of the log.
_LAST_RESORT: Final = "If nothing else helps:"
_AFTER_FIX: Final = "Once its cause is fixed:"


def _produce(keyspace: str, view: ShardView) -> str:
    return f"shardstream produce {keyspace} {view.shard}"


def _never_written(keyspace: str, view: ShardView) -> Cause:
    return Cause(view.shard, "no producer has written progress yet", _produce(keyspace, view))


def _silent(keyspace: str, view: ShardView) -> Cause:
    said = f"no progress for {(view.silent_ms or 0) // 1_000} s, last from {view.server}"
    stopped = view.stopped
    if stopped is None:
        return Cause(view.shard, said, _produce(keyspace, view))
    command, when = stopped.command, _LAST_RESORT
    if not command and not stopped.restarts:
        command, when = _produce(keyspace, view), _AFTER_FIX
    return Cause(view.shard, f"{said}; {stopped}", command, stopped.error, when=when)


def _late(view: ShardView) -> Cause:
    behind_s = (view.behind_ms or 0) // 1_000
    said = f"the producer is still reading what was committed {behind_s} s ago"
    return Cause(view.shard, said, alert="FrontierStuck")
