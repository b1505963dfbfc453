"""`shardstream reshard verify`: every target against its sources."""

import dataclasses
import json
import sys

from event_token.errors import UsageError
from resharding.verify.verification import Verified, VerifySettings, verify_target
from shardstream.commands.reshard.lookup import plan_on, reshard_entry
from shardstream.settings.model import Settings
from shardstream.settings.reshard_settings import reshard_server, reshard_servers
from topics.keyspace.topology import ReshardState


def run_verify(settings: Settings, keyspace: str, reshard_id: str, *, as_json: bool) -> bool:
    """Compare target by target and print the result; True if no rows differ."""
    entry = reshard_entry(settings, keyspace, reshard_id)
    if entry.state != ReshardState.RUNNING.value:
        raise UsageError(
            f"reshard {reshard_id} is {entry.state}: there is nothing to verify, because its "
            f"sources and targets no longer hold the same rows"
        )
    clean = True
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
        _say(found, as_json=as_json)
        clean = clean and found.differing == 0
    return clean


def _say(found: Verified, *, as_json: bool) -> None:
    if as_json:
        fields = {
            **{f.name: getattr(found, f.name) for f in dataclasses.fields(found)},
            "position": found.position.to_string(),
            "named": [dataclasses.asdict(difference) for difference in found.named],
        }
        sys.stdout.write(json.dumps(fields) + "\n")
    else:
        sys.stdout.write(f"{found.target}: {found.rows} rows, {found.differing} differ\n")
        for difference in found.named:
            sys.stdout.write(f"  {difference.table} {difference.key}: {difference.what}\n")
        if found.differing > len(found.named):
            sys.stdout.write(f"  and {found.differing - len(found.named)} more\n")
    sys.stdout.flush()
