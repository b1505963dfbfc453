"""`shardstream reshard status`."""

import dataclasses
import json
import sys
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import TypeVar

from event_token.errors import ShardstreamError
from resharding.progress import (
    SourceState,
    TargetState,
    next_command,
    source_log,
    source_state,
    target_state,
)
from shardstream.settings.model import Settings
from shardstream.settings.reshard_settings import reshard_section, reshard_server
from topics.keyspace.topology import (
    UNDER_WAY,
    ReshardEntry,
    ReshardState,
    ShardState,
    Topology,
    read_topology,
)
from topics.schemas.registry import open_schema_ids
from topics.stream.target_marks import TargetMarks

State = TypeVar("State")


def run_status(settings: Settings, keyspace: str, *, as_json: bool) -> None:
    """Print each reshard; of those under way each server's state and the next command."""
    settings.keyspace(keyspace)
    topology = read_topology(settings.kafka_client(), keyspace)
    entries = () if topology is None else topology.reshards
    if not entries and not as_json:
        sys.stdout.write(f"keyspace {keyspace} has no reshards\n")
    for entry in entries:
        assert topology is not None  # noqa: S101 - it has the entry
        is_last_cancelled = entry is entries[-1] and entry.state == ReshardState.CANCELLED.value
        look = _Look(settings, topology, entry)
        if entry.state in UNDER_WAY or is_last_cancelled:
            look.ask()
        sys.stdout.write(look.as_json() if as_json else look.as_text())


class _Look:
    """One look at a reshard. A server that does not answer is a problem, not an end."""

    def __init__(self, settings: Settings, topology: Topology, entry: ReshardEntry) -> None:
        self._settings, self._topology, self._entry = settings, topology, entry
        self._sources: dict[str, SourceState] = {}
        self._targets: dict[str, TargetState] = {}
        self._problems: dict[str, str] = {}
        self._next = ""

    def ask(self) -> None:
        settings, topology, entry = self._settings, self._topology, self._entry
        keyspace, kafka = topology.keyspace, settings.kafka_client()
        accounts = reshard_section(settings, keyspace).application_accounts
        schema_ids = open_schema_ids(kafka, settings.kafka.schema_registry_url)
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
        # What a later reshard has retired is not this one's to open.
        retired = {s.name for s in topology.shards if s.state is ShardState.RETIRED}
        silent = self._problems.keys() - retired
        self._next = next_command(
            entry, keyspace, self._sources, self._targets, marks, silent=silent
        )

    def _has_ended(self) -> bool:
        """Whether a target may have a mark, which takes a while to look for."""
        ended = any(source.log.ended_at_us is not None for source in self._sources.values())
        return ended or self._entry.decision is not None or bool(self._problems)

    def _each(self, shards: Iterable[str], look: Callable[[str], State]) -> dict[str, State]:
        found = {}
        for shard in shards:
            try:
                found[shard] = look(shard)
            except ShardstreamError as error:
                self._problems[shard] = str(error)
        return found

    def as_json(self) -> str:
        """All of it as one line."""
        told = {
            **dataclasses.asdict(self._entry),
            "source_states": {s: dataclasses.asdict(at) for s, at in self._sources.items()},
            "target_states": {s: dataclasses.asdict(at) for s, at in self._targets.items()},
            "problems": self._problems,
            "next": self._next,
        }
        return json.dumps(told) + "\n"

    def as_text(self) -> str:
        """All of it in words."""
        entry = self._entry
        sources, targets = ", ".join(entry.sources), ", ".join(entry.targets)
        lines = [f"{entry.reshard_id}: {sources} to {targets}, {entry.state}"]
        for shard, source in self._sources.items():
            lines.append(f"  source {shard}: {_writes(source)}")
        for shard, target in self._targets.items():
            lines += self._target_lines(shard, target)
        lines += [f"  {shard} cannot be asked: {text}" for shard, text in self._problems.items()]
        lines += [f"  next: {self._next}"] if self._next else []
        return "\n".join(lines) + "\n"

    def _target_lines(self, shard: str, target: TargetState) -> list[str]:
        applier = "runs" if target.applier_runs else "does not run"
        lines = [f"  target {shard}: its applier {applier}, {_verified(target)}"]
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


def _writes(source: SourceState) -> str:
    if source.held:
        return "a later reshard has stopped its writes"
    if source.log.ended_at_us is not None:
        text = f"writes were stopped, END at {_time(source.log.ended_at_us)}"
        lost = ", but no account is locked: it takes writes, perhaps after a failover"
        return text if source.locked else text + lost
    if source.locked:
        return "the application's accounts are locked, without END"
    return "it takes writes"


def _verified(target: TargetState) -> str:
    if target.verified_at_us is None:
        return "it was not verified"
    return f"verified {_age(target.verified_at_us)} ago, {target.differing} rows differed"


def _time(time_us: int) -> str:
    return datetime.fromtimestamp(time_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _age(time_us: int) -> str:
    seconds = max(0, round(time.time() - time_us / 1e6))
    return f"{seconds} s" if seconds < 600 else f"{seconds // 60} min"
