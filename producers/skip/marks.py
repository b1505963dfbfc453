"""Refuses to skip a mark of a reshard: readers would wait for it for ever."""

import time
from contextlib import closing
from typing import Final

from databases.errors import ServerLost
from event_token import GtidSet, MariadbGtidSet, MysqlGtidSet
from event_token.errors import UsageError
from producers.decoder import Decoder, DecoderOptions
from producers.decoder.errors import DecoderHalt, RolledBack
from producers.replication.gtid_scan import BinlogTransaction
from producers.replication.stream import STREAM_SILENCE_S_MAX, ReplicationStream, random_server_id
from producers.servers.server_list import OpenServer
from producers.session.heads import now_us
from producers.settings import ShardProducerSettings
from topics.kafka.client import RECORD_BYTES_MAX
from topics.names import ShardTopics
from topics.progress.record import Mark

_WAIT_S: Final = 1.0


def refuse_mark(
    settings: ShardProducerSettings, server: OpenServer, position: GtidSet, wanted: GtidSet
) -> None:
    """Raise UsageError if the transaction is a mark of this shard.

    What cannot be decoded is none, for a producer decodes all of its marks.
    """
    start = _right_before(server, position, wanted)
    stream = ReplicationStream.open(server.settings, server.family, start, random_server_id())
    _refuse(settings, server, stream, start, str(wanted))


def refuse_mark_at(
    settings: ShardProducerSettings, server: OpenServer, transaction: BinlogTransaction
) -> None:
    """Raise UsageError likewise for the transaction at its place in the binlogs."""
    stream = ReplicationStream.open_file(
        server.settings, server.family, transaction.binlog_file, transaction.binlog_pos
    )
    _refuse(settings, server, stream, MariadbGtidSet(), str(transaction))


def _refuse(
    settings: ShardProducerSettings,
    server: OpenServer,
    stream: ReplicationStream,
    start: GtidSet,
    wanted: str,
) -> None:
    mark = _mark_of(settings, server, stream, start)
    if mark is not None:
        raise UsageError(
            f"{wanted} is {mark.kind.value} of reshard {mark.reshard_id}: without it no reader "
            f"gets past this reshard. No producer stops there; run `shardstream produce` and "
            f"`shardstream reshard status {settings.keyspace}`, which name what is wrong"
        )


def _right_before(server: OpenServer, position: GtidSet, wanted: GtidSet) -> GtidSet:
    """The position from which the server sends the wanted transaction first."""
    executed = server.history().executed
    if isinstance(executed, MysqlGtidSet) and isinstance(wanted, MysqlGtidSet):
        return executed.subtract(wanted)
    assert isinstance(executed, MariadbGtidSet)  # noqa: S101 - one family per shard
    assert isinstance(position, MariadbGtidSet)  # noqa: S101 - likewise
    assert isinstance(wanted, MariadbGtidSet)  # noqa: S101 - likewise
    for domain, _, _ in wanted.domains:
        executed = executed.at_domain(domain, position)
    return executed


def _mark_of(
    settings: ShardProducerSettings, server: OpenServer, stream: ReplicationStream, start: GtidSet
) -> Mark | None:
    decoder = _decoder(settings, start)
    with closing(stream), closing(decoder):
        deadline_s = time.monotonic() + STREAM_SILENCE_S_MAX
        # A mark is the only record of its transaction.
        while not (decoder.transactions or decoder.messages > 1):
            if time.monotonic() > deadline_s:
                raise ServerLost(f"{server.name} does not send the transaction")
            if not (stream.wait(_WAIT_S) and stream.fill()):
                continue
            try:
                stream.start = decoder.feed(stream.buffer, stream.start, stream.end, 1)
            except (DecoderHalt, RolledBack):
                return None
            if decoder.in_transaction:  # it may be a long one
                deadline_s = time.monotonic() + STREAM_SILENCE_S_MAX
        return decoder.take_batch().mark if decoder.has_mark else None


def _decoder(settings: ShardProducerSettings, position: GtidSet) -> Decoder:
    """A decoder whose records go nowhere."""
    return Decoder(
        DecoderOptions(
            topic=ShardTopics(settings.keyspace, settings.shard).log,
            keyspace=settings.keyspace,
            shard=settings.shard,
            flavor=settings.flavor,
            position=str(position),
            next_seq=1,
            last_timestamp_us=0,
            last_cell_us=-1,
            produce=lambda *_record: None,
            record_bytes_max=RECORD_BYTES_MAX,
            on_full=lambda: None,
            schema_id=lambda _text: 0,
            max_clock_ahead_us=settings.max_clock_ahead_ms * 1000,
            now_us=now_us,
            on_notice=lambda _text: None,
        )
    )
