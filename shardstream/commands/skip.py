"""`shardstream skip`: an operator's logged decision to pass transactions."""

import sys
from collections.abc import Callable
from dataclasses import dataclass

from event_token.errors import UsageError
from producers.session.supervisor import run_shard
from producers.settings import ProducerState, ProducerStatus, ShardProducerSettings
from producers.skip.given_order import given_order, parse_named
from producers.skip.lost_transactions import skip_lost
from producers.skip.one_transaction import skip_transaction
from producers.skip.record_writer import SkipReport
from producers.skip.skip_order import SkipOrder
from shardstream.commands.produce import ready_settings
from shardstream.commands.status_lines import warn
from shardstream.commands.stop_signals import stop_on_signals
from shardstream.settings.model import Settings
from shardstream.settings.producer_settings import shard_producer_settings
from topics.stream.arguments import checked_tables

_START_AGAIN = (
    "If a producer was running, it has been fenced and ends with status 3: start it again"
)


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of the command, as they were typed."""

    gtids: tuple[str, ...]
    until: str
    tables: tuple[str, ...]
    lost: str
    reason: str
    force: bool

    def check(self) -> None:
        """UsageError on options that do not go together."""
        by_range = bool(self.until or self.tables)
        if bool(self.gtids) + by_range + bool(self.lost) != 1:
            raise UsageError(
                "say what to skip: either --gtid GTIDS, or --until GTID and --table TABLE (one or "
                "both), or --lost GTIDS"
            )
        if self.force and not self.gtids:
            raise UsageError("--force goes with --gtid alone: it passes exactly what is named")
        checked_tables(self.tables)


def run_skip(settings: Settings, keyspace: str, shard: str, asked: Asked) -> None:
    """Write the SKIP records that were asked for, and tell each."""
    asked.check()
    producer = shard_producer_settings(settings, keyspace, shard)
    where = f"{keyspace}/{shard}"

    def tell(report: SkipReport) -> None:
        _say(
            f"{where}: skipped {report.gtids}, recorded as seq {report.seq}; the log goes on after "
            f"{report.position}"
        )

    if asked.lost:
        tell(skip_lost(producer, asked.lost, asked.reason))
        _say(_START_AGAIN)
        return
    gtids = parse_named(asked.gtids, producer.flavor)
    order = None
    if not asked.force:
        order = given_order(producer, gtids, asked.until, asked.tables, asked.reason, tell)
    if order is None:
        _skip_each(producer, gtids, asked.reason, tell)
        _say(_START_AGAIN)
        return
    _carry_out(settings, producer, order)
    _conclude(where, order, gtids)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _skip_each(
    producer: ShardProducerSettings,
    gtids: list[str],
    reason: str,
    tell: Callable[[SkipReport], None],
) -> None:
    """Pass exactly these. Numbers of MariaDB that ran backwards are passed with one another."""
    passed: set[str] = set()
    for gtid in gtids:
        if gtid not in passed:
            report = skip_transaction(producer, gtid, reason)
            tell(report)
            passed |= set(report.gtids.split(","))


def _carry_out(settings: Settings, producer: ShardProducerSettings, order: SkipOrder) -> None:
    """Run the shard's producer until the order has ended, or somebody stops it."""
    where = f"{producer.keyspace}/{producer.shard}"

    def on_status(status: ProducerStatus) -> None:
        if status.state is ProducerState.RECONNECTING:
            warn(where, status.note, as_json=False)

    stop = stop_on_signals()
    ready = ready_settings(settings, producer, stop, on_status, as_json=False)
    if ready is not None:
        run_shard(ready, stop, on_status, skip_order=order)


def _conclude(where: str, order: SkipOrder, gtids: list[str]) -> None:
    count = len(order.passed)
    if not order.has_ended:
        _say(f"{where}: stopped; {count} skipped. The same command goes on where it was")
        return
    _say(f"{where}: {count} skipped, all else up to {order.until} is logged. {_START_AGAIN}")
    passed = {report.gtids for report in order.passed}
    logged = [gtid for gtid in gtids if gtid not in passed]
    if logged:
        more = f" and {len(logged) - 1} more" if len(logged) > 1 else ""
        raise UsageError(
            f"{where}: {logged[0]}{more} did not stop the shard, and was not skipped: its changes "
            f"are in the log. --force passes what does not stop, too"
        )
