"""Writes a SKIP record with the progress record of the position behind it, in one transaction.

`write_skip` writes like a producer: fenced, from the log's own end.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from event_token import GtidSet, parse_gtid_set
from event_token.errors import UsageError
from producers.errors import LogDisagrees
from producers.publisher import Publisher
from producers.servers.identity import check_identity
from producers.servers.server_list import ServerList
from producers.settings import ShardProducerSettings
from producers.start.choose_start import ResumePoint, resume_point
from topics.kafka.provisioning import broker_transaction_timeout_ms
from topics.keyspace.audit import REASON_CHARS_MAX, operator
from topics.names import ShardTopics
from topics.progress.codec import PROGRESS_KEY, PROGRESS_SCHEMA_TEXT, encode_progress, note_headers
from topics.progress.committed_tail import LastRow, LogTail, last_progress, read_committed_tail
from topics.progress.record import LastTransaction, Progress, Skipped, Tick, cell_start_us
from topics.progress.shard_claim import ShardClaim
from topics.records.skip_record import SKIP_KEY, Skip, SkipKind, encode_skip
from topics.records.statement_record import STATEMENT_SCHEMA_TEXT
from topics.records.table_shape import SchemaIds
from topics.records.vevent import TokenText
from topics.schemas import open_schema_ids


@dataclass(frozen=True, slots=True)
class SkipDecision:
    """What is skipped, and where the log stands afterwards.

    `gtid`: of the record. `gtids`: all transactions. `server`: the one that was asked. `lasts`: the
    log's last transactions that the next producer is to compare with the server's.
    """

    kind: SkipKind
    gtid: str
    gtids: str
    position: GtidSet
    server: str
    lasts: tuple[LastTransaction, ...]


@dataclass(frozen=True, slots=True)
class SkipReport:
    """The SKIP record that was written, and the position from which the producer goes on."""

    seq: int
    gtids: str
    position: str


@dataclass(frozen=True, slots=True)
class WrittenSkip:
    """A SKIP record that is committed, its progress record, and where a producer goes on."""

    report: SkipReport
    progress: Progress
    point: ResumePoint


def write_record(
    settings: ShardProducerSettings,
    publisher: Publisher,
    schema_ids: SchemaIds,
    point: ResumePoint,
    decision: SkipDecision,
    reason: str,
) -> WrittenSkip:
    """Write a SKIP record behind `point`, with the progress record of the position behind it.

    The shard is taken over, and no Kafka transaction is open.
    """
    topics = publisher.topics
    schema_ids.register(PROGRESS_SCHEMA_TEXT)
    schema_ids.register(STATEMENT_SCHEMA_TEXT)
    # The head: nothing that readers have seen is newer. A log without any has the time of now.
    now_us = time.time_ns() // 1000
    timestamp_us = point.clamp_us if point.clamp_us > 0 else now_us
    position = str(decision.position)
    value = encode_skip(
        Skip(decision.kind, decision.gtids, reason, operator()),
        seq=point.next_seq,
        token=TokenText(timestamp_us, settings.shard, position),
        gtid=decision.gtid,
        schema_ids=schema_ids,
    )
    publisher.begin()
    delivered = publisher.on_delivery
    with publisher.errors("writing the SKIP record"):
        publisher.produce(
            topics.log, value, SKIP_KEY, 0, delivered, delivered, timestamp_us // 1000
        )
    offset = publisher.flush(1)
    if offset < point.end_offset:
        raise LogDisagrees(
            f"{topics.log}: the SKIP record was stored at offset {offset}, below the log's end "
            f"offset {point.end_offset}: the topic was truncated, or deleted and recreated"
        )
    cell_us = cell_start_us(timestamp_us)
    progress = Progress(
        first_seq=point.next_seq,
        last_seq=point.next_seq,
        end_offset=offset + 1,
        flavor=settings.flavor.value,
        position=position,
        head_us=max(point.head_us, 0),
        ticks=() if cell_us == point.last_cell_us else (Tick(cell_us, offset),),
        mark=None,
        server=decision.server,
        server_time_us=now_us,
        lag_ms=0,
        lasts=decision.lasts,
        identity=point.identity,
        skipped=Skipped(1 if point.skipped is None else point.skipped.count + 1, now_us),
        ddl=point.ddl,
        passed=point.passed,
    )
    value, head_ms = encode_progress(progress, schema_ids), progress.head_us // 1000
    publisher.commit(value, PROGRESS_KEY, head_ms, note_headers(progress))
    log = LogTail(0, LastRow(offset, point.next_seq, timestamp_us))
    after = resume_point(topics, settings.flavor, progress, log)
    assert after is not None  # noqa: S101 - there is progress
    return WrittenSkip(SkipReport(point.next_seq, decision.gtids, position), progress, after)


# (what the log has executed, its last transactions, the shard's servers) -> what to write; raises
# what speaks against it
Decide = Callable[[GtidSet, tuple[LastTransaction, ...], ServerList], SkipDecision]


def write_skip(settings: ShardProducerSettings, reason: str, decide: Decide) -> SkipReport:
    """Let `decide` check everything, take over the shard, check again, and write the record.

    A producer that runs is fenced, but only after the first check. UsageError for an empty log or
    an impossible reason; WrongServer for a server of another shard; what `decide`, `ServerList`,
    `Publisher` and `resume_point` raise.
    """
    check_reason(reason)
    topics = settings.shard_topics
    schema_ids = open_schema_ids(settings.kafka, settings.registry_url)
    with ExitStack() as opened:
        servers = ServerList.open(settings)
        opened.callback(servers.close)
        committed = last_progress(settings.kafka, topics, schema_ids)
        if committed is None:
            raise empty_log(topics)
        position = parse_gtid_set(committed.position, settings.flavor)
        checked(servers, committed.identity, lambda: decide(position, committed.lasts, servers))
        timeout_ms = broker_transaction_timeout_ms(settings.kafka)
        publisher = Publisher(settings.kafka, topics, timeout_ms, lambda: False)
        opened.callback(publisher.close)
        claim = ShardClaim(settings.kafka, topics)
        claim.make()
        publisher.fence(claim.check)
        progress, tail = read_committed_tail(
            settings.kafka, topics, schema_ids, publisher.abort_open
        )
        point = resume_point(topics, settings.flavor, progress, tail)
        if point is None:
            raise empty_log(topics)
        decision = checked(
            servers, point.identity, lambda: decide(point.position, point.lasts, servers)
        )
        return write_record(settings, publisher, schema_ids, point, decision, reason).report


def checked(servers: ServerList, identity: str, decide: Callable[[], SkipDecision]) -> SkipDecision:
    """What `decide` says, from a server that belongs to the shard.

    `identity`: the log's, "" for none. By their GTIDs alone servers of MariaDB look alike: the log
    would go on at a place of another shard's history, and repeat changes on the right server.
    """
    decision = decide()
    if identity:
        check_identity(servers.named(decision.server), identity)
    return decision


def check_reason(reason: str) -> None:
    """UsageError unless every reader can carry the reason along."""
    if not reason.strip() or len(reason) > REASON_CHARS_MAX:
        raise UsageError(
            f"--reason takes a text of at most {REASON_CHARS_MAX} characters: all readers of the "
            "log see it"
        )


def empty_log(topics: ShardTopics) -> UsageError:
    """The refusal to skip anything in a log without records."""
    return UsageError(
        f"{topics.log} is empty, so there is nothing to go on from: start it after the "
        "transaction instead, with produce --from gtid:SET, where SET includes it"
    )
