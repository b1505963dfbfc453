"""The traffic of the shop: writers on all shards, and visitors who read pages from the cache."""

import threading
import time
from typing import Final

from event_token.errors import Retry
from shardstream.commands.status_lines import Status, StatusLines
from shardstream.demo.composed.pages import Visitors
from shardstream.demo.composed.servers import KEYSPACE, largest, writers
from shardstream.demo.sharded_writes import Committed, ShardDirectory
from shardstream.demo.workload import Ledger, ShopWorkload
from shardstream.settings.model import Settings
from topics.keyspace.topology import read_topology

# Producers write the topology when they start for the first time.
TOPOLOGY_S_MAX: Final = 300.0
POLL_S: Final = 1.0
# 60 transactions per second: the stack runs for hours, on a laptop with other work to do.
PACE: Final = 0.25


def run_traffic(settings: Settings, stop: threading.Event, *, as_json: bool) -> None:
    """Write and read until `stop` is set; the last line counts every row change of this run.

    Raises what ended a writer or a visitor.
    """
    lines = StatusLines(as_json=as_json)
    if not _wait_for_topology(settings, stop):
        return
    ledger = Ledger()
    directory = ShardDirectory(KEYSPACE, settings.kafka_client())
    shards = writers(settings)
    serving = {shard: shards[shard] for shard in directory.serving}
    # Coupons may be on the way when the shop is stopped: all come back at its next start.
    for shard, connect in serving.items():
        with connect() as connection, connection.cursor() as cursor:
            cursor.execute("DELETE FROM coupons")
            ledger.add(Committed(shard, cursor.rowcount, 0))
            connection.commit()
    first = 1 + max(largest(serving, "id", "customers"), largest(serving, "id >> 8", "orders"))
    workload = ShopWorkload(directory, shards, ledger, first_id=first, pace=PACE)
    ledger.changes += workload.write_first()
    visitors = Visitors(settings, directory, first)
    work = (workload, visitors)
    for part in work:
        part.start()
    while not stop.wait(POLL_S):
        for part in work:
            part.check()
        lines.report(_status(ledger, visitors))
    for part in work:
        part.stop()
    lines.report(_status(ledger, visitors, "stopped: "), at_once=True)


def _wait_for_topology(settings: Settings, stop: threading.Event) -> bool:
    """Return False if the shop is stopped before there is a topology. Raises Retry in the end."""
    ends_s = time.monotonic() + TOPOLOGY_S_MAX
    while read_topology(settings.kafka_client(), KEYSPACE) is None:
        if time.monotonic() > ends_s:
            raise Retry(f"no producer has written the topology within {TOPOLOGY_S_MAX:.0f} s")
        if stop.wait(POLL_S):
            return False
    return True


def _status(ledger: Ledger, visitors: Visitors, began: str = "") -> Status:
    text = (
        f"{began}{ledger.changes:,} row changes in {ledger.transactions:,} transactions, "
        f"{ledger.refused:,} refused and repeated; {visitors.views:,} pages read"
    )
    fields = {
        "changes": ledger.changes,
        "transactions": ledger.transactions,
        "refused": ledger.refused,
        "pages": visitors.views,
        "stopped": bool(began),
    }
    return Status("shop", text, fields, progress=ledger.changes)
