"""What `shardstream serve` runs: one thread that looks, one that answers."""

from typing import Final

from event_token.errors import UsageError
from shardstream.commands.status_lines import print_line
from shardstream.commands.stop_signals import stop_on_signals
from shardstream.settings.model import Settings
from shardstream.status.address import Address
from shardstream.status.http import application
from shardstream.status.metrics.families import scrape
from shardstream.status.metrics.fleet import fleet_families
from shardstream.status.refresh import ANSWER_S, FleetRefresh
from shardstream.status.server import HttpServer
from topics.fleet.look import FleetWatch
from topics.schemas.registry import open_schema_ids

# Where the kernel gives a signal to another thread, Python's handler runs once this one wakes up.
_SIGNAL_S: Final = 0.5


def run_server(
    settings: Settings,
    address: Address,
    *,
    token: str | None,
    max_behind_s: float,
    runbook_url: str | None,
    as_json: bool,
) -> None:
    """Serve all keyspaces of the settings until SIGTERM. Raises UsageError."""
    keyspaces = sorted(settings.keyspaces)
    if not keyspaces:
        raise UsageError("the settings name no keyspace")
    client = settings.kafka_client().answering_within(ANSWER_S)
    stop = stop_on_signals()

    def open_fleet() -> FleetWatch:
        return FleetWatch(client, open_schema_ids(client, settings.kafka.schema_registry_url))

    with address.listen() as listening:
        url = f"http://{address.bound(listening)}/"
        fleet = FleetRefresh(open_fleet, keyspaces)
        app = application(
            fleet,
            token=token,
            is_loopback=address.is_loopback,
            max_behind_s=max_behind_s,
            runbook_url=runbook_url,
            metrics=scrape(lambda: fleet_families(fleet.state())),
        )
        # The streams of open pages end with `fleet`, so it ends first.
        with HttpServer(app, listening), fleet:
            told = {"url": url, "keyspaces": keyspaces, "needs_token": token is not None}
            print_line("serve", f"{url} for {', '.join(keyspaces)}", told, as_json=as_json)
            while not stop.wait(_SIGNAL_S):
                pass
