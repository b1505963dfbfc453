"""`switch` and `cancel`: takes the steps that `decision` chooses, on servers and topology."""

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Final, Self

from databases.connection import server_errors
from event_token import GtidSet
from event_token.errors import Halt, UsageError
from resharding.bookkeeping import read_checkpoints
from resharding.log_progress import has_reached, last_progress
from resharding.switch.decision import (
    Action,
    JournalRow,
    Kind,
    ReshardView,
    SourceEnd,
    Step,
    next_cancel_step,
    next_switch_step,
)
from resharding.switch.readiness import check_ready
from resharding.switch.settings import SwitchReport, SwitchSettings
from resharding.switch.shard_writes import ShardWrites
from resharding.switch.topology_steps import entry_of, moved
from resharding.switch.triggers import copy_triggers, missing_triggers
from topics.errors import TopologyChanged
from topics.keyspace.topology import (
    ReshardEntry,
    ReshardState,
    Topology,
    read_topology,
    update_topology,
)
from topics.names import ShardTopics
from topics.schemas.registry import open_schema_ids
from topics.stream.log_marks import marks_at_end

# END is applied within a heartbeat and a commit; beyond this an operator must look.
AWAIT_S_MAX: Final = 60.0
AWAIT_POLL_S: Final = 0.02
# An attempt fails only when another writer of the topology gets ahead of it.
TOPOLOGY_TRIES_MAX: Final = 5

_AWAITS: Final = (Action.AWAIT_END, Action.AWAIT_DRAIN, Action.AWAIT_LOG)
Tell = Callable[[Step], None]


def run_switch(settings: SwitchSettings, tell: Tell) -> SwitchReport:
    """Switch to the targets, or resume a switch that was interrupted.

    `tell` is called with each step before it is taken. Raises UsageError when the reshard is not
    ready (nothing was changed then), Halt when it was cancelled or the targets do not reach END
    (run it again, or cancel), ServerLost when a server or the claim on it is lost.
    """
    with _Run(settings, tell) as run:
        run.check()
        run.go(next_switch_step)
        return run.report()


def run_cancel(settings: SwitchSettings, tell: Tell) -> None:
    """Return to the sources; possible until BEGIN is on the first target. Errors as above."""
    with _Run(settings, tell) as run:
        run.go(next_cancel_step)


class _Run:
    """One running command: it has claimed the servers and read the topology."""

    def __init__(self, settings: SwitchSettings, tell: Tell) -> None:
        self._settings = settings
        self._tell = tell
        self._schema_ids = open_schema_ids(settings.kafka, settings.registry_url)
        self._stack = ExitStack()
        self._topology: Topology | None = read_topology(settings.kafka, settings.keyspace)
        self._writes: dict[str, ShardWrites] = {}
        self._ends: dict[str, SourceEnd] = {}
        # What a source had executed when END was in its journal, and when the targets had END.
        self._at_end: dict[str, GtidSet] = {}
        self._at_drain: dict[str, GtidSet] = {}
        self._stopped_s: float | None = None
        self._stopped_ms: int | None = None
        self._hop_time_us: int | None = None

    def __enter__(self) -> Self:
        try:
            entry = self._entry
            for shard in (*entry.targets, *entry.sources):
                server = self._settings.server_of(shard)
                writes = ShardWrites(server, entry.reshard_id, self._settings.accounts)
                self._stack.callback(writes.close)
                self._writes[shard] = writes
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stack.close()

    @property
    def _entry(self) -> ReshardEntry:
        return entry_of(self._topology, self._settings.keyspace, self._settings.reshard_id)

    @property
    def _databases(self) -> frozenset[str]:
        assert self._topology is not None  # noqa: S101 - it has the reshard
        return frozenset(vindex.database for vindex in self._topology.vindexes)

    def check(self) -> None:
        """Check that everything is ready, unless it is decided already how the reshard ends."""
        entry = self._entry
        rows = [writes.journal() for writes in self._writes.values()]
        kinds = {row.kind for row in rows if row is not None}
        if entry.state == ReshardState.RUNNING.value and kinds <= {Kind.END}:
            has_stopped = bool(kinds)
            check_ready(
                self._settings, entry, self._writes, self._databases, has_stopped=has_stopped
            )

    def go(self, decide: Callable[[ReshardView], Step]) -> None:
        """Take one step after the other until done or refused."""
        deadline_s: float | None = None
        while True:
            view = self._view()
            step = decide(view)
            if step.action is Action.DONE:
                self._hop_time_us = view.journal[view.decider].hop_time_us
                return
            if step.action is Action.REFUSE:
                raise Halt(f"reshard {self._settings.reshard_id}: {step.why}")
            if step.action in _AWAITS:
                deadline_s = deadline_s or time.monotonic() + AWAIT_S_MAX
                if time.monotonic() > deadline_s:
                    raise Halt(self._overdue(step, view))
                time.sleep(AWAIT_POLL_S)
                continue
            self._tell(step)
            self._do(step, view)

    def report(self) -> SwitchReport:
        """The result of a finished switch."""
        return SwitchReport(self._hop_time_us, self._stopped_ms)

    def _view(self) -> ReshardView:
        entry = self._entry
        shards = (*entry.targets, *entry.sources)
        journal = {s: row for s in shards if (row := self._writes[s].journal()) is not None}
        view = ReshardView(
            sources=entry.sources,
            targets=entry.targets,
            state=ReshardState(entry.state),
            journal=journal,
        )
        if view.decision is None:
            quiet = frozenset(s for s in shards if self._writes[s].is_quiet())
            return self._drain(replace(view, quiet=quiet))
        open_ones = frozenset(s for s in shards if self._writes[s].is_open())
        return replace(view, open=open_ones, restored=self._restored(view))

    def _drain(self, view: ReshardView) -> ReshardView:
        """Add ENDs and checkpoints once END is in the journal of every source."""
        if any(source not in view.journal for source in view.sources):
            return view
        for source in view.sources:
            if source not in self._ends:
                # END is looked for only in a log that has the present primary's: an older END may
                # have been written to a server that was lost.
                if not self._is_logged(source, self._at_end):
                    return replace(view, ends=dict(self._ends))
                topics = ShardTopics(self._settings.keyspace, source)
                marks = marks_at_end(
                    self._settings.kafka,
                    topics,
                    self._schema_ids,
                    self._databases.__contains__,
                )
                mark = marks.get(self._settings.reshard_id)
                if mark is None or mark.kind != Kind.END.value:
                    return replace(view, ends=dict(self._ends))
                self._ends[source] = SourceEnd(mark.seq, mark.timestamp_us)
        checkpoints: dict[tuple[str, str], int] = {}
        for target in view.targets:
            writes = self._writes[target]
            with server_errors(writes.server, "reading the checkpoint of"):
                found = read_checkpoints(writes.connection, self._settings.reshard_id)
            checkpoints |= {(target, source): at.seq for source, at in found.items()}
        view = replace(view, ends=dict(self._ends), checkpoints=checkpoints)
        if not view.is_drained:
            return view
        logged = frozenset(s for s in view.sources if self._is_logged(s, self._at_drain))
        return replace(view, logged=logged)

    def _is_logged(self, source: str, executed: dict[str, GtidSet]) -> bool:
        """Whether a source's log has reached what its server had executed when asked first."""
        if source not in executed:
            executed[source] = self._writes[source].executed()
        progress = last_progress(
            self._settings.kafka, self._settings.keyspace, source, self._schema_ids
        )
        return has_reached(progress, executed[source])

    def _restored(self, view: ReshardView) -> frozenset[str]:
        if view.decision is not Kind.BEGIN or view.state is not ReshardState.SWITCHED:
            return frozenset()
        source = self._writes[min(view.sources)]
        return frozenset(
            target
            for target in view.targets
            if not missing_triggers(source, self._writes[target], self._databases)
        )

    def _do(self, step: Step, view: ReshardView) -> None:
        shards = (json.dumps(sorted(view.sources)), json.dumps(sorted(view.targets)))
        if step.action is Action.CHANGE_TOPOLOGY:
            self._change_topology(step)
            return
        writes = self._writes[step.shard]
        match step.action:
            case Action.STOP_WRITES:
                if step.shard in view.sources and self._stopped_s is None:
                    self._stopped_s = time.monotonic()
                writes.stop_writes()
            case Action.WRITE_END:
                writes.check_primary()
                writes.check_nothing_prepared()
                writes.insert(JournalRow(Kind.END), shards)
            case Action.WRITE_BEGIN:
                for shard in (*view.sources, step.shard):
                    self._writes[shard].check_primary()
                writes.insert(JournalRow(Kind.BEGIN, step.hop_time_us), shards)
            case Action.WRITE_CANCELLED:
                if step.shard in view.journal:
                    writes.cancel_end()
                else:
                    writes.insert(JournalRow(Kind.CANCELLED), shards)
            case Action.RESTORE_TRIGGERS:
                copy_triggers(self._writes[min(view.sources)], writes, self._databases)
            case Action.OPEN_WRITES:
                writes.open_writes()
                if self._stopped_s is not None:
                    self._stopped_ms = round((time.monotonic() - self._stopped_s) * 1000)
            case _:
                raise UsageError(f"{step} is no step on a shard")

    def _change_topology(self, step: Step) -> None:
        settings = self._settings
        state = step.state
        if state is None:
            raise UsageError(f"{step} has no state")
        for _ in range(TOPOLOGY_TRIES_MAX):
            try:
                self._topology = update_topology(
                    settings.kafka,
                    settings.keyspace,
                    lambda before: moved(
                        before, settings.keyspace, settings.reshard_id, state, step.hop_time_us
                    ),
                )
            except TopologyChanged:
                continue
            return
        raise Halt(f"the topology of {settings.keyspace} kept changing: run the command again")

    def _overdue(self, step: Step, view: ReshardView) -> str:
        seqs = ", ".join(
            f"END of {source} is seq {end.seq}, the target has "
            f"{view.checkpoints.get((step.shard, source))}"
            for source, end in view.ends.items()
        )
        who = (
            f"its applier ({seqs})"
            if step.action is Action.AWAIT_DRAIN
            else "its producer, which stops where an account that is not in `application_accounts` "
            "changed a row after END"
        )
        return (
            f"reshard {self._settings.reshard_id}: {step} took more than {AWAIT_S_MAX:g} s: check "
            f"{who}. Writes are stopped: run switch again, or cancel"
        )
