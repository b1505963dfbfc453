"""`shardstream skip`: an operator's logged decision to pass transactions."""

from collections.abc import Callable
from typing import Annotated

import typer

from event_token.errors import UsageError
from producers.session.supervisor import run_shard
from producers.settings import ProducerState, ProducerStatus, ShardProducerSettings
from producers.skip.lost_transactions import skip_lost
from producers.skip.one_transaction import skip_transaction
from producers.skip.record_writer import SkipReport, check_reason
from producers.skip.skip_order import SkipOrder, given_order, parse_named
from shardstream.commands.audit import recorded
from shardstream.commands.options import SHARD_NAMES, CommandLine, Config, Keyspace, Shard
from shardstream.commands.produce import ready_settings
from shardstream.commands.status_lines import warn
from shardstream.settings.model import Settings, load_settings
from shardstream.settings.producer_settings import shard_producer_settings
from shardstream.stop_signals import stop_on_signals
from topics.stream.subscriber import checked_tables

_START_AGAIN = (
    "If a producer was running, it has been fenced and ends with status 3: start it again"
)

app = CommandLine()


@app.command(context_settings=SHARD_NAMES)
def skip(
    keyspace: Keyspace,
    shard: Shard,
    reason: Annotated[
        str, typer.Option("--reason", help="Reason, which every reader of the log receives")
    ],
    gtid: Annotated[
        list[str] | None,
        typer.Option(
            "--gtid",
            help="Skip these transactions, which stop the shard: a GTID, a set of "
            "MySQL (uuid:72-73), a list of MariaDB; repeatable",
        ),
    ] = None,
    until: Annotated[
        str,
        typer.Option(
            "--until", help="Skip every transaction that stops the shard, up to this GTID"
        ),
    ] = "",
    table: Annotated[
        list[str] | None,
        typer.Option(
            "--table",
            help="Skip only transactions that stop the shard because of this table "
            "(database.table); repeatable. Without --until: up to what the server has executed now",
        ),
    ] = None,
    lost: Annotated[
        str,
        typer.Option("--lost", help="GTIDs that the log has and the servers lost in a failover"),
    ] = "",
    config: Config = None,
    *,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Skip the GTIDs of --gtid without checking that they stop the shard"
        ),
    ] = False,
) -> None:
    """Skip transactions that stop a shard, or continue after a failover that lost some."""
    gtids, tables = tuple(gtid or ()), tuple(table or ())
    if bool(gtids) + bool(until or tables) + bool(lost) != 1:
        raise UsageError(
            "say what to skip: either --gtid GTIDS, or --until GTID and --table TABLE (one or "
            "both), or --lost GTIDS"
        )
    if force and not gtids:
        raise UsageError("--force requires --gtid: it passes exactly the GTIDs that are named")
    checked_tables(tables)
    settings = load_settings(config)
    producer = shard_producer_settings(settings, keyspace, shard)
    where = f"{keyspace}/{shard}"

    def on_skip(report: SkipReport) -> None:
        typer.echo(
            f"{where}: skipped {report.gtids}, recorded as seq {report.seq}; the log continues "
            f"after {report.position}"
        )

    check_reason(reason)
    named = parse_named(gtids, producer.flavor)
    asked = {"--gtid": gtids, "--until": (until,), "--table": tables, "--lost": (lost,)}
    words = [f"{option} {value}" for option, values in asked.items() for value in values if value]
    subject = " ".join((shard, *words, *(["--force"] if force else [])))
    with recorded(settings, keyspace, "skip", subject, reason):
        if lost:
            on_skip(skip_lost(producer, lost, reason))
            typer.echo(_START_AGAIN)
            return
        order = None if force else given_order(producer, named, until, tables, reason, on_skip)
        if order is None:
            _skip_each(producer, named, reason, on_skip)
            typer.echo(_START_AGAIN)
            return
        _carry_out(settings, producer, order)
        _conclude(where, order, named)


def _skip_each(
    producer: ShardProducerSettings,
    gtids: list[str],
    reason: str,
    on_skip: Callable[[SkipReport], None],
) -> None:
    """Pass exactly these. MariaDB's GTIDs whose numbers ran backwards are passed together."""
    passed: set[str] = set()
    for gtid in gtids:
        if gtid not in passed:
            report = skip_transaction(producer, gtid, reason)
            on_skip(report)
            passed |= set(report.gtids.split(","))


def _carry_out(settings: Settings, producer: ShardProducerSettings, order: SkipOrder) -> None:
    """Run the shard's producer until the order has ended, or a signal stops it."""
    where = f"{producer.keyspace}/{producer.shard}"

    def on_status(status: ProducerStatus) -> None:
        if status.state is ProducerState.RECONNECTING:
            warn(where, status.note)

    stop = stop_on_signals()
    ready = ready_settings(settings, producer, stop, on_status, as_json=False)
    if ready is not None:
        run_shard(ready, stop, on_status, skip_order=order)


def _conclude(where: str, order: SkipOrder, gtids: list[str]) -> None:
    count = len(order.passed)
    if not order.has_ended:
        typer.echo(f"{where}: stopped; {count} skipped. Run the same command again to continue")
        raise typer.Exit  # of an act that is not over, the audit has no outcome
    typer.echo(f"{where}: {count} skipped, all else up to {order.until} is logged. {_START_AGAIN}")
    passed = {report.gtids for report in order.passed}
    logged = [gtid for gtid in gtids if gtid not in passed]
    if logged:
        more = f" and {len(logged) - 1} more" if len(logged) > 1 else ""
        raise UsageError(
            f"{where}: {logged[0]}{more} did not stop the shard, and was not skipped: its changes "
            f"are in the log. --force passes transactions that do not stop the shard, too"
        )
