"""Checks everything that must hold before writes are stopped, without changing anything."""

import time
from collections.abc import Mapping
from typing import Final

from databases.connection import server_errors
from databases.internal_tables import VERIFIED, create_internal_tables
from event_token import StreamPosition
from event_token.errors import UsageError
from resharding.bookkeeping import read_checkpoints, read_verified
from resharding.log_progress import has_reached
from resharding.plan.objects import object_problems
from resharding.progress import is_old
from resharding.switch.opening import opening_problems, read_schema, table_problems
from resharding.switch.settings import SwitchSettings
from resharding.switch.shard_writes import ShardWrites
from topics.keyspace.topology import ReshardEntry
from topics.names import ShardTopics
from topics.progress.committed_tail import last_progress
from topics.schemas.registry import open_schema_ids
from topics.stream.log_marks import marks_at_end

# Producers and appliers that need longer to catch up would prolong the write stop.
READY_S_MAX: Final = 5.0
READY_POLL_S: Final = 0.1


def check_ready(
    settings: SwitchSettings,
    entry: ReshardEntry,
    writes: Mapping[str, ShardWrites],
    databases: frozenset[str],
    *,
    has_stopped: bool,
) -> None:
    """Raise one UsageError that lists everything that prevents a switch now.

    `has_stopped`: an earlier run has begun to stop writes.
    """
    problems: list[str] = []
    for shard in (*entry.sources, *entry.targets):
        try:
            writes[shard].is_locked()
        except UsageError as error:
            problems.append(str(error))
    if not settings.force:
        for target in entry.targets:
            problems += _verify_problems(settings, writes[target], has_stopped=has_stopped)
    for source in entry.sources:
        problems += writes[source].obstacles()
    for shard in (*entry.sources, *entry.targets):
        problems += _event_problems(writes[shard], databases)
    sources = [writes[source] for source in sorted(entry.sources)]
    schemas = [read_schema(source, databases) for source in sources]
    problems += object_problems({schema.name: schema.objects for schema in schemas})
    for target in entry.targets:
        if not settings.force:
            problems += table_problems(schemas, writes[target], databases)
        problems += opening_problems(sources, schemas, writes[target], databases)
    problems += _lag_problems(settings, entry, writes, databases)
    if problems:
        text = "\n".join(f"  {problem}" for problem in problems)
        what = f"reshard {settings.reshard_id} is not ready to switch:\n{text}"
        if has_stopped:
            what += "\nWrites are stopped: fix this and run switch again, or cancel"
        raise UsageError(what)


def _verify_problems(
    settings: SwitchSettings, target: ShardWrites, *, has_stopped: bool
) -> list[str]:
    """Why a target's last comparison does not count. Its age is no matter to a resumed switch."""
    name = target.server.name
    with server_errors(target.server, "reading the result of verify on"):
        create_internal_tables(target.connection, (VERIFIED,))
        found = read_verified(target.connection, settings.reshard_id)
        checkpoints = read_checkpoints(target.connection, settings.reshard_id)
    if found is None:
        return [f"{name}: not verified: run shardstream reshard verify, or --force"]
    if found.differing:
        return [f"{name}: verify found {found.differing} rows that differ"]
    if is_old(found) and not has_stopped:
        hours = round((time.time() - found.at_us / 1e6) / 3600)
        return [f"{name}: verify is {hours} hours old: run shardstream reshard verify again"]
    verified = StreamPosition.from_string(found.position).shards
    if any(
        source not in checkpoints or checkpoints[source].seq < at.seq
        for source, at in verified.items()
    ):
        return [f"{name}: it is behind the position that verify compared: verify again"]
    return []


def _event_problems(shard: ShardWrites, databases: frozenset[str]) -> list[str]:
    marks = ", ".join(["%s"] * len(databases))
    found = shard.query(
        "SELECT event_schema, event_name FROM information_schema.events "
        f"WHERE status = 'ENABLED' AND event_schema IN ({marks}) ORDER BY 1, 2",
        tuple(sorted(databases)),
    )
    return [
        f"{shard.server.name}: event {schema}.{name} would write during the switch: disable it "
        f"(ALTER EVENT ... DISABLE), and create it on the targets after the switch"
        for schema, name in found
    ]


def _lag_problems(
    settings: SwitchSettings,
    entry: ReshardEntry,
    writes: Mapping[str, ShardWrites],
    databases: frozenset[str],
) -> list[str]:
    """Wait until logs have what their servers have executed by now, and targets have the logs."""
    deadline_s = time.monotonic() + READY_S_MAX
    schema_ids = open_schema_ids(settings.kafka, settings.registry_url)
    executed = {shard: writes[shard].executed() for shard in (*entry.sources, *entry.targets)}
    seqs: dict[str, int] = {}
    while True:
        problems = []
        for shard, wanted in executed.items():
            topics = ShardTopics(settings.keyspace, shard)
            progress = last_progress(settings.kafka, topics, schema_ids)
            if progress is None or not has_reached(progress, wanted):
                problems.append(
                    f"the log of shard {shard} is behind {writes[shard].server.name}: check its "
                    f"producer"
                )
            elif shard in entry.sources and shard not in seqs:
                marks = marks_at_end(settings.kafka, topics, schema_ids, databases.__contains__)
                mark = marks.get(settings.reshard_id)
                # Appliers stop at END; databases that are not sharded may be written after it.
                seqs[shard] = progress.last_seq if mark is None else mark.seq
        problems += _behind(settings, entry, writes, seqs)
        if not problems or time.monotonic() > deadline_s:
            return problems
        time.sleep(READY_POLL_S)


def _behind(
    settings: SwitchSettings,
    entry: ReshardEntry,
    writes: Mapping[str, ShardWrites],
    seqs: Mapping[str, int],
) -> list[str]:
    problems = []
    for target in entry.targets:
        server = writes[target].server
        with server_errors(server, "reading the checkpoint of"):
            found = read_checkpoints(writes[target].connection, settings.reshard_id)
        for source, seq in seqs.items():
            at = found[source].seq if source in found else None
            if at is None or at < seq:
                problems.append(
                    f"{server.name} lags: it has seq {at} of shard {source}, whose log was at "
                    f"{seq} {READY_S_MAX:g} s ago: check its applier"
                )
    return problems
