"""`shardstream reshard run`: the applier of one target."""

import dataclasses
import json
import sys
from collections.abc import Sequence

from event_token.errors import UsageError
from resharding.apply.applier import ApplierSettings, ApplierStatus, run_applier
from shardstream.commands.reshard.lookup import plan_on, reshard_entry
from shardstream.commands.stop_signals import stop_on_signals
from shardstream.settings.model import Settings
from shardstream.settings.reshard_settings import reshard_server


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
    stop = stop_on_signals()
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
