"""Where a log and a server parted: the last transaction of one source that both have."""

from dataclasses import dataclass

from event_token import GtidSet, parse_gtid_set
from producers.settings import ShardProducerSettings
from producers.skip.gtid_sources import source_of
from producers.skip.server_commits import ServerCommits
from topics.kafka.partition_reader import TAIL_TIMEOUT_S, PartitionReader
from topics.names import ShardTopics
from topics.progress.codec import decode_progress
from topics.records.record_decoder import RecordDecoder
from topics.records.schema_ids import SchemaIds
from topics.records.skip_record import Skip, SkipKind
from topics.records.vevent import EventType, VEvent
from topics.schemas.registry import open_schema_ids


@dataclass(frozen=True, slots=True)
class CommonPoint:
    """`position`: of the log after the last transaction of the source that both have, or None.

    `lost`: the GTIDs of the log's transactions of the source after it, in the log's order;
    `rewritten`: those of them under which the server has another transaction.
    """

    position: GtidSet | None
    lost: list[str]
    rewritten: list[str]


def common_point(
    settings: ShardProducerSettings, topics: ShardTopics, source: str, commits: ServerCommits
) -> CommonPoint:
    """Look back from the log's end for the last transaction of a source that the server has.

    Both topics are searched: transactions without rows of the log are in positions alone, and
    those of one Kafka transaction in the log alone. Neither is read where the server has nothing of
    the source: the search would end at the log's beginning.
    """
    if source not in commits.sources:
        return CommonPoint(None, [], [])
    schema_ids = open_schema_ids(settings.kafka, settings.registry_url)
    in_log = _in_log(settings, topics, schema_ids, (source, commits))
    in_progress = _in_progress(settings, topics, schema_ids, (source, commits))
    found = [position for position in (in_log.position, in_progress) if position is not None]
    # Both lie on one line, where positions grow.
    newest = next((p for p in found if all(p.includes(other) for other in found)), None)
    return CommonPoint(newest, in_log.lost, in_log.rewritten)


def _in_log(
    settings: ShardProducerSettings,
    topics: ShardTopics,
    schema_ids: SchemaIds,
    what: tuple[str, ServerCommits],
) -> CommonPoint:
    source, commits = what
    codec = RecordDecoder(schema_ids)
    lost: list[str] = []
    rewritten: list[str] = []
    with PartitionReader(settings.kafka, topics.log, 0, TAIL_TIMEOUT_S) as reader:
        for record in reader.newest_first():
            event = codec.decode(record.value, topics.shard, record.offset)
            # Records of copies have no GTID, and that of an earlier loss names what no server has.
            if not event.gtid or _tells_loss(event) or source_of(event.gtid) != source:
                continue
            if event.gtid in lost[-1:]:
                continue
            # Of a skipped transaction the log does not have the commit time.
            is_skip = event.type is EventType.SKIP
            if not is_skip and commits.differs(event.gtid, event.commit_us):
                rewritten.append(event.gtid)
            elif commits.has_executed(event.gtid):
                return CommonPoint(event.token.position, lost[::-1], rewritten[::-1])
            lost.append(event.gtid)
    return CommonPoint(None, lost[::-1], rewritten[::-1])


def _tells_loss(event: VEvent) -> bool:
    return event.type is EventType.SKIP and Skip.of(event).kind is SkipKind.LOST


def _in_progress(
    settings: ShardProducerSettings,
    topics: ShardTopics,
    schema_ids: SchemaIds,
    what: tuple[str, ServerCommits],
) -> GtidSet | None:
    source, commits = what
    with PartitionReader(settings.kafka, topics.progress, 0, TAIL_TIMEOUT_S) as reader:
        for record in reader.newest_first():
            where = f"{topics.progress}, offset {record.offset}"
            progress = decode_progress(record.value, schema_ids, where)
            last = progress.last
            if last is None or source_of(last.gtid) != source:
                continue
            if commits.has_executed(last.gtid) and not commits.differs(last.gtid, last.commit_us):
                return parse_gtid_set(progress.position, settings.flavor)
    return None
