"""Runs one shard's producer: session after session until it is stopped or must stop."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from threading import Event
from typing import Final, NoReturn, TypeVar

from databases.errors import LoginRefused, ServerLost
from event_token.errors import Halt, Rebuild, Retry, ShardstreamError, UsageError
from producers.copy.definition import RowNotCopied
from producers.decoder.errors import RolledBack
from producers.errors import AnswerTooLate, StopsBehindOthers, TransactionTooLong, skip_advice
from producers.filters.binding import sharding_columns
from producers.replication.stream import random_server_id
from producers.session.context import OnStatus, ProducerCounters, SessionContext, StatusReporter
from producers.session.ownership import Ownership
from producers.session.shard_session import ShardSession
from producers.settings import ProducerState, ShardProducerSettings
from producers.skip.skip_order import SkipOrder
from topics.errors import NoBrokerAnswers
from topics.kafka.client import one_admin
from topics.kafka.errors import Fenced, LoginEnded, TopicMissing
from topics.kafka.provisioning import (
    broker_transaction_timeout_ms,
    message_bytes_max,
    provision_schemas_topic,
    provision_shard,
)
from topics.schemas import open_schema_ids

BACKOFF_S_FIRST: Final = 0.2
BACKOFF_S_MAX: Final = 5.0

T = TypeVar("T")


def backoff_s(faults: int) -> float:
    """How long to wait after this number of consecutive faults."""
    return min(BACKOFF_S_MAX, BACKOFF_S_FIRST * 2.0 ** min(faults - 1, 10))


def wait_until_ready(
    name: str,
    call: Callable[[], T],
    stop: Event,
    on_fault: Callable[[str], None],
    outage_s: float,
) -> T | None:
    """Repeat `call` while its fault may pass; return its result, or None if stopped before.

    `on_fault` gets the text of each fault. Raises Halt, naming `name`, when faults do not pass
    within `outage_s`, and all other errors of `call` at once.
    """
    began_s = time.monotonic()
    faults = 0
    while not stop.is_set():
        try:
            return call()
        except (Retry, Rebuild, NoBrokerAnswers) as fault:
            away_s = time.monotonic() - began_s
            if away_s > outage_s:
                message = f"{name}: not ready after {away_s:.0f} s; the last fault: {fault}"
                raise Halt(message) from fault
            faults += 1
            on_fault(str(fault))
            stop.wait(backoff_s(faults))
    return None


# Sessions that end without getting on: the next one would end likewise.
RESTARTS_IN_PLACE_MAX: Final = 10
# The brokers may have ended the first one by themselves.
TOO_LONG_IN_PLACE_MAX: Final = 2
# Servers lock an account after some refused logins in a row, and none passes within seconds.
LOGIN_PAUSE_S: Final = 10.0
_REFUSED_LOGINS: Final = (LoginRefused, LoginEnded)
# What ends a session when a server is away, or it or the brokers refuse a login.
_OUTAGES: Final = (ServerLost, *_REFUSED_LOGINS)
# A session that has published rows, and has lasted this long, has got on: a copy may take hours on
# a server on which nothing else happens.
LASTS_S: Final = 60.0
# What passes by itself has passed after this many restarts; operators see the others.
RESTARTS_SHOWN_MIN: Final = 3


@dataclass(frozen=True, slots=True)
class Ended:
    """How far a session came that a fault has ended.

    `position`: the last committed one, "" if none was known. `streams`: it had opened its stream.
    `is_live`: it had reached what the server had executed. `rows`: committed. `lasted_s`: since it
    began.
    """

    position: str
    streams: bool
    is_live: bool
    rows: int
    lasted_s: float


class Restarts:
    """The sessions that have ended since the log last got on.

    `position`: where the log is. `count`: how many sessions have ended there.
    """

    def __init__(self, now_s: float, outage_s: float) -> None:
        """No session has ended. Times are monotonic; an outage may last `outage_s`."""
        self._outage_s = outage_s
        self.position = ""
        self.count = 0
        self._usable_s = now_s  # when a server was last seen to work
        self._is_outage = False  # the last one ended because none does
        self._faulty = 0  # those that no outage has ended
        self._too_long = 0
        self._answered: set[str] = set()  # what the next session does otherwise

    def add(self, fault: ShardstreamError, ended: Ended, now_s: float) -> None:
        """Count a session that a fault has ended, unless the next one cannot end likewise."""
        if ended.streams:
            self._usable_s = now_s
        has_moved = ended.position not in {"", self.position}
        if has_moved or ended.is_live or (ended.rows and ended.lasted_s >= LASTS_S):
            self.position = ended.position
            self.count = self._faulty = self._too_long = 0
            self._answered.clear()
        if isinstance(fault, AnswerTooLate):
            return  # what is asked for has its own bound, over all sessions
        answer = _answer(fault)
        if answer and answer not in self._answered:
            self._answered.add(answer)
            return
        self.count += 1
        self._is_outage = isinstance(fault, _OUTAGES) and not ended.streams
        self._faulty += not self._is_outage
        self._too_long += isinstance(fault, TransactionTooLong)

    def away_s(self, now_s: float) -> float:
        """For how long no server could be used; 0 where that is not what ends sessions."""
        return now_s - self._usable_s if self._is_outage else 0.0

    def are_enough(self, now_s: float) -> bool:
        """Whether another session would not help."""
        if self._is_outage:
            return self.away_s(now_s) > self._outage_s
        return self._faulty > RESTARTS_IN_PLACE_MAX or self._too_long >= TOO_LONG_IN_PLACE_MAX

    def pause_s(self, fault: ShardstreamError) -> float:
        """How long to wait before the next session."""
        if isinstance(fault, _REFUSED_LOGINS):
            return LOGIN_PAUSE_S
        return backoff_s(self.count) if self.count else 0.0


def may_pass(fault: ShardstreamError, *, has_streamed: bool) -> bool:
    """Whether another session may succeed.

    A password that is refused at the start is a wrong one; one that has worked was changed. An
    older process may have fenced this one by mistake; `Ownership.settle` finds out.
    """
    if isinstance(fault, LoginRefused):
        return has_streamed
    return isinstance(fault, Rebuild | Retry | TopicMissing | NoBrokerAnswers | Fenced)


def _answer(fault: ShardstreamError) -> str:
    """What the next session does otherwise after this fault, "" if it does the same."""
    if isinstance(fault, RolledBack):
        return f"without the rows of {fault.gtid}"
    if isinstance(fault, StopsBehindOthers):
        return f"alone up to {fault.gtid}"
    if isinstance(fault, RowNotCopied):
        return f"without copy {fault.copy_id}"
    return ""


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

    @one_admin()
    def prepare() -> SessionContext:
        topics = settings.shard_topics
        if settings.registry_url is None:
            provision_schemas_topic(settings.kafka, settings.topics)
        provision_shard(settings.kafka, topics, settings.topics)
        schema_ids = open_schema_ids(settings.kafka, settings.registry_url)
        timeout_ms = broker_transaction_timeout_ms(settings.kafka)
        return SessionContext(
            settings=settings,
            topics=topics,
            schema_ids=schema_ids,
            ownership=Ownership(settings.kafka, topics, schema_ids, timeout_ms),
            transaction_timeout_ms=timeout_ms,
            message_bytes_max=message_bytes_max(settings.kafka, topics.log),
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
    context = wait_until_ready(
        f"{settings.keyspace}.{settings.shard}", prepare, stop, report, settings.outage_s
    )
    if context is not None:
        Supervisor(context, status).run()
    status.report(ProducerState.STOPPED, status.committed, "")


class Supervisor:
    """Starts a new session after each fault that may pass, and counts the faults."""

    def __init__(self, context: SessionContext, status: StatusReporter) -> None:
        self._context = context
        self._name = f"{context.settings.keyspace}.{context.settings.shard}"
        self._status = status
        self._restarts = Restarts(time.monotonic(), context.settings.outage_s)
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
        self._context.ownership.settle(self._context.stop, self._reconnecting)
        if self._context.stop.is_set():
            return
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

    def _reconnecting(self, text: str) -> None:
        self._context.counters.turn()
        self._status.report(ProducerState.RECONNECTING, self._status.committed, text)

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
        self._reconnecting(text)
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
        elif isinstance(fault, Fenced):
            self._context.ownership.is_doubted = True

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
            "a password_file is read and a password_command is run at each connection, and for "
            "password_env the producer must be started again"
        )
    return str(fault)
