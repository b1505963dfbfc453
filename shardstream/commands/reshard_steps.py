"""`shardstream reshard create|run|status`: from settings and topology to the resharding package."""

import dataclasses
import json
import signal
import sys
import threading
import time
from collections.abc import Sequence
from types import FrameType

from rich.console import Console

from databases.connection import server_errors
from event_token.errors import UsageError
from resharding.apply.applier import ApplierSettings, ApplierStatus, run_applier
from resharding.bookkeeping import Checkpoint, read_checkpoints, read_plan
from resharding.plan.create import CreateRequest, create_reshard
from resharding.plan.reshard_plan import ReshardPlan
from resharding.server import ReshardServer, open_session
from shardstream.commands.keyspace_topology import ensure_topology
from shardstream.settings.model import Settings
from shardstream.settings.producers import filter_settings, topic_settings
from shardstream.settings.reshard_servers import reshard_server
from topics.kafka.partition_reader import read_tail
from topics.keyspace.topology import ReshardEntry, read_topology
from topics.names import ShardTopics
from topics.progress.codec import decode_progress
from topics.schemas.registry import open_schema_ids


def run_create(
    settings: Settings,
    keyspace: str,
    reshard_id: str,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    from_log: bool,
) -> None:
    """Create a reshard and say what comes next."""
    _refuse_filtered(settings, keyspace)
    ensure_topology(settings, keyspace)
    request = CreateRequest(
        reshard_id=reshard_id,
        keyspace=keyspace,
        sources=tuple(sorted(sources)),
        targets=tuple(sorted(targets)),
        servers={s: reshard_server(settings, keyspace, s) for s in (*sources, *targets)},
        kafka=settings.kafka_client(),
        registry_url=settings.kafka.schema_registry_url,
        topic_settings=topic_settings(settings),
        from_log=from_log,
    )
    plan = create_reshard(request)
    console = Console(soft_wrap=True, highlight=False)
    console.print(
        f"reshard {reshard_id}: {', '.join(plan.sources)} to {', '.join(plan.targets)}, "
        f"{len(plan.tables)} table(s). Now run for each target T:",
        markup=False,
    )
    console.print(f"  shardstream produce {keyspace} T", markup=False)
    console.print(f"  shardstream reshard run {keyspace} {reshard_id} T", markup=False)


def _refuse_filtered(settings: Settings, keyspace: str) -> None:
    """UsageError where filter rules keep rows or columns of a sharded table out of the logs."""
    filters = filter_settings(settings, keyspace)
    names = [(table.database, table.table) for table in settings.keyspace(keyspace).vindexes]
    filtered = [
        ".".join(name)
        for name in names
        if not filters.includes(*name) or filters.rule_for(*name) is not None
    ]
    if filtered:
        raise UsageError(
            f"keyspace {keyspace}: filter rules bear on {', '.join(filtered)}, so the logs do not "
            f"hold these tables whole, and the targets of a reshard would lack what is left out"
        )


def run_apply(
    settings: Settings,
    keyspace: str,
    reshard_id: str,
    target: str,
    accepted_ddl: Sequence[str],
    *,
    as_json: bool,
) -> None:
    """Apply to one target until SIGINT or SIGTERM."""
    entry = reshard_entry(settings, keyspace, reshard_id)
    if target not in entry.targets:
        raise UsageError(
            f"reshard {reshard_id} has the targets {', '.join(entry.targets)}, not {target}"
        )
    server = reshard_server(settings, keyspace, target)
    stop = threading.Event()

    def ask_to_stop(_signal: int, _frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGINT, ask_to_stop)
    signal.signal(signal.SIGTERM, ask_to_stop)
    plan = plan_on(server, reshard_id)
    if not as_json:
        sys.stdout.write(f"{target}: following {', '.join(entry.sources)}\n")
        sys.stdout.flush()
    run_applier(
        ApplierSettings(
            plan=plan,
            target=server,
            kafka=settings.kafka_client(),
            registry_url=settings.kafka.schema_registry_url,
            accepted_ddl=frozenset(accepted_ddl),
        ),
        stop,
        lambda status: _say(status, as_json=as_json),
    )


def _say(status: ApplierStatus, *, as_json: bool) -> None:
    if as_json:
        text = json.dumps(dataclasses.asdict(status))
    else:
        seqs = ", ".join(f"{source} seq {seq}" for source, seq in status.seqs.items())
        text = (
            f"{status.target}: {status.rows_total} rows, {status.rows_per_s:.0f} rows/s, "
            f"{status.behind_ms} ms behind; {status.note or seqs}"
        )
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def reshard_entry(settings: Settings, keyspace: str, reshard_id: str) -> ReshardEntry:
    """The topology's entry; UsageError names those that there are."""
    settings.keyspace(keyspace)
    topology = read_topology(settings.kafka_client(), keyspace)
    reshards = () if topology is None else topology.reshards
    for entry in reshards:
        if entry.reshard_id == reshard_id:
            return entry
    known = ", ".join(entry.reshard_id for entry in reshards) or "none"
    raise UsageError(f"keyspace {keyspace} has no reshard {reshard_id!r}; there are: {known}")


def plan_on(server: ReshardServer, reshard_id: str) -> ReshardPlan:
    """The reshard's plan as a target holds it."""
    connection = open_session(server)
    try:
        with server_errors(server, "reading the reshard's plan on"):
            plan = read_plan(connection, reshard_id, server.name)
    finally:
        connection.close()
    if plan is None:
        raise UsageError(f"{server.name} is no target of reshard {reshard_id}: create it first")
    return plan


def run_status(settings: Settings, keyspace: str, *, as_json: bool) -> None:
    """Print each reshard; of those under way, how far each target has each source."""
    settings.keyspace(keyspace)
    topology = read_topology(settings.kafka_client(), keyspace)
    entries = () if topology is None else topology.reshards
    if not entries and not as_json:
        sys.stdout.write(f"keyspace {keyspace} has no reshards\n")
    states = {} if topology is None else {s.name: s.state.value for s in topology.shards}
    for entry in entries:
        under_way = any(states.get(target) == "TARGET" for target in entry.targets)
        targets = {
            target: _target_status(settings, keyspace, entry, target) if under_way else {}
            for target in entry.targets
        }
        if as_json:
            sys.stdout.write(json.dumps({**dataclasses.asdict(entry), "behind": targets}) + "\n")
            continue
        sys.stdout.write(
            f"{entry.reshard_id}: {', '.join(entry.sources)} to {', '.join(entry.targets)}, "
            f"{entry.state}\n"
        )
        for target, sources in targets.items():
            for source, (seq, last_seq, age_ms) in sources.items():
                sys.stdout.write(
                    f"  {target} has {source} up to seq {seq} of {last_seq}; its last change is "
                    f"{age_ms} ms old\n"
                )


def _target_status(
    settings: Settings, keyspace: str, entry: ReshardEntry, target: str
) -> dict[str, tuple[int, int, int]]:
    """Per source: seq applied, last seq of the log, age of the last change applied in ms."""
    server = reshard_server(settings, keyspace, target)
    connection = open_session(server)
    try:
        with server_errors(server, "reading the checkpoint of"):
            found = read_checkpoints(connection, entry.reshard_id)
    finally:
        connection.close()
    return {source: _source_status(settings, keyspace, at) for source, at in found.items()}


def _source_status(settings: Settings, keyspace: str, at: Checkpoint) -> tuple[int, int, int]:
    client = settings.kafka_client()
    schema_ids = open_schema_ids(client, settings.kafka.schema_registry_url)
    last = read_tail(client, ShardTopics(keyspace, at.source).progress).last
    last_seq = 0 if last is None else decode_progress(last.value, schema_ids).last_seq
    age_ms = max(0, time.time_ns() // 1_000_000 - at.timestamp_us // 1_000)
    return at.seq, last_seq, age_ms
