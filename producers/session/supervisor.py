"""Runs one shard's producer: session after session until it is stopped or must stop."""

import time
from threading import Event
from typing import Final

from databases.errors import ServerLost
from event_token.errors import Halt, Rebuild, Retry, ShardstreamError, UsageError
from producers.copy.errors import RowNotCopied
from producers.decoder.errors import RolledBack
from producers.errors import StopsBehindOthers, TransactionTooLong
from producers.filters.sharding_columns import sharding_columns
from producers.replication.stream import random_server_id
from producers.session import waiting
from producers.session.context import SessionContext
from producers.session.counters import ProducerCounters
from producers.session.shard_session import ShardSession
from producers.session.status import OnStatus, StatusReporter
from producers.session.waiting import wait_until_ready
from producers.settings import ProducerState, ShardProducerSettings
from producers.skip.advice import skip_advice
from producers.skip.skip_order import SkipOrder
from topics.kafka.errors import TopicMissing
from topics.kafka.provisioning import (
    broker_transaction_timeout_ms,
    provision_schemas_topic,
    provision_shard,
)
from topics.names import ShardTopics
from topics.schemas.registry import open_schema_ids

# Sessions that end before a single commit: the next one would end likewise.
REBUILDS_IN_A_ROW_MAX: Final = 10


def run_shard(
    settings: ShardProducerSettings,
    stop: Event,
    on_status: OnStatus,
    counters: ProducerCounters | None = None,
    skip_order: SkipOrder | None = None,
) -> None:
    """Produce the shard's log until `stop` is set, with a new session after each transient fault.

    `counters`: what the process counts, for others to read. `skip_order`: the stops that are passed
    by SKIP records; its end sets `stop`.

    Raises UsageError when settings, grants, topics or purged binlogs need a fix, Fenced when
    another producer took over, and Halt when going on could lose or repeat a change, or when
    faults do not pass.
    """
    sharding_columns(settings.vindexes)
    status = StatusReporter(settings.shard, on_status)

    def prepare() -> SessionContext:
        topics = ShardTopics(settings.keyspace, settings.shard)
        if settings.registry_url is None:
            provision_schemas_topic(settings.kafka, settings.topics)
        provision_shard(settings.kafka, topics, settings.topics)
        return SessionContext(
            settings=settings,
            topics=topics,
            schema_ids=open_schema_ids(settings.kafka, settings.registry_url),
            transaction_timeout_ms=broker_transaction_timeout_ms(settings.kafka),
            server_id=settings.server_id or random_server_id(),
            stop=stop,
            report=status.report,
            counters=counters or ProducerCounters(),
            skip_order=skip_order,
        )

    def report(fault: str) -> None:
        status.report(ProducerState.RECONNECTING, status.committed, fault)

    context = wait_until_ready(f"{settings.keyspace}.{settings.shard}", prepare, stop, report)
    if context is not None:
        Supervisor(context, status).run()
    status.report(ProducerState.STOPPED, status.committed, "")


class Supervisor:
    """Starts a new session after each fault that may pass, and counts the faults."""

    def __init__(self, context: SessionContext, status: StatusReporter) -> None:
        self._context = context
        self._name = f"{context.settings.keyspace}.{context.settings.shard}"
        self._status = status
        self._faults = 0
        self._rebuilds = 0
        self._too_long_at = ""
        self._alive_s = time.monotonic()

    def run(self) -> None:
        """Run sessions until the stop. Raises what `run_shard` says."""
        behind: StopsBehindOthers | None = None
        while not self._context.stop.is_set():
            session, before, behind = ShardSession(self._context), behind, None
            try:
                session.run()
            except RolledBack as rollback:
                # No fault: the next session reads the transaction without its rows.
                self._context.rolled_back.add(rollback.gtid)
            except StopsBehindOthers as stopped:
                self._context.stops_at.add(stopped.gtid)
                behind = stopped
            except TopicMissing as missing:
                # This process has seen it: a broker that has just started may not know it yet.
                behind = before
                self._after(session, missing)
            except UsageError as refused:
                if before is None:
                    raise
                raise self._refused(before, refused) from refused
            except RowNotCopied as failure:
                # The next session marks the copy as failed; the stream is not affected.
                self._context.failed_copies[failure.copy_id] = str(failure)
                self._status.report(
                    ProducerState.RECONNECTING, self._status.committed, str(failure)
                )
            except (Rebuild, Retry) as fault:
                if self._context.stop.is_set():
                    break
                self._after(session, fault)
            finally:
                if session.committed.commits:
                    self._context.has_committed.set()

    def _refused(self, stop: StopsBehindOthers, refused: UsageError) -> ShardstreamError:
        """The stop, of which a new session's checks do not know the transaction, and the refusal.

        MariaDB allows a skip only once all that comes before is committed.
        """
        return type(stop.error)(
            f"{stop.error}. Transactions before it are not in the log yet, and a new session, "
            f"which would log them, was refused: {refused}\nFix that and start again: it logs "
            f"them and stops right at this transaction, if it still has to. "
            f"{skip_advice(self._context.topics, stop.gtid)}"
        )

    def _after(self, session: ShardSession, fault: ShardstreamError) -> None:
        """Wait before the next session, or raise if it would not help."""
        if session.committed.commits:
            self._faults = self._rebuilds = 0
            self._alive_s = time.monotonic()
        self._faults += 1
        self._context.counters.reconnects[type(fault).__name__] += 1
        if isinstance(fault, ServerLost):
            self._check_away(fault)
        else:
            self._check_too_long(session, fault)
            self._rebuilds += 1
            if self._rebuilds > REBUILDS_IN_A_ROW_MAX:
                if isinstance(fault, UsageError):
                    raise fault
                raise Halt(
                    f"{self._name}: {self._rebuilds} sessions in a row ended before they committed "
                    f"anything; the last fault: {fault}"
                ) from fault
        self._status.report(ProducerState.RECONNECTING, self._status.committed, str(fault))
        self._context.stop.wait(waiting.backoff_s(self._faults))

    def _check_too_long(self, session: ShardSession, fault: ShardstreamError) -> None:
        """Raise Halt at the second TransactionTooLong in one place: the first may be Kafka's."""
        if not isinstance(fault, TransactionTooLong):
            return
        position = session.committed.position
        if position == self._too_long_at:
            raise Halt(str(fault)) from fault
        self._too_long_at = position

    def _check_away(self, fault: ServerLost) -> None:
        away_s = time.monotonic() - self._alive_s
        if away_s > waiting.AWAY_S_MAX:
            raise Halt(
                f"{self._name}: no server could be used for {away_s:.0f} s; the last fault: {fault}"
            ) from fault
