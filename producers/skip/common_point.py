"""Where the log and a MariaDB server parted: the last transaction of a domain that both have."""

from dataclasses import dataclass

from event_token import MariadbGtidSet
from event_token.mariadb_gtid import Last, parse_mariadb_gtid
from producers.servers.choice import ServerView, is_known
from producers.settings import ShardProducerSettings
from topics.kafka.client import ClientConfig
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
    """The last (server, number) of the domain that the server has; None if there is none.

    `lost`: the GTIDs of the log's transactions after it, in the log's order.
    """

    last: Last | None
    lost: list[str]


def common_point(
    settings: ShardProducerSettings, topics: ShardTopics, domain: int, view: ServerView
) -> CommonPoint:
    """Look back from the log's end for the last transaction of a domain that the server has.

    Both topics are searched: transactions without rows of the log are in positions alone, and
    those of one Kafka transaction in the log alone.
    """
    schema_ids = open_schema_ids(settings.kafka, settings.registry_url)
    in_log, lost = _in_log(settings.kafka, topics, schema_ids, (domain, view))
    in_progress = _in_progress(settings.kafka, topics, schema_ids, (domain, view))
    found = [last for last in (in_log, in_progress) if last is not None]
    # Both lie on the server's own history, where numbers grow.
    return CommonPoint(max(found, key=lambda last: last[1], default=None), lost)


def _in_log(
    config: ClientConfig, topics: ShardTopics, schema_ids: SchemaIds, what: tuple[int, ServerView]
) -> tuple[Last | None, list[str]]:
    domain, view = what
    codec = RecordDecoder(schema_ids)
    lost: list[str] = []
    with PartitionReader(config, topics.log, 0, TAIL_TIMEOUT_S) as reader:
        for record in reader.newest_first():
            event = codec.decode(record.value, topics.shard, record.offset)
            # Records of copies have no GTID, and that of an earlier loss names what no server has.
            if not event.gtid or _tells_loss(event):
                continue
            found_domain, server, number = parse_mariadb_gtid(event.gtid)
            if found_domain != domain:
                continue
            if is_known(view, domain, server, number):
                return (server, number), lost[::-1]
            if event.gtid not in lost[-1:]:
                lost.append(event.gtid)
    return None, lost[::-1]


def _tells_loss(event: VEvent) -> bool:
    return event.type is EventType.SKIP and Skip.of(event).kind is SkipKind.LOST


def _in_progress(
    config: ClientConfig, topics: ShardTopics, schema_ids: SchemaIds, what: tuple[int, ServerView]
) -> Last | None:
    domain, view = what
    with PartitionReader(config, topics.progress, 0, TAIL_TIMEOUT_S) as reader:
        for record in reader.newest_first():
            where = f"{topics.progress}, offset {record.offset}"
            progress = decode_progress(record.value, schema_ids, where)
            last = MariadbGtidSet.parse(progress.position).by_domain().get(domain)
            if last is not None and is_known(view, domain, *last):
                return last
    return None
