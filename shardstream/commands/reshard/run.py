"""`shardstream reshard run`: the applier of one target."""

import dataclasses
import gc
import logging
from dataclasses import dataclass
from typing import Final

from event_token.errors import UsageError
from resharding.apply.applier import ApplierSettings, run_applier
from resharding.apply.applier_status import ApplierStatus
from resharding.plan.reshard_plan import ReshardPlan
from shardstream.commands.http.options import Metrics, observed
from shardstream.commands.http.probe import Probe, Watched
from shardstream.commands.reshard.lookup import plan_on, reshard_entry
from shardstream.commands.status_lines import Status, StatusLines, print_line
from shardstream.commands.stop_signals import stop_on_signals
from shardstream.settings.model import Settings
from shardstream.settings.reshard_settings import reshard_server
from topics.keyspace.topology import ReshardState
from topics.records.accepted_skips import check_accepted

# A batch holds some ten thousand rows, none of them garbage: looking for it among them at every 700
# new objects, as by default, took 40 % of the applier's time.
GARBAGE_AFTER: Final = 100_000


@dataclass(frozen=True, slots=True)
class Accepted:
    """GTIDs of DDL and of skipped transactions despite which targets and sources agree."""

    ddl: frozenset[str]
    skips: frozenset[str]


def run_apply(
    settings: Settings,
    keyspace: str,
    reshard_id: str,
    target: str,
    accepted: Accepted,
    *,
    as_json: bool,
    every_s: float | None = None,
) -> None:
    """Apply to one target until SIGINT or SIGTERM."""
    check_accepted(accepted.skips)
    entry = reshard_entry(settings, keyspace, reshard_id)
    if target not in entry.targets:
        raise UsageError(
            f"reshard {reshard_id} has the targets {', '.join(entry.targets)}, not {target}"
        )
    if entry.state == ReshardState.CANCELLED.value:
        raise UsageError(
            f"reshard {reshard_id} is CANCELLED, so its targets are not filled any more: empty "
            f"them, and create another one"
        )
    server, stop = reshard_server(settings, keyspace, target), stop_on_signals()
    plan = plan_on(server, reshard_id)
    if not as_json:
        text = f"following {', '.join(entry.sources)}"
        print_line(f"{keyspace}/{target}", text, {}, as_json=False)
    probe = Probe(is_ready=True)
    printer = _StatusPrinter(plan, StatusLines(as_json=as_json, every_s=every_s))
    watched = Watched(printer, probe, lambda status: status.note)

    def families() -> Metrics:
        from shardstream.status.metrics.applier import applier_families

        return applier_families(keyspace, reshard_id, target, watched.last)

    gc.set_threshold(GARBAGE_AFTER)
    with observed(probe, families):
        run_applier(
            ApplierSettings(
                plan=plan,
                target=server,
                kafka=settings.kafka_client(),
                registry_url=settings.kafka.schema_registry_url,
                accepted_ddl=accepted.ddl,
                accepted_skips=accepted.skips,
                find_target=lambda: reshard_server(settings, keyspace, target),
            ),
            stop,
            watched,
        )


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
        named = {"keyspace": self._plan.keyspace, "reshard_id": self._plan.reshard_id}
        line = Status(
            f"{self._plan.keyspace}/{status.target}",
            text,
            {**named, **dataclasses.asdict(status)},
            progress=sum(status.seqs.values()),
            level=logging.WARNING if status.note else logging.INFO,
        )
        self._lines.report(line, at_once=bool(status.note))
