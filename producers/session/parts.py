"""The parts of a session that has fenced its predecessor and knows where to start."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from producers.copy.copier import Copier
from producers.decoder import Decoder, DecoderOptions
from producers.decoder.errors import RuleBroken
from producers.filters.sharding_columns import sharding_columns
from producers.filters.start_check import rule_problems
from producers.filters.table_filters import TableFilters
from producers.preflight.hidden_types import server_types
from producers.preflight.server_columns import ServerCatalog
from producers.preflight.warnings import binlog_kept_s
from producers.replication.stream import ReplicationStream, server_errors
from producers.servers.server_list import OpenServer
from producers.servers.watch import ServerWatch
from producers.session.binlog_reader import BinlogReader
from producers.session.committer import Committer
from producers.session.context import SessionContext
from producers.session.heads import HeadKeeper, ServerClock, now_us
from producers.session.heartbeat_rows import HeartbeatWriter
from producers.session.status import Committed
from producers.settings import ProducerState
from producers.shard_log.publisher import Publisher
from producers.start.choose_start import ChosenStart
from producers.start.reshard_end import ended_by, is_cancelled, is_sharded
from topics.kafka.client import RECORD_BYTES_MAX

Notice = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class SessionParts:
    """What the session's loop calls."""

    decoder: Decoder
    reader: BinlogReader
    committer: Committer
    clock: ServerClock
    heads: HeadKeeper
    heartbeat_rows: HeartbeatWriter
    watch: ServerWatch
    copier: Copier


def open_parts(
    context: SessionContext,
    start: ChosenStart,
    publisher: Publisher,
    committed: Committed,
    opened: ExitStack,
) -> SessionParts:
    """Open the stream and all that reads or writes beside it; `opened` closes them.

    Raises ServerLost, ServerRefused, Retry and UsageError.
    """
    settings, server = context.settings, start.server

    def notice(text: str) -> None:
        context.report(ProducerState.STREAMING, committed, text)

    clock = ServerClock(context, server, notice, is_replica=start.is_replica)
    stream = _open_stream(context, start)
    opened.callback(stream.close)
    watch = ServerWatch(settings, context.topics, server.settings, lambda: committed.position)
    opened.callback(watch.close)
    heartbeat_rows = HeartbeatWriter(settings, lambda: clock.is_replica)
    opened.callback(heartbeat_rows.close)
    decoder = _open_decoder(context, start, publisher, notice)
    opened.callback(decoder.close)
    copier = Copier(settings, server.settings, decoder, publisher, context.failed_copies)
    opened.callback(copier.close)
    committer = Committer(
        context,
        publisher,
        decoder,
        copier,
        committed,
        server=server,
        server_clock_us=clock.now_us,
        last=start.point.last,
        identity=start.identity,
    )
    return SessionParts(
        decoder=decoder,
        reader=BinlogReader(server.name, stream, decoder, publisher, committer),
        committer=committer,
        clock=clock,
        heads=HeadKeeper(context, server, clock, decoder, committer, notice=notice),
        heartbeat_rows=heartbeat_rows,
        watch=watch,
        copier=copier,
    )


def _open_stream(context: SessionContext, start: ChosenStart) -> ReplicationStream:
    server = start.server
    context.counters.follow(server.name, binlog_kept_s(server.connection, server.settings))
    return ReplicationStream.open(
        server.settings, server.family, start.point.position, context.server_id
    )


def _open_decoder(
    context: SessionContext, start: ChosenStart, publisher: Publisher, notice: Notice
) -> Decoder:
    settings, point, server = context.settings, start.point, start.server
    ended = ended_by(settings.kafka, context.topics, context.schema_ids)
    vindexes = sharding_columns(settings.vindexes)
    rules = None
    if settings.filters:
        rules = TableFilters(settings.filters, vindexes, _rule_check(context, server))
    options = DecoderOptions(
        topic=context.topics.log,
        keyspace=settings.keyspace,
        shard=settings.shard,
        flavor=settings.flavor,
        position=str(point.position),
        next_seq=point.next_seq,
        last_timestamp_us=point.clamp_us,
        last_cell_us=point.last_cell_us,
        produce=publisher.produce,
        record_bytes_max=RECORD_BYTES_MAX,
        on_full=publisher.wait_for_room,
        schema_id=context.schema_ids.register,
        verify_checksum=settings.verify_checksum,
        max_clock_ahead_us=settings.max_clock_ahead_ms * 1000,
        now_us=now_us,
        on_notice=notice,
        ended_by=ended,
        is_sharded=lambda database: is_sharded(settings.kafka, settings.keyspace, database),
        is_cancelled=partial(is_cancelled, settings.kafka, settings.keyspace),
        vindexes=vindexes,
        rules=rules,
        text_as_bytes=settings.text_as_bytes,
        hidden_types=server_types(settings, server.settings, server.connection, notice),
        catalog=ServerCatalog(settings.flavor, server.settings, server.connection, notice),
        refuses_cascades=not (settings.accept_unlogged_cascades or server.logs_cascades()),
        lower_case_names=server.has_lower_case_names(),
        on_delivery=publisher.on_delivery,
        rolled_back=frozenset(context.rolled_back),
    )
    return Decoder(options)


def _rule_check(context: SessionContext, server: OpenServer) -> Callable[[], None]:
    """What the decoder calls after a DDL statement."""

    def check() -> None:
        """Raise RuleBroken if the filter rules no longer fit the server's tables."""
        with server_errors(server.settings, "checking filter rules on"):
            problems = rule_problems(
                server.connection, server.name, context.settings, at_start=False
            )
        if problems:
            raise RuleBroken("; ".join(map(str, problems)))

    return check
