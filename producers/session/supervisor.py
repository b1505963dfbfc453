"""Runs one shard's producer: session after session until it is stopped or must stop."""

import time
from contextlib import ExitStack
from threading import Event
from typing import NoReturn

from databases.errors import LoginRefused
from event_token.errors import Halt, Rebuild, Retry, ShardstreamError, UsageError
from producers.copy.errors import RowNotCopied
from producers.decoder.errors import RolledBack
from producers.errors import StopsBehindOthers, TransactionTooLong
from producers.filters.sharding_columns import sharding_columns
from producers.replication.stream import random_server_id
from producers.session.context import SessionContext
from producers.session.counters import ProducerCounters
from producers.session.restarts import RESTARTS_SHOWN_MIN, Ended, Restarts, may_pass
from producers.session.shard_session import ShardSession
from producers.session.status import OnStatus, StatusReporter
from producers.session.waiting import wait_until_ready
from producers.settings import ProducerState, ShardProducerSettings
from producers.skip.advice import skip_advice
from producers.skip.skip_order import SkipOrder
from topics.kafka.provisioning import (
    broker_transaction_timeout_ms,
    provision_schemas_topic,
    provision_shard,
)
from topics.names import ShardTopics
from topics.schemas.registry import open_schema_ids


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

    status.report(
        ProducerState.STARTING, status.committed, f"checking the topics on {settings.kafka.brokers}"
    )
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
        self._restarts = Restarts(time.monotonic())
        self._speaker: ShardSession | None = None
        self._behind: StopsBehindOthers | None = None

    def run(self) -> None:
        """Run sessions until the stop. Raises what `run_shard` says.

        However it ends by an error, the reason is left in the progress topic if this process has
        had the shard, and still has it.
        """
        with ExitStack() as opened:
            opened.callback(self._fall_silent)
            try:
                while not self._context.stop.is_set():
                    self._run_session()
            except Exception as error:
                if self._speaker is not None:
                    self._speaker.leave_reason(error)
                raise

    def _run_session(self) -> None:
        session, began_s = ShardSession(self._context, self._speaker), time.monotonic()
        fault: ShardstreamError | None = None
        try:
            session.run()
        except ShardstreamError as error:
            fault = error
        finally:
            self._speaker = session.speaker
            if session.committed.commits:
                self._context.has_committed.set()
        if fault is None or (self._context.stop.is_set() and isinstance(fault, Rebuild | Retry)):
            return
        committed = session.committed
        ended = Ended(
            committed.position,
            session.streams,
            committed.is_live,
            committed.rows_total,
            time.monotonic() - began_s,
        )
        self._after(fault, ended)

    def _fall_silent(self) -> None:
        if self._speaker is not None:
            self._speaker.close()

    def _after(self, fault: ShardstreamError, ended: Ended) -> None:
        """Wait before the next session, or raise if it would not help."""
        if not may_pass(fault, has_streamed=self._context.has_streamed.is_set()):
            self._raise(fault)
        restarts, counters = self._restarts, self._context.counters
        restarts.add(fault, ended, time.monotonic())
        counters.reconnects[type(fault).__name__] += 1
        counters.restarts_in_place = restarts.count
        if restarts.are_enough(time.monotonic()):
            raise self._enough(fault) from fault
        self._learn(fault)
        text = _with_fix(fault)
        if restarts.count >= RESTARTS_SHOWN_MIN:
            text = f"{restarts.count} restarts at {restarts.position or 'the start'}: {text}"
        self._status.report(ProducerState.RECONNECTING, self._status.committed, text)
        if restarts.count >= RESTARTS_SHOWN_MIN and self._speaker is not None:
            self._speaker.leave_reason(fault, restarts.count)
        self._context.stop.wait(restarts.pause_s(fault))

    def _learn(self, fault: ShardstreamError) -> None:
        """Tell the next session what it must do otherwise."""
        if isinstance(fault, RolledBack):
            self._context.rolled_back.add(fault.gtid)
        elif isinstance(fault, StopsBehindOthers):
            self._context.stops_at.add(fault.gtid)
            self._behind = fault
        elif isinstance(fault, RowNotCopied):
            self._context.failed_copies[fault.copy_id] = str(fault)

    def _raise(self, fault: ShardstreamError) -> NoReturn:
        """End with the fault, and with the stop up to which the session was to log everything.

        A new session's checks do not know the transaction that stops the shard. MariaDB allows a
        skip only once all that comes before is committed.
        """
        stop = self._behind
        is_behind = stop is not None and stop.gtid in self._context.stops_at
        if stop is None or not is_behind or not isinstance(fault, UsageError):
            raise fault
        raise type(stop.error)(
            f"{stop.error}. Transactions before it are not in the log yet, and a new session, "
            f"which would log them, was refused: {fault}\nFix that and start again: it logs "
            f"them and stops right at this transaction, if it still has to. "
            f"{skip_advice(self._context.topics, stop.gtid)}"
        ) from fault

    def _enough(self, fault: ShardstreamError) -> ShardstreamError:
        """The error to end with after too many sessions that did not get on."""
        if isinstance(fault, UsageError):
            return fault
        if isinstance(fault, TransactionTooLong):
            return Halt(str(fault))
        away_s = self._restarts.away_s(time.monotonic())
        if away_s:
            return Halt(
                f"{self._name}: no server could be used for {away_s:.0f} s; the last fault: {fault}"
            )
        advice = ""
        if isinstance(fault, RolledBack | StopsBehindOthers):
            advice = f". {skip_advice(self._context.topics, fault.gtid)}"
        return Halt(
            f"{self._name}: {self._restarts.count} sessions in a row ended at position "
            f"{self._restarts.position or '(none)'} before they got on; the last fault: "
            f"{fault}{advice}"
        )


def _with_fix(fault: ShardstreamError) -> str:
    """The text of a fault, and how to fix it where a person has to."""
    if isinstance(fault, LoginRefused):
        return (
            f"{fault}. If the password was changed, put the new one where the settings say: "
            "a password_file is read at each connection, and for password_env the producer must be "
            "started again"
        )
    return str(fault)
