"""Run one shard's producer: provision, then one session after the other until the stop."""

import time
from collections.abc import Callable
from dataclasses import replace
from threading import Event
from typing import Final

from databases.errors import ServerLost, ServerRefused
from event_token.errors import Halt, Rebuild, Retry, ShardstreamError
from producers.errors import ReplicaBehindLog, TransactionTooLong
from producers.servers.connection import random_server_id
from producers.session.shard_session import Committed, ShardSession
from producers.session.sharding_columns import sharding_columns
from producers.settings import ProducerState, ProducerStatus, ShardProducerSettings
from producers.start.resume import check_start
from topics.kafka.provisioning import (
    broker_transaction_timeout_ms,
    provision_schemas_topic,
    provision_shard,
)
from topics.kafka.topic_settings import TopicSettings
from topics.names import ShardTopics
from topics.schemas.registry import open_schema_ids

BACKOFF_S_FIRST: Final = 0.2
BACKOFF_S_MAX: Final = 5.0
# A database restart or failover takes seconds to minutes; beyond that somebody must look.
SERVER_AWAY_S_MAX: Final = 600.0
# New Kafka producers that end before a single commit: the next would end likewise.
REBUILDS_IN_A_ROW_MAX: Final = 10
# Rates are taken over at least this time.
RATE_S: Final = 1.0

OnStatus = Callable[[ProducerStatus], None]


def run_shard(settings: ShardProducerSettings, stop: Event, on_status: OnStatus) -> None:
    """Produce the shard's log until `stop` is set; passing faults are mended by starting again.

    Raises UsageError when settings, grants or topics cannot work (nothing is written then), Fenced
    when another producer took over, and Halt when going on could lose or repeat a change, or when
    faults do not pass.
    """
    check_start(settings.start)
    sharding_columns(settings.vindexes)
    topics = ShardTopics(settings.keyspace, settings.shard)
    # -1: the brokers' own default.
    chosen = TopicSettings(
        replication_factor=settings.replication_factor or -1, retention_ms=settings.retention_ms
    )
    if settings.registry_url is None:
        provision_schemas_topic(settings.kafka, chosen)
    provision_shard(settings.kafka, topics, chosen)
    _Life(settings, stop, on_status).run()


class _Life:
    """The sessions of one process, and what outlives each of them."""

    def __init__(self, settings: ShardProducerSettings, stop: Event, on_status: OnStatus) -> None:
        self._settings = settings
        self._stop = stop
        self._status = _Status(settings.shard, on_status)
        self._schema_ids = open_schema_ids(settings.kafka, settings.registry_url)
        self._timeout_ms = broker_transaction_timeout_ms(settings.kafka)
        self._server_id = settings.server_id or random_server_id()
        self._faults = 0
        self._rebuilds = 0
        self._too_long_at = ""
        self._alive_s = time.monotonic()
        self._ever_connected = False

    def run(self) -> None:
        while not self._stop.is_set():
            session = ShardSession(
                self._settings,
                server_id=self._server_id,
                schema_ids=self._schema_ids,
                transaction_timeout_ms=self._timeout_ms,
                stop=self._stop,
                report=self._status.report,
            )
            try:
                session.run()
            except (Rebuild, Retry) as fault:
                if self._stop.is_set():
                    break
                self._after(session, fault)
        self._status.report(ProducerState.STOPPED, self._status.committed, "")

    def _after(self, session: ShardSession, fault: ShardstreamError) -> None:
        """Wait before the next session, or raise when it would not help."""
        if session.committed.commits:
            self._faults = self._rebuilds = 0
            self._alive_s = time.monotonic()
        self._ever_connected |= session.connected
        self._faults += 1
        if isinstance(fault, ServerLost):
            self._check_away(fault)
        else:
            self._check_too_long(session, fault)
            self._rebuilds += 1
            if self._rebuilds > REBUILDS_IN_A_ROW_MAX:
                raise Halt(
                    f"{self._settings.keyspace}.{self._settings.shard}: {self._rebuilds} producers "
                    f"in a row ended before they committed anything; the last fault: {fault}"
                ) from fault
        self._status.report(ProducerState.RECONNECTING, self._status.committed, str(fault))
        pause_s = min(BACKOFF_S_MAX, BACKOFF_S_FIRST * 2 ** min(self._faults - 1, 10))
        self._stop.wait(pause_s)

    def _check_too_long(self, session: ShardSession, fault: ShardstreamError) -> None:
        """The first time Kafka may have been away; at the same place again it is too long."""
        if not isinstance(fault, TransactionTooLong):
            return
        position = session.committed.position
        if position == self._too_long_at:
            raise Halt(str(fault)) from fault
        self._too_long_at = position

    def _check_away(self, fault: ServerLost) -> None:
        if not self._ever_connected and not isinstance(fault, ReplicaBehindLog):
            raise ServerRefused(
                f"{self._settings.keyspace}.{self._settings.shard}: no server can be reached; "
                f"{fault}"
            ) from fault
        away_s = time.monotonic() - self._alive_s
        if away_s > SERVER_AWAY_S_MAX:
            raise Halt(
                f"{self._settings.keyspace}.{self._settings.shard}: no server could be used for "
                f"{away_s:.0f} s; the last fault: {fault}"
            ) from fault


class _Status:
    """Turns what sessions report into ProducerStatus with totals and rates of the process."""

    def __init__(self, shard: str, on_status: OnStatus) -> None:
        self._on_status = on_status
        self._seen_s = time.monotonic()
        self._seen_rows = 0
        self._session: Committed | None = None
        self._rows_before = 0
        self._last = ProducerStatus(shard, "", 0, 0, 0, 0.0, ProducerState.STARTING)

    @property
    def committed(self) -> Committed:
        """What the last session had committed."""
        return self._session or Committed("", 0, 0)

    def report(self, state: ProducerState, committed: Committed, note: str) -> None:
        """Pass a session's state on."""
        if committed is not self._session:
            self._rows_before = self._last.rows_total
            self._session = committed
        rows_total = self._rows_before + committed.rows_total
        now_s = time.monotonic()
        rate = self._last.rows_per_s
        if now_s - self._seen_s >= RATE_S:
            rate = (rows_total - self._seen_rows) / (now_s - self._seen_s)
            self._seen_s, self._seen_rows = now_s, rows_total
        self._last = replace(
            self._last,
            position=committed.position,
            head_us=committed.head_us,
            lag_ms=committed.lag_ms,
            rows_total=rows_total,
            rows_per_s=rate,
            state=state,
            note=note,
        )
        self._on_status(self._last)
