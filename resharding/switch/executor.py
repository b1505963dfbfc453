"""`switch` and `cancel`: takes the steps that `decision` chooses, on servers, logs and topology.

Where they stop, the message names the commands that go on from there.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Self

from databases.errors import ServerLost
from event_token import Flavor
from event_token.errors import Halt, Rebuild, Retry, UsageError
from resharding.switch.complete import remove_reports
from resharding.switch.decision import (
    Action,
    JournalRow,
    NextCommand,
    ReshardView,
    SwitchStep,
    decided,
    entry_of,
    moved,
    next_cancel_step,
    next_switch_step,
)
from resharding.switch.observer import Observer
from resharding.switch.opening import check_ready, prepare
from resharding.switch.shard_writes import Claims, SwitchReport, SwitchSettings
from topics.keyspace.topology import (
    ReshardEntry,
    ReshardState,
    Topology,
    TopologyFence,
    read_topology,
)
from topics.names import ShardTopics
from topics.progress.committed_tail import last_progress
from topics.progress.record import JournalKind, Mark, MarkKind
from topics.schemas import open_schema_ids
from topics.stream.target_marks import TargetMarks


def command_line(way: NextCommand, settings: SwitchSettings) -> str:
    """The command line of a next command; `create` needs its shards, too."""
    if way is NextCommand.CREATE:
        return f"{way.value} {settings.keyspace} ID ..."
    verb, _, option = way.value.partition(" --")
    return f"{verb} {settings.keyspace} {settings.reshard_id}" + (f" --{option}" if option else "")


def refused(step: SwitchStep, settings: SwitchSettings) -> str:
    """The message of a refusal."""
    said = f"reshard {settings.reshard_id}: {step.why}"
    if not step.ways:
        return said
    return said + ": " + " or ".join(f"`{command_line(way, settings)}`" for way in step.ways)


def overdue(step: SwitchStep, view: ReshardView, settings: SwitchSettings, seconds: float) -> str:
    """The message when something did not come for so long."""
    ends = {source: end.seq for source, end in view.ends.items()}
    if view.decision is not None:
        ends = dict(view.decision.ends)
    if step.action is Action.AWAIT_DRAIN:
        seqs = ", ".join(
            f"END of {source} is seq {seq}, the target has "
            f"{view.checkpoints.get((step.shard, source))}"
            for source, seq in ends.items()
        )
        who = f"its applier ({seqs})"
    elif step.action is Action.AWAIT_BEGIN:
        who = f"the producer of {step.shard}"
    else:
        who = (
            "its producer, which stops where an account that is not in `application_accounts` "
            "changed a row after END, and the appliers, which stop where one changed or emptied a "
            "table"
        )
    ways = [NextCommand.SWITCH]
    if view.state is ReshardState.RUNNING:
        ways.append(NextCommand.CANCEL if view.decision is None else NextCommand.CANCEL_LOST_TARGET)
    commands = " or ".join(f"`{command_line(way, settings)}`" for way in ways)
    return (
        f"reshard {settings.reshard_id}: {step} took more than {seconds:g} s: check {who}. Writes "
        f"are stopped: {commands}"
    )


# END is applied within a heartbeat and a commit; beyond this an operator must look.
AWAIT_S_MAX: Final = 60.0
AWAIT_POLL_S: Final = 0.02
# An attempt fails only when another writer gets ahead of it, or a broker is lost meanwhile.
TOPOLOGY_TRIES_MAX: Final = 5

_AWAITS: Final = (Action.AWAIT_END, Action.AWAIT_DRAIN, Action.AWAIT_LOG, Action.AWAIT_BEGIN)
OnStep = Callable[[SwitchStep], None]


def run_switch(
    settings: SwitchSettings, on_step: OnStep, *, lost_source: bool = False
) -> SwitchReport:
    """Switch to the targets, or resume a switch that was interrupted.

    `on_step` is called with each step before it is taken. `lost_source`: after the decision that
    the targets begin, sources without a server that answers count as lost. Raises UsageError when
    the reshard is not ready (nothing was changed then), Halt when it cannot go on (the message
    names the command that can), ServerLost when a server or the claim on it is lost.
    """
    with _explained(settings), _Run(settings, on_step) as run:
        run.check()
        return run.switch(lost_source=lost_source)


def run_cancel(settings: SwitchSettings, on_step: OnStep, *, lost_target: bool = False) -> None:
    """Return to the sources; needs no target.

    Possible until it is decided that the targets begin, and with `lost_target` until all of their
    logs hold BEGIN. Errors as above.
    """
    with _explained(settings), _Run(settings, on_step) as run:
        run.cancel(lost_target=lost_target)
    remove_reports(settings)


@contextmanager
def _explained(settings: SwitchSettings) -> Iterator[None]:
    """Explain a lost session: a later command ends it, and so do failures."""
    try:
        yield
    except ServerLost as error:
        raise ServerLost(
            f"{error}. The server is lost, or a later `switch` or `cancel` has taken over: "
            f"`shardstream reshard status {settings.keyspace}` says what is next"
        ) from error


@contextmanager
def _resumable(settings: SwitchSettings) -> Iterator[None]:
    """Say what to do when Kafka is away in the middle: writes may be stopped."""
    try:
        yield
    except Retry as error:
        raise Retry(
            f"{error}. Writes may be stopped: as soon as Kafka answers, run the command again, or "
            f"see `shardstream reshard status {settings.keyspace}`"
        ) from error


class _Run:
    """One running command: it has claimed the servers and read the topology."""

    def __init__(self, settings: SwitchSettings, on_step: OnStep) -> None:
        self._settings = settings
        self._on_step = on_step
        self._schema_ids = open_schema_ids(settings.kafka, settings.registry_url)
        self._topology: Topology | None = read_topology(settings.kafka, settings.keyspace)
        self._fence: TopologyFence | None = None
        self._topology_tries = 0
        self._target_marks = TargetMarks(
            settings.kafka, settings.keyspace, settings.reshard_id, self._schema_ids
        )
        entry = self._entry
        self._claims = Claims(settings, (*entry.targets, *entry.sources))
        # Again: the command that was ended may have changed it.
        self._topology = read_topology(settings.kafka, settings.keyspace)
        self._databases = self._known.sharded_databases
        self._observer = Observer(
            settings, self._known, self._schema_ids, self._claims, self._target_marks
        )
        self._stopped_s: float | None = None
        self._stopped_ms: int | None = None
        self._has_opened = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._drop_fence()
        self._claims.close()

    @property
    def _known(self) -> Topology:
        assert self._topology is not None  # noqa: S101 - it has the reshard
        return self._topology

    @property
    def _entry(self) -> ReshardEntry:
        return entry_of(self._topology, self._settings.keyspace, self._settings.reshard_id)

    def check(self) -> None:
        """Check that everything is ready, unless it is decided already how the reshard ends."""
        entry = self._entry
        if entry.state != ReshardState.RUNNING.value or entry.decision or self._claims.missing:
            return
        if self._target_marks.look(entry.targets):
            return
        rows = [writes.journal() for writes in self._claims.writes.values()]
        kinds = {row.kind for row in rows if row is not None}
        if JournalKind.CANCELLED not in kinds:
            check_ready(
                self._settings,
                entry,
                self._claims.writes,
                self._databases,
                has_stopped=bool(kinds),
            )

    def switch(self, *, lost_source: bool) -> SwitchReport:
        """Take the steps of `switch`."""

        def step() -> tuple[SwitchStep, ReshardView]:
            fenced = self._fence is not None
            view = self._observer.for_switch(self._entry, fenced=fenced)
            return next_switch_step(view, lost_source=lost_source), view

        with _resumable(self._settings):
            view = self._go(step)
        lost = view.lost_sources if self._has_opened else {}
        return SwitchReport(self._entry.hop_time_us, self._stopped_ms, lost)

    def cancel(self, *, lost_target: bool) -> None:
        """Take the steps of `cancel`."""

        def step() -> tuple[SwitchStep, ReshardView]:
            view = self._observer.for_cancel(self._entry, fenced=self._fence is not None)
            return next_cancel_step(view, lost_target=lost_target), view

        with _resumable(self._settings):
            self._go(step)

    def _go(self, decide: Callable[[], tuple[SwitchStep, ReshardView]]) -> ReshardView:
        """Take one step after the other until done or refused; return the last view."""
        awaited: SwitchStep | None = None
        deadline_s = 0.0
        while True:
            step, view = decide()
            if step.action is Action.DONE:
                return view
            if step.action is Action.REFUSE:
                raise Halt(refused(step, self._settings))
            if step.action in _AWAITS:
                if awaited is None or awaited.action is not step.action:
                    awaited, deadline_s = step, time.monotonic() + AWAIT_S_MAX
                if time.monotonic() > deadline_s:
                    raise Halt(overdue(step, view, self._settings, AWAIT_S_MAX))
                time.sleep(AWAIT_POLL_S)
                continue
            awaited = None
            if step.action is not Action.FENCE:  # it changes nothing
                self._on_step(step)
            self._do(step, view)

    def _do(self, step: SwitchStep, view: ReshardView) -> None:
        match step.action:
            case Action.FENCE | Action.DECIDE | Action.CHANGE_TOPOLOGY:
                self._do_topology(step)
            case Action.APPEND_CANCEL:
                self._append_cancel(step.shard, view)
            case _:
                self._do_on_server(step, view)

    def _do_on_server(self, step: SwitchStep, view: ReshardView) -> None:
        shards = (json.dumps(sorted(view.sources)), json.dumps(sorted(view.targets)))
        writes = self._claims.writes[step.shard]
        match step.action:
            case Action.STOP_WRITES:
                if step.shard in view.sources and self._stopped_s is None:
                    self._stopped_s = time.monotonic()
                writes.stop_writes()
            case Action.WRITE_END:
                writes.check_primary()
                writes.check_nothing_prepared()
                writes.insert(JournalRow(JournalKind.END), shards)
            case Action.WRITE_BEGIN if step.decision is not None:
                for shard in {*view.sources, step.shard} - view.missing.keys():
                    self._claims.writes[shard].check_primary()
                writes.insert(JournalRow(JournalKind.BEGIN, step.decision.hop_time_us), shards)
            case Action.WRITE_CANCELLED:
                writes.check_primary()
                if step.shard in view.journal:
                    writes.cancel_end()
                else:
                    writes.insert(JournalRow(JournalKind.CANCELLED), shards)
            case Action.RESTORE_TRIGGERS:
                prepare(self._claims.of(view.sources), writes, self._databases)
            case Action.OPEN_WRITES:
                writes.check_primary()
                writes.open_writes()
                self._has_opened = True
                if self._stopped_s is not None:
                    self._stopped_ms = round((time.monotonic() - self._stopped_s) * 1000)
            case _:
                raise UsageError(f"{step} is no step on a shard")

    def _do_topology(self, step: SwitchStep) -> None:
        """Fence or write. Fenced by another, or with an unknown outcome: all is looked at again."""
        keyspace, reshard_id = self._settings.keyspace, self._settings.reshard_id
        try:
            if self._fence is None:
                self._fence = TopologyFence(self._settings.kafka, keyspace, self._settings.reason)
                self._topology = self._fence.read()
                return
            before = self._known
            if step.decision is not None:
                after = decided(before, keyspace, reshard_id, step.decision)
            elif step.state is not None:
                after = moved(before, keyspace, reshard_id, step.state)
            else:
                raise UsageError(f"{step} has neither a decision nor a state")
            self._fence.write(before, after)
            self._topology = after
        except (Retry, Rebuild) as error:
            self._drop_fence()
            self._topology_tries += 1
            if self._topology_tries >= TOPOLOGY_TRIES_MAX:
                raise Halt(
                    f"the topology of {keyspace} could not be changed in {TOPOLOGY_TRIES_MAX} "
                    f"attempts ({error}): run the command again"
                ) from error
            self._topology = read_topology(self._settings.kafka, keyspace)

    def _append_cancel(self, target: str, view: ReshardView) -> None:
        """Write CANCEL into the log of a target; a lost server does not matter."""
        settings = self._settings
        flavor = Flavor.MYSQL.value
        for source in view.sources:
            topics = ShardTopics(settings.keyspace, source)
            found = last_progress(settings.kafka, topics, self._schema_ids)
            flavor = flavor if found is None else found.flavor
        hop_times_us = [mark.hop_time_us or 0 for mark in view.marks.values()]
        if view.decision is not None:
            hop_times_us.append(view.decision.hop_time_us)
        cancel = Mark(
            MarkKind.CANCEL, -1, settings.reshard_id, view.sources, view.targets, hop_time_us=None
        )
        self._target_marks.append_cancel(target, cancel, flavor, max(hop_times_us, default=0))

    def _drop_fence(self) -> None:
        if self._fence is not None:
            self._fence.close()
            self._fence = None
