"""Passes one transaction without checking whether it stops the shard: `skip --gtid --force`.

A mark of a reshard is never passed: readers would wait for it for ever.
"""

import time
from collections.abc import Collection
from contextlib import closing
from typing import Final

from databases.errors import ServerLost
from event_token import Flavor, GtidSet, MariadbGtidSet, MysqlGtidSet, parse_mysql_gtid
from event_token.errors import UsageError
from event_token.mariadb_gtid import parse_mariadb_gtid
from producers.clock import now_us
from producers.decoder import Decoder, DecoderOptions
from producers.decoder.errors import DecoderHalt, RolledBack
from producers.errors import ServerBehindLog
from producers.replication.gtid_scan import BinlogTransaction
from producers.replication.stream import STREAM_SILENCE_S_MAX, ReplicationStream, random_server_id
from producers.servers.choice import lacking
from producers.servers.server_list import OpenServer, ServerList
from producers.settings import ShardProducerSettings
from producers.skip.record_writer import SkipDecision, SkipReport, write_skip
from producers.start.last_transaction import (
    DomainTail,
    find_behind,
    ran_backwards,
    read_domain_tail,
)
from topics.progress.record import LastTransaction, Mark
from topics.records.skip_record import SkipKind

_WAIT_S: Final = 1.0


def refuse_mark(
    settings: ShardProducerSettings, server: OpenServer, position: GtidSet, wanted: GtidSet
) -> None:
    """Raise UsageError if the transaction is a mark of this shard.

    What cannot be decoded is none, for a producer decodes all of its marks.
    """
    start = _right_before(server, position, wanted)
    stream = server.open_stream(start, random_server_id())
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
            topic=settings.shard_topics.log,
            keyspace=settings.keyspace,
            shard=settings.shard,
            flavor=settings.flavor,
            position=str(position),
            next_seq=1,
            last_timestamp_us=0,
            last_cell_us=-1,
            produce=lambda *_record: None,
            record_bytes_max=settings.kafka.record_bytes_max,
            on_full=lambda: None,
            schema_id=lambda _text: 0,
            max_clock_ahead_us=settings.max_clock_ahead_ms * 1000,
            now_us=now_us,
            on_notice=lambda _text: None,
        )
    )


def skip_transaction(settings: ShardProducerSettings, gtid: str, reason: str) -> SkipReport:
    """Write a SKIP record for a transaction that is on the server and not in the log.

    MySQL: any such GTID. MariaDB: only the next one of its domain, for a position of MariaDB
    cannot leave one out; and where numbers ran backwards, all of those up to the first number above
    the log's, together with it. Never a mark of a reshard. UsageError otherwise, and what
    `write_skip` raises.
    """
    wanted = parse_gtid(gtid, settings.flavor)

    def decide(
        position: GtidSet, lasts: tuple[LastTransaction, ...], servers: ServerList
    ) -> SkipDecision:
        server = choose_server(servers, position, lasts, [gtid])
        if isinstance(position, MariadbGtidSet) and isinstance(wanted, MariadbGtidSet):
            found = read_domain_tail(server, position, wanted.domains[0][0], lasts)
            if found.passed and str(wanted) in found.gtids:
                return _all(settings, server, position, found, lasts)
        else:
            found = None
        check_ahead(server, position, wanted)
        if found is not None:
            _check_next(server, wanted, found)
        refuse_mark(settings, server, position, wanted)
        text = str(wanted)
        after = position.add_gtid(text)
        return SkipDecision(SkipKind.TRANSACTION, text, text, after, server.name, lasts)

    return write_skip(settings, reason, decide)


def choose_server(
    servers: ServerList,
    position: GtidSet,
    lasts: tuple[LastTransaction, ...],
    wanted: Collection[str],
) -> OpenServer:
    """The server that continues from a position, or where numbers ran backwards up to `wanted`.

    NumbersRanBackwards where others did, and what `ServerList.choose` raises.
    """
    try:
        return servers.choose(position, lasts).server
    except ServerBehindLog:
        primary = servers.primary()
        found = None if primary is None else find_behind(primary, lasts)
        if primary is None or found is None:
            raise
        if set(wanted).isdisjoint(found.gtids):
            raise ran_backwards(primary, found) from None
        return primary


def check_ahead(server: OpenServer, position: GtidSet, wanted: GtidSet) -> None:
    """UsageError if the log is past a transaction, or the server cannot have it.

    Of MariaDB's GTIDs a server knows the last one per writer: an earlier one may be there.
    """
    if position.reaches(wanted):
        raise UsageError(
            f"{server.topics.log} is already past {wanted}: its position is {position}. The shard "
            "does not stop there, or it was skipped before"
        )
    view = server.view or server.look(is_replica=server.is_replica())
    if not lacking(wanted, view).is_empty:
        raise UsageError(f"{server.name} has not executed {wanted}: check the GTID")


def parse_gtid(gtid: str, flavor: Flavor) -> GtidSet:
    """The set of this one GTID; GtidError (a UsageError) unless it is one."""
    if flavor is Flavor.MYSQL:
        parse_mysql_gtid(gtid)
        return MysqlGtidSet.parse(gtid)
    parse_mariadb_gtid(gtid)
    return MariadbGtidSet.parse(gtid)


def _all(
    settings: ShardProducerSettings,
    server: OpenServer,
    position: GtidSet,
    found: DomainTail,
    lasts: tuple[LastTransaction, ...],
) -> SkipDecision:
    """Pass all that is out of order: the log can only go on behind the first number above."""
    if found.above is None:
        raise ran_backwards(server, found)
    for transaction in (*found.passed, found.above):
        refuse_mark_at(settings, server, transaction)
    above = str(found.above)
    after = position.add_gtid(above)
    # By its number the log's last transaction would be looked for among those that are passed.
    kept = tuple(last for last in lasts if after.ends_with(last.gtid))
    return SkipDecision(
        SkipKind.TRANSACTION, above, ",".join(found.gtids), after, server.name, kept
    )


def _check_next(server: OpenServer, wanted: GtidSet, found: DomainTail) -> None:
    """Refuse a GTID of MariaDB other than the first one after the position in its domain."""
    if str(found.above) != str(wanted):
        more = "" if not found.passed else f", behind {found.passed[0]}, which is out of order"
        above = found.above or "not there yet"
        raise UsageError(
            f"{server.topics.log}: the next transaction of this domain is {above}{more}, not "
            f"{wanted}: a position of MariaDB cannot leave out one number alone. Start the "
            "producer: it names the transaction that stops it"
        )
