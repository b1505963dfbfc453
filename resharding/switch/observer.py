"""Looks at servers, logs and marks for `decision`, at what a step depends on and no more."""

from collections.abc import Iterable
from dataclasses import replace

from databases.connection import server_errors
from event_token import GtidSet
from resharding.bookkeeping import read_checkpoints
from resharding.progress import later_reshards
from resharding.switch.decision import FirstMark, ReshardView, SourceEnd
from resharding.switch.opening import aside_problems, is_prepared
from resharding.switch.shard_writes import Claims, SwitchSettings
from topics.keyspace.topology import ReshardEntry, ReshardState, Topology
from topics.names import ShardTopics
from topics.progress.committed_tail import has_reached, last_progress
from topics.progress.record import JournalKind
from topics.records.table_shape import SchemaIds
from topics.stream.target_marks import TargetMarks, marks_at_end


class Observer:
    """Observes one reshard for one command."""

    def __init__(
        self,
        settings: SwitchSettings,
        topology: Topology,
        schema_ids: SchemaIds,
        claims: Claims,
        marks: TargetMarks,
    ) -> None:
        """`topology`: as it is since the servers are claimed."""
        self._settings = settings
        self._databases = topology.sharded_databases
        self._topology = topology
        self._schema_ids = schema_ids
        self._claims = claims
        self._target_marks = marks
        self._marks: dict[str, FirstMark] | None = None
        self._ends: dict[str, SourceEnd] = {}
        # What a source had executed when END was in its journal, and when the targets had END; the
        # last seq of its log when it had reached the latter.
        self._at_end: dict[str, GtidSet] = {}
        self._at_drain: dict[str, GtidSet] = {}
        self._seq_at_drain: dict[str, int] = {}

    def for_cancel(self, entry: ReshardEntry, *, fenced: bool) -> ReshardView:
        """What `cancel` depends on: of servers the sources alone, once it is cancelled."""
        view = self._base(entry, fenced=fenced)
        if view.state is not ReshardState.CANCELLED:
            return view
        here = [source for source in view.sources if source not in view.missing]
        view = self._with_journal(view, here)
        return replace(view, open=self._open(here), held=self._held(here))

    def for_switch(self, entry: ReshardEntry, *, fenced: bool) -> ReshardView:
        """What `switch` depends on."""
        view = self._base(entry, fenced=fenced)
        if view.cancelled or view.state not in {ReshardState.RUNNING, ReshardState.SWITCHED}:
            return view
        if view.state is ReshardState.SWITCHED:
            return self._opening(view)
        # A target that has begun needs no server before it is opened.
        silent = [t for t in view.targets if t not in view.missing and t not in view.begun]
        here = [*silent, *(source for source in view.sources if source not in view.missing)]
        view = replace(self._with_journal(view, here), quiet=self._quiet(here))
        if view.decision is not None:
            return replace(view, checkpoints=self._checkpoints(silent))
        if view.begun:
            return replace(view, ends=self._ends_in_logs(view))
        return view if view.missing else self._drain(view)

    def _base(self, entry: ReshardEntry, *, fenced: bool) -> ReshardView:
        # Marks are looked at where they may change what comes next.
        if self._marks is None or fenced or entry.decision is not None:
            found = self._target_marks.look(entry.targets)
            self._marks = {t: FirstMark(m.kind, m.hop_time_us) for t, m in found.items()}
        return ReshardView(
            sources=entry.sources,
            targets=entry.targets,
            state=ReshardState(entry.state),
            decision=entry.decision,
            fenced=fenced,
            marks=self._marks,
            missing=self._claims.missing,
            gone=frozenset(self._claims.gone),
        )

    def _with_journal(self, view: ReshardView, shards: Iterable[str]) -> ReshardView:
        writes = self._claims.writes
        journal = {s: row for s in shards if (row := writes[s].journal()) is not None}
        return replace(view, journal=journal)

    def _quiet(self, shards: Iterable[str]) -> frozenset[str]:
        return frozenset(s for s in shards if self._claims.writes[s].is_quiet())

    def _open(self, shards: Iterable[str]) -> frozenset[str]:
        return frozenset(s for s in shards if self._claims.writes[s].is_open())

    def _held(self, shards: Iterable[str]) -> frozenset[str]:
        topology, reshard_id = self._topology, self._settings.reshard_id
        return frozenset(
            s
            for s in shards
            if self._claims.writes[s].ended_by() & later_reshards(topology, s, reshard_id)
        )

    def _opening(self, view: ReshardView) -> ReshardView:
        targets = [target for target in view.targets if target not in view.missing]
        sources = [source for source in view.sources if source not in view.missing]
        opened, held = self._open(targets), self._held(targets)
        answering = self._claims.of(sources)
        # Only those still closed are looked at: writes are stopped meanwhile.
        unprepared = {
            target
            for target in set(targets) - opened - held
            if answering
            and not is_prepared(answering, self._claims.writes[target], self._databases)
        }
        return replace(
            view,
            quiet=self._quiet(sources),
            open=opened,
            held=held,
            checkpoints=self._checkpoints(targets),
            restored=frozenset(targets) - unprepared,
        )

    def _drain(self, view: ReshardView) -> ReshardView:
        """Add ENDs and checkpoints once END is in the journal of every source."""
        if any(source not in view.journal for source in view.sources):
            return view
        for source in view.sources:
            if source not in self._ends:
                # END is looked for only in a log that has the present primary's: an older END may
                # have been written to a server that was lost.
                if self._logged_seq(source, self._at_end) is None:
                    return replace(view, ends=dict(self._ends))
                end = self._end_in_log(source)
                if end is None:
                    return replace(view, ends=dict(self._ends))
                self._ends[source] = end
        view = replace(view, ends=dict(self._ends), checkpoints=self._checkpoints(view.targets))
        if not view.is_drained:
            return view
        logged = frozenset(s for s in view.sources if self._is_passed(s, view))
        is_complete = len(logged) == len(view.sources)
        return replace(view, logged=logged, aside=self._aside(view.targets) if is_complete else {})

    def _aside(self, targets: Iterable[str]) -> dict[str, list[str]]:
        """What is aside on targets that have everything, and what keeps it there."""
        found = {}
        for target in targets:
            writes = self._claims.writes[target]
            if waiting := aside_problems(writes, self._settings.reshard_id):
                found[target] = waiting
        return found

    def _is_passed(self, source: str, view: ReshardView) -> bool:
        """Whether log and appliers have passed all that the source executed before the drain.

        The producer stops at a row behind END, an applier at a statement that changes a table.
        """
        if source not in self._seq_at_drain:
            seq = self._logged_seq(source, self._at_drain)
            if seq is None:
                return False
            self._seq_at_drain[source] = seq
        return all(view.has_drained(t, {source: self._seq_at_drain[source]}) for t in view.targets)

    def _ends_in_logs(self, view: ReshardView) -> dict[str, SourceEnd]:
        found = {source: self._end_in_log(source) for source in view.sources}
        return {source: end for source, end in found.items() if end is not None}

    def _end_in_log(self, source: str) -> SourceEnd | None:
        topics = ShardTopics(self._settings.keyspace, source)
        marks = marks_at_end(
            self._settings.kafka, topics, self._schema_ids, self._databases.__contains__
        )
        mark = marks.get(self._settings.reshard_id)
        if mark is None or mark.kind is not JournalKind.END:
            return None
        return SourceEnd(mark.seq, mark.timestamp_us)

    def _checkpoints(self, targets: Iterable[str]) -> dict[tuple[str, str], int]:
        checkpoints: dict[tuple[str, str], int] = {}
        for target in targets:
            writes = self._claims.writes[target]
            with server_errors(writes.server, "reading the checkpoint of"):
                found = read_checkpoints(writes.connection, self._settings.reshard_id)
            checkpoints |= {(target, source): at.seq for source, at in found.items()}
        return checkpoints

    def _logged_seq(self, source: str, executed: dict[str, GtidSet]) -> int | None:
        """The last seq of a source's log, None until it has what the server had at first."""
        if source not in executed:
            executed[source] = self._claims.writes[source].executed()
        topics = ShardTopics(self._settings.keyspace, source)
        progress = last_progress(self._settings.kafka, topics, self._schema_ids)
        reached = progress is not None and has_reached(progress, executed[source])
        return progress.last_seq if progress is not None and reached else None
