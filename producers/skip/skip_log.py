"""Writes a SKIP record like a producer: fenced, with the progress record of its position."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from event_token import GtidSet, parse_gtid_set
from event_token.errors import UsageError
from producers.errors import LogDisagrees
from producers.servers.identity import check_identity
from producers.servers.server_list import ServerList
from producers.session.heads import now_us
from producers.settings import ShardProducerSettings
from producers.shard_log.publisher import Publisher
from producers.start.resume_point import ResumePoint, resume_point
from topics.kafka.provisioning import broker_transaction_timeout_ms
from topics.names import ShardTopics
from topics.progress.codec import (
    PROGRESS_KEY,
    PROGRESS_SCHEMA_TEXT,
    encode_progress,
)
from topics.progress.committed_tail import last_progress, read_committed_tail
from topics.progress.notes import note_headers
from topics.progress.record import LastTransaction, Progress, Skipped, Tick, cell_start_us
from topics.records.schema_ids import SchemaIds
from topics.records.skip_record import SKIP_KEY, SKIP_SCHEMA_TEXT, Skip, SkipKind, encode_skip
from topics.records.vevent import TokenText
from topics.schemas.registry import open_schema_ids

# A reason is a sentence or a ticket, and every reader carries it along.
REASON_CHARS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class Decision:
    """What is skipped, and where the log stands afterwards.

    `gtid`: of the record. `gtids`: all transactions. `server`: the one that was asked. `last`: the
    log's last transaction, if the next producer is to compare it with the server's.
    """

    kind: SkipKind
    gtid: str
    gtids: str
    position: GtidSet
    server: str
    last: LastTransaction | None


@dataclass(frozen=True, slots=True)
class SkipReport:
    """The SKIP record that was written, and the position from which the producer goes on."""

    seq: int
    gtids: str
    position: str


# (what the log has executed, its last transaction, the shard's servers) -> what to write; raises
# what speaks against it
Decide = Callable[[GtidSet, LastTransaction | None, ServerList], Decision]


def write_skip(settings: ShardProducerSettings, reason: str, decide: Decide) -> SkipReport:
    """Let `decide` check everything, take over the shard, check again, and write the record.

    A producer that runs is fenced, but only after the first check. UsageError for an empty log or
    an impossible reason; WrongServer for a server of another shard; what `decide`, `ServerList`,
    `Publisher` and `resume_point` raise.
    """
    if not reason.strip() or len(reason) > REASON_CHARS_MAX:
        raise UsageError(
            f"--reason takes a text of at most {REASON_CHARS_MAX} characters: all readers of the "
            "log see it"
        )
    topics = ShardTopics(settings.keyspace, settings.shard)
    schema_ids = open_schema_ids(settings.kafka, settings.registry_url)
    with ExitStack() as opened:
        servers = ServerList.open(settings)
        opened.callback(servers.close)
        committed = last_progress(settings.kafka, topics, schema_ids)
        if committed is None:
            raise _empty(topics)
        position = parse_gtid_set(committed.position, settings.flavor)
        checked(
            topics, servers, committed.identity, lambda: decide(position, committed.last, servers)
        )
        schema_ids.register(PROGRESS_SCHEMA_TEXT)
        schema_ids.register(SKIP_SCHEMA_TEXT)
        timeout_ms = broker_transaction_timeout_ms(settings.kafka)
        publisher = Publisher(settings.kafka, topics, timeout_ms, lambda: False)
        opened.callback(publisher.close)
        publisher.fence()
        progress, tail = read_committed_tail(
            settings.kafka, topics, schema_ids, publisher.abort_open
        )
        point = resume_point(topics, settings.flavor, progress, tail)
        if point is None:
            raise _empty(topics)
        decision = checked(
            topics, servers, point.identity, lambda: decide(point.position, point.last, servers)
        )
        return _write(settings, publisher, schema_ids, point, (decision, reason))


def checked(
    topics: ShardTopics, servers: ServerList, identity: str, decide: Callable[[], Decision]
) -> Decision:
    """What `decide` says, from a server that belongs to the shard.

    `identity`: the log's, "" for none. By their GTIDs alone servers of MariaDB look alike: the log
    would go on at a place of another shard's history, and repeat changes on the right server.
    """
    decision = decide()
    if identity:
        check_identity(topics, servers.named(decision.server), identity)
    return decision


def _empty(topics: ShardTopics) -> UsageError:
    return UsageError(
        f"{topics.log} is empty, so there is nothing to go on from: start it after the "
        "transaction instead, with produce --from gtid:SET, where SET includes it"
    )


def _write(
    settings: ShardProducerSettings,
    publisher: Publisher,
    schema_ids: SchemaIds,
    point: ResumePoint,
    decided: tuple[Decision, str],
) -> SkipReport:
    decision, reason = decided
    topics = publisher.topics
    # The head: nothing that readers have seen is newer. A log without any has the time of now.
    timestamp_us = point.clamp_us if point.clamp_us > 0 else now_us()
    position = str(decision.position)
    value = encode_skip(
        Skip(decision.kind, decision.gtids, reason),
        seq=point.next_seq,
        token=TokenText(timestamp_us, settings.shard, position),
        gtid=decision.gtid,
        schema_ids=schema_ids,
    )
    publisher.begin()
    told = publisher.on_delivery
    with publisher.errors("writing the SKIP record"):
        publisher.produce(topics.log, value, SKIP_KEY, 0, told, told, timestamp_us // 1000)
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
        server_time_us=now_us(),
        lag_ms=0,
        last=decision.last,
        identity=point.identity,
        skipped=Skipped(1 if point.skipped is None else point.skipped.count + 1, now_us()),
        ddl=point.ddl,
    )
    value, head_ms = encode_progress(progress, schema_ids), progress.head_us // 1000
    publisher.commit(value, PROGRESS_KEY, head_ms, note_headers(progress))
    return SkipReport(point.next_seq, decision.gtids, position)
