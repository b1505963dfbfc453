"""Leaves in the progress topic why a producer stops, for whoever looks at the fleet."""

import logging
import re
import time
from dataclasses import replace
from typing import Final

from event_token.errors import ShardstreamError, TakenOver
from producers.errors import LogDisagrees
from producers.shard_log.publisher import Publisher
from topics.kafka.errors import TopicMissing
from topics.progress.codec import PROGRESS_KEY, encode_progress
from topics.progress.notes import note_headers
from topics.progress.record import Progress, StopReason
from topics.records.schema_ids import SchemaIds

# What an operator reads in one sentence of a page; the producer's log has all of it.
TEXT_MAX: Final = 400
# There is no topic to write to after TopicMissing, another producer writes after TakenOver, and
# after LogDisagrees no record may be added before somebody has looked.
_UNTOLD: Final = (TakenOver, TopicMissing, LogDisagrees)
_CREDENTIALS: Final = re.compile(r"://[^/@\s]+@")

_LOG: Final = logging.getLogger("shardstream.kafka")


def leave_reason(
    publisher: Publisher,
    last: Progress,
    schema_ids: SchemaIds,
    error: BaseException,
    restarts: int = 0,
) -> None:
    """Commit the last progress once more, with the reason; nothing for errors of another's log.

    `last`: the newest committed record. Its times stay, so nobody takes the shard for alive. What
    Kafka refuses is not raised: the error that stops the producer is more important.
    """
    if isinstance(error, _UNTOLD):
        return
    progress = replace(
        last,
        first_seq=last.last_seq + 1,
        ticks=(),
        mark=None,
        stopped=stop_reason(error, time.time_ns() // 1000, restarts),
    )
    value, headers = encode_progress(progress, schema_ids), note_headers(progress)
    try:
        publisher.leave(value, PROGRESS_KEY, progress.head_us // 1000, headers)
    except ShardstreamError as refused:
        _LOG.info("%s: the reason of the stop is not left: %s", publisher.topics.log, refused)


def stop_reason(error: BaseException, at_us: int, restarts: int = 0) -> StopReason:
    """Return an error as one line without credentials. Pure.

    Messages of our own never hold values of rows; those of others might.
    """
    said = "an error that nobody expected: the producer's log has it"
    if isinstance(error, ShardstreamError):
        said = " ".join(str(error).split())
    text = _CREDENTIALS.sub("://***@", said)
    if len(text) > TEXT_MAX:
        text = text[: TEXT_MAX - 3] + "..."
    return StopReason(at_us, type(error).__name__, text, restarts)
