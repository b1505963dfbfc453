"""One SKIP record, with the progress record of the position behind it, in one transaction."""

import time
from dataclasses import dataclass

from event_token import GtidSet
from producers.errors import LogDisagrees
from producers.settings import ShardProducerSettings
from producers.shard_log.publisher import Publisher
from producers.start.resume_point import ResumePoint, resume_point
from topics.progress.codec import PROGRESS_KEY, PROGRESS_SCHEMA_TEXT, encode_progress
from topics.progress.committed_tail import LastRow, LogTail
from topics.progress.notes import note_headers
from topics.progress.record import LastTransaction, Progress, Skipped, Tick, cell_start_us
from topics.records.schema_ids import SchemaIds
from topics.records.skip_record import SKIP_KEY, SKIP_SCHEMA_TEXT, Skip, SkipKind, encode_skip
from topics.records.vevent import TokenText


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


@dataclass(frozen=True, slots=True)
class Written:
    """A SKIP record that is committed, its progress record, and where a producer goes on."""

    report: SkipReport
    progress: Progress
    point: ResumePoint


def write_record(
    settings: ShardProducerSettings,
    publisher: Publisher,
    schema_ids: SchemaIds,
    point: ResumePoint,
    decision: Decision,
    reason: str,
) -> Written:
    """Write a SKIP record behind `point`, with the progress record of the position behind it.

    The shard is taken over, and no Kafka transaction is open.
    """
    topics = publisher.topics
    schema_ids.register(PROGRESS_SCHEMA_TEXT)
    schema_ids.register(SKIP_SCHEMA_TEXT)
    # The head: nothing that readers have seen is newer. A log without any has the time of now.
    now_us = time.time_ns() // 1000
    timestamp_us = point.clamp_us if point.clamp_us > 0 else now_us
    position = str(decision.position)
    value = encode_skip(
        Skip(decision.kind, decision.gtids, reason),
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
        last=decision.last,
        identity=point.identity,
        skipped=Skipped(1 if point.skipped is None else point.skipped.count + 1, now_us),
        ddl=point.ddl,
    )
    value, head_ms = encode_progress(progress, schema_ids), progress.head_us // 1000
    publisher.commit(value, PROGRESS_KEY, head_ms, note_headers(progress))
    log = LogTail(0, LastRow(offset, point.next_seq, timestamp_us))
    after = resume_point(topics, settings.flavor, progress, log)
    assert after is not None  # noqa: S101 - there is progress
    return Written(SkipReport(point.next_seq, decision.gtids, position), progress, after)
