"""Writes a SKIP record like a producer: fenced, with the progress record of its position."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

from event_token import GtidSet, parse_gtid_set
from event_token.errors import UsageError
from producers.servers.identity import check_identity
from producers.servers.server_list import ServerList
from producers.settings import ShardProducerSettings
from producers.shard_log.publisher import Publisher
from producers.skip.record_writer import Decision, SkipReport, write_record
from producers.start.resume_point import resume_point
from topics.kafka.provisioning import broker_transaction_timeout_ms
from topics.names import ShardTopics
from topics.progress.committed_tail import last_progress, read_committed_tail
from topics.progress.record import LastTransaction
from topics.schemas.registry import open_schema_ids

# A reason is a sentence or a ticket, and every reader carries it along.
REASON_CHARS_MAX: Final = 1_000


# (what the log has executed, its last transaction, the shard's servers) -> what to write; raises
# what speaks against it
Decide = Callable[[GtidSet, LastTransaction | None, ServerList], Decision]


def write_skip(settings: ShardProducerSettings, reason: str, decide: Decide) -> SkipReport:
    """Let `decide` check everything, take over the shard, check again, and write the record.

    A producer that runs is fenced, but only after the first check. UsageError for an empty log or
    an impossible reason; WrongServer for a server of another shard; what `decide`, `ServerList`,
    `Publisher` and `resume_point` raise.
    """
    check_reason(reason)
    topics = ShardTopics(settings.keyspace, settings.shard)
    schema_ids = open_schema_ids(settings.kafka, settings.registry_url)
    with ExitStack() as opened:
        servers = ServerList.open(settings)
        opened.callback(servers.close)
        committed = last_progress(settings.kafka, topics, schema_ids)
        if committed is None:
            raise empty_log(topics)
        position = parse_gtid_set(committed.position, settings.flavor)
        checked(
            topics, servers, committed.identity, lambda: decide(position, committed.last, servers)
        )
        timeout_ms = broker_transaction_timeout_ms(settings.kafka)
        publisher = Publisher(settings.kafka, topics, timeout_ms, lambda: False)
        opened.callback(publisher.close)
        publisher.fence()
        progress, tail = read_committed_tail(
            settings.kafka, topics, schema_ids, publisher.abort_open
        )
        point = resume_point(topics, settings.flavor, progress, tail)
        if point is None:
            raise empty_log(topics)
        decision = checked(
            topics, servers, point.identity, lambda: decide(point.position, point.last, servers)
        )
        return write_record(settings, publisher, schema_ids, point, decision, reason).report


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
