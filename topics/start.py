"""From words and times to a position: where a reader of several shards begins."""

import time
from datetime import UTC, datetime, timedelta
from typing import Final

from event_token import KeyRange, ShardPosition, StreamPosition
from event_token.errors import UsageError
from topics.deadline import Deadline
from topics.kafka_client import ClientConfig
from topics.progress import cell_start_us
from topics.progress_history import ProgressHistory
from topics.reading.errors import StartNotReached
from topics.reading.planner import check_shards
from topics.reading.start_point import (
    earliest_point,
    latest_point,
    point_at_time,
    start_frontier_us,
)
from topics.schema_ids import SchemaIds
from topics.topology import Topology

# "earliest", "latest", a position's opaque string; a time; a position.
Start = str | datetime | int | StreamPosition

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

# A start at the present time waits for the next heartbeats, which come every 250 ms; a shard
# whose log is further behind than this has to catch up first.
START_WAIT_S: Final = 30.0
_START_POLL_S: Final = 0.05

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def resolve_start(
    start: Start,
    *,
    config: ClientConfig,
    topology: Topology,
    key_range: KeyRange,
    schema_ids: SchemaIds,
    wait_s: float = START_WAIT_S,
) -> StreamPosition:
    """Return the position at which `start` lies for a reader of a key range.

    "earliest": the logs' beginnings, or their first whole grid cells where retention has eaten
    the beginnings. "latest": their ends. A time (aware datetime, or microseconds since the
    epoch): the first record of each shard that is not older than the time's 10 ms cell.

    UsageError when it cannot be understood or is a position of another range, PositionTooOld
    (Halt) for a time of which records were removed, StartNotReached (Retry) when a shard's log
    has not come to that time within `wait_s`.
    """
    if isinstance(start, str) and start not in {EARLIEST, LATEST}:
        start = StreamPosition.from_string(start)
    if isinstance(start, StreamPosition):
        check_shards(start, key_range)
        return start
    keyspace, shards = topology.keyspace, topology.shards_for(key_range)
    points: dict[str, ShardPosition] = {}
    heads: list[int | None] = []
    deadline = Deadline(wait_s)
    time_us = 0 if isinstance(start, str) else cell_start_us(_microseconds(start))
    for shard in shards:
        with ProgressHistory(config, keyspace, shard, schema_ids) as history:
            if start == EARLIEST:
                records = (found.progress for found in history.records())
                points[shard] = earliest_point(records, history.log_start())
            elif start == LATEST:
                last = history.last()
                progress = None if last is None else last.progress
                points[shard] = latest_point(progress, history.log_start())
                heads.append(None if progress is None else progress.head_us)
            else:
                points[shard] = _at_time(history, shard, time_us, deadline)
    if start == LATEST:
        time_us = start_frontier_us(heads)
    return StreamPosition(topology.epoch, time_us, points)


def _microseconds(moment: datetime | int) -> int:
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise UsageError(f"the start {moment.isoformat()} names no time zone: give it one")
        moment = (moment - _EPOCH) // timedelta(microseconds=1)
    if moment < 0:
        raise UsageError(f"the start {moment} us lies before 1970")
    return moment


def _at_time(
    history: ProgressHistory, shard: str, time_us: int, deadline: Deadline
) -> ShardPosition:
    offset = history.offset_for_time(time_us)
    log_start = history.log_start()
    while True:
        records = (found.progress for found in history.records(offset))
        point = point_at_time(shard, records, time_us, log_start)
        if point is not None:
            return point
        if deadline.passed:
            last = history.last()
            reached = "nothing yet" if last is None else f"{last.progress.head_us} us"
            raise StartNotReached(
                f"shard {shard}: its log has come to {reached}, the start is at {time_us} us; "
                f"waited {deadline.seconds:g} s. Does its producer run? Start from an earlier "
                f"time, or again once it has caught up",
            )
        time.sleep(_START_POLL_S)
