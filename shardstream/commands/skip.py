"""`shardstream skip`: an operator's logged decision to pass transactions."""

import sys

from event_token.errors import UsageError
from producers.skip.lost_transactions import skip_lost
from producers.skip.one_transaction import skip_transaction
from shardstream.settings.model import Settings
from shardstream.settings.producer_settings import shard_producer_settings


def run_skip(
    settings: Settings, keyspace: str, shard: str, *, gtid: str, lost: str, reason: str
) -> None:
    """Write the SKIP record; exactly one of `gtid` and `lost` is not empty."""
    if bool(gtid) == bool(lost):
        raise UsageError("say what to skip: either --gtid GTID or --lost GTIDS, not both")
    producer = shard_producer_settings(settings, keyspace, shard)
    report = skip_transaction(producer, gtid, reason) if gtid else skip_lost(producer, lost, reason)
    sys.stdout.write(
        f"{keyspace}/{shard}: skipped {report.gtids}, recorded as seq {report.seq}; the log goes "
        f"on after {report.position}. If a producer was running, it has been fenced and ends with "
        f"status 3: start it again\n"
    )
