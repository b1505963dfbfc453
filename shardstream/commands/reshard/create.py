"""`shardstream reshard create`."""

from collections.abc import Sequence

from rich.console import Console

from event_token.errors import UsageError
from resharding.plan.create import CreateRequest, create_reshard
from resharding.plan.objects import Fate, SourceObject
from shardstream.commands.declared_topology import ensure_topology
from shardstream.settings.model import Settings
from shardstream.settings.producer_settings import filter_settings, topic_settings
from shardstream.settings.reshard_settings import reshard_servers


def run_create(
    settings: Settings,
    keyspace: str,
    reshard_id: str,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    from_log: bool,
    accept_auto_increment: bool,
) -> None:
    """Create a reshard; print what becomes of each object of its sources, and the next steps."""
    _refuse_filtered(settings, keyspace)
    ensure_topology(settings, keyspace)
    request = CreateRequest(
        reshard_id=reshard_id,
        keyspace=keyspace,
        sources=tuple(sorted(sources)),
        targets=tuple(sorted(targets)),
        servers=reshard_servers(settings, keyspace, (*sources, *targets)),
        kafka=settings.kafka_client(),
        registry_url=settings.kafka.schema_registry_url,
        topic_settings=topic_settings(settings),
        from_log=from_log,
        accept_auto_increment=accept_auto_increment,
    )
    created = create_reshard(request)
    plan = created.plan
    console = Console(soft_wrap=True, highlight=False)
    _print_objects(console, created.objects)
    console.print(
        f"reshard {reshard_id}: {', '.join(plan.sources)} to {', '.join(plan.targets)}, "
        f"{len(plan.tables)} table(s). Next, for each target T, run:",
        markup=False,
    )
    console.print(f"  shardstream produce {keyspace} T", markup=False)
    console.print(f"  shardstream reshard run {keyspace} {reshard_id} T", markup=False)


def _print_objects(console: Console, objects: Sequence[SourceObject]) -> None:
    for fate in Fate:
        found = [each for each in objects if each.fate is fate]
        if not found:
            continue
        console.print(f"{fate.value}:", markup=False)
        for each in found:
            place = f" ({each.place})" if each.place else ""
            console.print(f"  {each.full_name}{place}", markup=False)
        if fate in {Fate.BEFORE_SWITCH, Fate.AFTER_SWITCH}:
            for each in found:
                console.print(each.script(), markup=False)


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
            f"contain these tables completely, and the targets would lack what is left out"
        )
