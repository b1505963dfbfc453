"""`shardstream reshard`: split and merge shards online."""

import dataclasses
import gc
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Final, TypeVar

import typer

from event_token.errors import ShardstreamError, UsageError
from resharding.apply.applier import ApplierSettings, ApplierStatus, run_applier
from resharding.bookkeeping import ReshardPlan
from resharding.create import CreateRequest, create_reshard
from resharding.definitions import SourceObject, Transfer
from resharding.progress import (
    SourceProgress,
    TargetProgress,
    next_command,
    source_log,
    source_state,
    target_state,
)
from resharding.switch.complete import run_complete
from resharding.switch.executor import run_cancel, run_switch
from resharding.verification import VerifiedTarget, VerifySettings, verify_target
from shardstream.commands.audit import recorded
from shardstream.commands.options import (
    SHARD_NAMES,
    CommandLine,
    Config,
    Json,
    Keyspace,
    Metrics,
    Reason,
    ReportOptions,
    observed,
    takes_fields,
)
from shardstream.commands.status_lines import Status, StatusLines, print_line, terminal
from shardstream.settings.model import Settings, load_settings
from shardstream.settings.producer_settings import ensure_topology, filter_settings, topic_settings
from shardstream.settings.reshard_settings import (
    plan_on,
    reshard_entry,
    reshard_section,
    reshard_server,
    reshard_servers,
    switch_settings,
)
from shardstream.status.probe import Probe, StatusRelay
from shardstream.stop_signals import stop_on_signals
from topics.keyspace.topology import (
    UNDER_WAY,
    ReshardEntry,
    ReshardState,
    ShardState,
    Topology,
    read_topology,
)
from topics.records.skip_record import check_accepted
from topics.stream.target_marks import TargetMarks

# A batch holds some ten thousand rows, none of them garbage: looking for it among them at every 700
# new objects, as by default, took 40 % of the applier's time.
GARBAGE_AFTER: Final = 100_000

_State = TypeVar("_State")

app = CommandLine(help="Split and merge shards online.", no_args_is_help=True)

ReshardId = Annotated[str, typer.Argument(help="Id of the reshard, chosen at its creation")]


@app.command(context_settings=SHARD_NAMES)
def create(
    keyspace: Keyspace,
    reshard_id: ReshardId,
    source: Annotated[list[str], typer.Option("--source", help="A serving shard; repeatable")],
    target: Annotated[list[str], typer.Option("--target", help="A new shard; repeatable")],
    config: Config = None,
    *,
    reason: Reason = "",
    from_log: Annotated[
        bool,
        typer.Option("--from-log", help="Do not copy, because the logs contain all rows"),
    ] = False,
    accept_auto_increment: Annotated[
        bool,
        typer.Option(
            "--accept-auto-increment",
            help="Accept AUTO_INCREMENT columns: no two shards generate the same value",
        ),
    ] = False,
) -> None:
    """Check everything, create the tables on the targets and start copying the sources."""
    settings = load_settings(config)
    _refuse_filtered(settings, keyspace)
    ensure_topology(settings, keyspace)
    request = CreateRequest(
        reshard_id=reshard_id,
        keyspace=keyspace,
        sources=tuple(sorted(source)),
        targets=tuple(sorted(target)),
        servers=reshard_servers(settings, keyspace, (*source, *target)),
        kafka=settings.kafka_client(),
        registry_url=settings.kafka.schema_registry_url,
        topic_settings=topic_settings(settings),
        from_log=from_log,
        accept_auto_increment=accept_auto_increment,
        reason=reason,
    )
    subject = f"{reshard_id}: {', '.join(request.sources)} to {', '.join(request.targets)}"
    with recorded(settings, keyspace, "reshard create", subject, reason):
        created = create_reshard(request)
    plan = created.plan
    _print_objects(created.objects)
    console = terminal()
    console.print(
        f"reshard {reshard_id}: {', '.join(plan.sources)} to {', '.join(plan.targets)}, "
        f"{len(plan.tables)} table(s). Next, for each target T, run:",
        markup=False,
    )
    console.print(f"  shardstream produce {keyspace} T", markup=False)
    console.print(f"  shardstream reshard run {keyspace} {reshard_id} T", markup=False)


@app.command(context_settings=SHARD_NAMES)
@takes_fields
def run(
    keyspace: Keyspace,
    reshard_id: ReshardId,
    target: Annotated[str, typer.Argument(help="Target shard, e.g. 80-c0")],
    config: Config = None,
    accept_ddl: Annotated[
        list[str] | None,
        typer.Option(
            "--accept-ddl",
            help="GTID of a DDL statement that you have also run on the target; repeatable",
        ),
    ] = None,
    accept_skip: Annotated[
        list[str] | None,
        typer.Option(
            "--accept-skip",
            help="Continue past these skipped transactions, which do not affect the target: GTIDs, "
            "or reason:TEXT for all of one reason; repeatable",
        ),
    ] = None,
    *,
    report: ReportOptions,
) -> None:
    """Run the applier of one target: apply the changes of its sources."""
    settings = load_settings(config)
    accepted_skips = frozenset(accept_skip or ())
    check_accepted(accepted_skips)
    entry = reshard_entry(settings, keyspace, reshard_id)
    if target not in entry.targets:
        raise UsageError(
            f"reshard {reshard_id} has the targets {', '.join(entry.targets)}, not {target}"
        )
    if entry.state == ReshardState.CANCELLED.value:
        raise UsageError(
            f"reshard {reshard_id} is CANCELLED, so its targets are no longer filled: empty "
            f"them, and create another reshard"
        )
    server, stop = reshard_server(settings, keyspace, target), stop_on_signals()
    plan = plan_on(server, reshard_id)
    if not report.as_json:
        text = f"following {', '.join(entry.sources)}"
        print_line(f"{keyspace}/{target}", text, {}, as_json=False)
    probe = Probe(is_ready=True)
    printer = _StatusPrinter(plan, report.lines())
    watched = StatusRelay(printer, probe, lambda status: status.note)

    def families() -> Metrics:
        from shardstream.status.metrics.processes import applier_families

        return applier_families(keyspace, reshard_id, target, watched.last)

    gc.set_threshold(GARBAGE_AFTER)
    with observed(report.http, probe, families):
        run_applier(
            ApplierSettings(
                plan=plan,
                target=server,
                kafka=settings.kafka_client(),
                registry_url=settings.kafka.schema_registry_url,
                accepted_ddl=frozenset(accept_ddl or ()),
                accepted_skips=accepted_skips,
                find_target=lambda: reshard_server(settings, keyspace, target),
                outage_s=settings.producer.outage_s,
            ),
            stop,
            watched,
        )


@app.command()
def status(
    keyspace: Keyspace,
    config: Config = None,
    *,
    as_json: Json = False,
) -> None:
    """Show the reshards of a keyspace, and the progress of each target."""
    settings = load_settings(config)
    settings.keyspace(keyspace)
    topology = read_topology(settings.kafka_client(), keyspace)
    entries = () if topology is None else topology.reshards
    if not entries and not as_json:
        typer.echo(f"keyspace {keyspace} has no reshards")
    for entry in entries:
        assert topology is not None  # noqa: S101 - it has the entry
        is_last_cancelled = entry is entries[-1] and entry.state == ReshardState.CANCELLED.value
        found = _ReshardProgress(settings, topology, entry)
        if entry.state in UNDER_WAY or is_last_cancelled:
            found.ask()
        typer.echo(found.as_json() if as_json else found.as_text())


@app.command()
def verify(
    keyspace: Keyspace,
    reshard_id: ReshardId,
    config: Config = None,
    *,
    as_json: Json = False,
) -> None:
    """Compare sources and targets row by row at one position; exit with 1 if rows differ."""
    settings = load_settings(config)
    entry = reshard_entry(settings, keyspace, reshard_id)
    if entry.state != ReshardState.RUNNING.value:
        raise UsageError(
            f"reshard {reshard_id} is {entry.state}: there is nothing to verify, because its "
            f"sources and targets no longer hold the same rows"
        )
    is_clean = True
    for target in entry.targets:
        server = reshard_server(settings, keyspace, target)
        found = verify_target(
            VerifySettings(
                plan=plan_on(server, reshard_id),
                target=server,
                sources=reshard_servers(settings, keyspace, entry.sources),
                kafka=settings.kafka_client(),
                registry_url=settings.kafka.schema_registry_url,
            )
        )
        _print_verified(found, as_json=as_json)
        is_clean = is_clean and found.differing == 0
    if not is_clean:
        raise typer.Exit(1)


@app.command()
def switch(
    keyspace: Keyspace,
    reshard_id: ReshardId,
    config: Config = None,
    *,
    reason: Reason = "",
    force: Annotated[
        bool, typer.Option("--force", help="Switch even if verify has not passed")
    ] = False,
    lost_source: Annotated[
        bool,
        typer.Option(
            "--lost-source",
            help="After the decision, treat unreachable sources as lost",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Stop writes, mark the logs, open the targets. Run it again after any failure."""
    settings = load_settings(config)
    asked = switch_settings(settings, keyspace, reshard_id, reason, force=force)
    subject = _with_flags(reshard_id, {"--force": force, "--lost-source": lost_source})

    def print_step(step: object) -> None:
        typer.echo(json.dumps({"step": str(step)}) if as_json else str(step))

    with recorded(settings, keyspace, "reshard switch", subject, reason):
        report = run_switch(asked, print_step, lost_source=lost_source)
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(report)))
        return
    for source, found in report.lost_sources.items():
        typer.echo(
            f"{source} was treated as lost ({found}): raise AUTO_INCREMENT counters and sequences "
            f"of the targets above its values, and create those of its triggers that the targets "
            f"lack",
            err=True,
        )
    if report.stopped_ms is None:
        typer.echo("switched; an earlier run had stopped the writes")
    else:
        typer.echo(f"switched; writes were stopped for {report.stopped_ms} ms")


@app.command()
def cancel(
    keyspace: Keyspace,
    reshard_id: ReshardId,
    config: Config = None,
    *,
    reason: Reason = "",
    lost_target: Annotated[
        bool,
        typer.Option(
            "--lost-target",
            help="Cancel even after the decision, until the logs of all targets have BEGIN",
        ),
    ] = False,
) -> None:
    """Return to the sources; possible until the decision to open the targets."""
    settings = load_settings(config)
    asked = switch_settings(settings, keyspace, reshard_id, reason)
    subject = _with_flags(reshard_id, {"--lost-target": lost_target})
    with recorded(settings, keyspace, "reshard cancel", subject, reason):
        run_cancel(asked, lambda step: typer.echo(str(step)), lost_target=lost_target)
    typer.echo("cancelled; the sources are serving")


@app.command()
def complete(
    keyspace: Keyspace, reshard_id: ReshardId, config: Config = None, *, reason: Reason = ""
) -> None:
    """Remove what a finished reshard left on the servers."""
    settings = load_settings(config)
    asked = switch_settings(settings, keyspace, reshard_id, reason)
    with recorded(settings, keyspace, "reshard complete", reshard_id, reason):
        notes = run_complete(asked)
    for note in notes:
        typer.echo(note, err=True)
    typer.echo("completed")


def _with_flags(reshard_id: str, flags: Mapping[str, bool]) -> str:
    return " ".join((reshard_id, *(flag for flag, is_given in flags.items() if is_given)))


def _refuse_filtered(settings: Settings, keyspace: str) -> None:
    """UsageError when filter rules keep rows or columns of a sharded table out of the logs."""
    filters = filter_settings(settings, keyspace)
    names = [(table.database, table.table) for table in settings.keyspace(keyspace).vindexes]
    filtered = [
        ".".join(name)
        for name in names
        if not filters.includes(*name) or filters.rule_for(*name) is not None
    ]
    if filtered:
        raise UsageError(
            f"keyspace {keyspace}: filter rules apply to {', '.join(filtered)}, so the logs do not "
            f"contain these tables completely, and the targets would lack rows or columns. Remove "
            f"the rules before you reshard"
        )


def _print_objects(objects: Sequence[SourceObject]) -> None:
    """Print the objects of the sources under what becomes of them, with the scripts to run."""
    for transfer in Transfer:
        found = [each for each in objects if each.transfer is transfer]
        if found:
            typer.echo(f"{transfer.value}:")
        for each in found:
            place = f" ({each.place})" if each.place else ""
            typer.echo(f"  {each.full_name}{place}")
        if transfer in {Transfer.BEFORE_SWITCH, Transfer.AFTER_SWITCH}:
            for each in found:
                typer.echo(each.script())


class _StatusPrinter:
    """Prints every note at once, and progress when a line is due."""

    def __init__(self, plan: ReshardPlan, lines: StatusLines) -> None:
        self._plan = plan
        self._lines = lines

    def __call__(self, status: ApplierStatus) -> None:
        seqs = ", ".join(f"{source} seq {seq}" for source, seq in status.seqs.items())
        text = (
            f"{status.rows_total:,} rows, {status.rows_per_s:,.0f} rows/s, "
            f"{status.behind_ms:,} ms behind; {status.note or seqs}"
        )
        if status.skips:
            text += f"; skipped transactions passed: {status.skips}"
        if status.aside:
            text += f"; rows set aside: {status.aside}"
        named = {"keyspace": self._plan.keyspace, "reshard_id": self._plan.reshard_id}
        line = Status(
            f"{self._plan.keyspace}/{status.target}",
            text,
            {**named, **dataclasses.asdict(status)},
            progress=sum(status.seqs.values()),
            level=logging.WARNING if status.note else logging.INFO,
        )
        self._lines.report(line, at_once=bool(status.note))


class _ReshardProgress:
    """What servers and logs say of a reshard. A server that does not answer is listed as such."""

    def __init__(self, settings: Settings, topology: Topology, entry: ReshardEntry) -> None:
        self._settings, self._topology, self._entry = settings, topology, entry
        self._sources: dict[str, SourceProgress] = {}
        self._targets: dict[str, TargetProgress] = {}
        self._problems: dict[str, str] = {}
        self._next = ""

    def ask(self) -> None:
        settings, topology, entry = self._settings, self._topology, self._entry
        keyspace, kafka = topology.keyspace, settings.kafka_client()
        accounts = reshard_section(settings, keyspace).application_accounts
        schema_ids = settings.schema_ids()
        self._sources = self._each(
            entry.sources,
            lambda shard: source_state(
                topology,
                reshard_server(settings, keyspace, shard),
                accounts,
                entry.reshard_id,
                source_log(topology, shard, entry.reshard_id, kafka, schema_ids),
            ),
        )
        self._targets = self._each(
            entry.targets,
            lambda shard: target_state(
                topology, reshard_server(settings, keyspace, shard), accounts, entry.reshard_id
            ),
        )
        marks = {}
        if entry.state == ReshardState.RUNNING.value and self._has_ended():
            marks = TargetMarks(kafka, keyspace, entry.reshard_id, schema_ids).look(entry.targets)
        # A shard that a later reshard has retired is not opened by this one.
        retired = {s.name for s in topology.shards if s.state is ShardState.RETIRED}
        silent = self._problems.keys() - retired
        self._next = next_command(
            entry, keyspace, self._sources, self._targets, marks, silent=silent
        )

    def _has_ended(self) -> bool:
        """Whether a target may have a mark; reading the marks takes a while."""
        ended = any(source.log.ended_at_us is not None for source in self._sources.values())
        return ended or self._entry.decision is not None or bool(self._problems)

    def _each(self, shards: Iterable[str], read: Callable[[str], _State]) -> dict[str, _State]:
        found = {}
        for shard in shards:
            try:
                found[shard] = read(shard)
            except ShardstreamError as error:
                self._problems[shard] = str(error)
        return found

    def as_json(self) -> str:
        """All of it as one line."""
        fields = {
            **dataclasses.asdict(self._entry),
            "source_states": {s: dataclasses.asdict(at) for s, at in self._sources.items()},
            "target_states": {s: dataclasses.asdict(at) for s, at in self._targets.items()},
            "problems": self._problems,
            "next": self._next,
        }
        return json.dumps(fields)

    def as_text(self) -> str:
        """All of it for people."""
        entry = self._entry
        sources, targets = ", ".join(entry.sources), ", ".join(entry.targets)
        lines = [f"{entry.reshard_id}: {sources} to {targets}, {entry.state}"]
        for shard, source in self._sources.items():
            lines.append(f"  source {shard}: {_writes(source)}")
        for shard, target in self._targets.items():
            lines += self._target_lines(shard, target)
        lines += [f"  {shard} does not answer: {text}" for shard, text in self._problems.items()]
        lines += [f"  next: {self._next}"] if self._next else []
        return "\n".join(lines)

    def _target_lines(self, shard: str, target: TargetProgress) -> list[str]:
        applier = "runs" if target.applier_runs else "does not run"
        lines = [f"  target {shard}: its applier {applier}, {_verified(target)}"]
        if target.aside:
            lines.append(f"    set aside, as rows of other sources exclude them: {target.aside}")
        for name, at in target.applied.items():
            source = self._sources.get(name)
            of = "" if source is None else f" of {source.log.last_seq}"
            lines.append(
                f"    {name} is applied up to seq {at.seq}{of}; the last change was committed "
                f"{_age(at.at_us)} ago"
                if at.at_us
                else f"    nothing of {name} is applied yet"
            )
        return lines


def _writes(source: SourceProgress) -> str:
    if source.held:
        return "a later reshard has stopped its writes"
    if source.log.ended_at_us is not None:
        text = f"writes were stopped, END at {_time(source.log.ended_at_us)}"
        lost = ", but no account is locked: it takes writes, perhaps after a failover"
        return text if source.locked else text + lost
    if source.locked:
        return "the application's accounts are locked, and the log has no END"
    return "takes writes"


def _verified(target: TargetProgress) -> str:
    if target.verified_at_us is None:
        return "not verified"
    return f"verified {_age(target.verified_at_us)} ago, {target.differing} rows differed"


def _time(time_us: int) -> str:
    return datetime.fromtimestamp(time_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _age(time_us: int) -> str:
    seconds = max(0, round(time.time() - time_us / 1e6))
    return f"{seconds} s" if seconds < 600 else f"{seconds // 60} min"


def _print_verified(found: VerifiedTarget, *, as_json: bool) -> None:
    if as_json:
        fields = {
            **{f.name: getattr(found, f.name) for f in dataclasses.fields(found)},
            "position": found.position.to_string(),
            "named": [dataclasses.asdict(difference) for difference in found.named],
        }
        typer.echo(json.dumps(fields))
    else:
        aside = f", {found.aside} of them set aside" if found.aside else ""
        typer.echo(f"{found.target}: {found.rows} rows, {found.differing} differ{aside}")
        for difference in found.named:
            typer.echo(f"  {difference.table} {difference.key}: {difference.what}")
        if found.differing > len(found.named):
            typer.echo(f"  and {found.differing - len(found.named)} more")
