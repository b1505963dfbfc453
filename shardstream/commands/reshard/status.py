"""`shardstream reshard status`."""

import dataclasses
import json
import sys
import time

from databases.connection import server_errors
from resharding.bookkeeping import Checkpoint, read_checkpoints
from resharding.server import open_session
from shardstream.settings.model import Settings
from shardstream.settings.reshard_settings import reshard_server
from topics.kafka.partition_reader import read_tail
from topics.keyspace.topology import ReshardEntry, read_topology
from topics.names import ShardTopics
from topics.progress.codec import decode_progress
from topics.schemas.registry import open_schema_ids


def run_status(settings: Settings, keyspace: str, *, as_json: bool) -> None:
    """Print each reshard, and the progress of the targets of those under way."""
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
                    f"  {target} has applied {source} up to seq {seq} of {last_seq}; "
                    f"its last change is {age_ms} ms old\n"
                )


def _target_status(
    settings: Settings, keyspace: str, entry: ReshardEntry, target: str
) -> dict[str, tuple[int, int, int]]:
    """Per source: last seq applied, last seq of the log, age of the last applied change in ms."""
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
