"""Resolves where a query begins and a batch query ends, and the hops between the two."""

from event_token import ClockUncertainty, StreamPosition
from event_token.errors import Retry, UsageError
from spark_consumers.source.micro_batches import BOUND_ROWS_MIN, WatchingPlanner
from spark_consumers.source.options import SourceOptions
from spark_consumers.source.stream_offset import Splits, StreamOffset, choose_splits
from topics.kafka.deadline import Deadline
from topics.keyspace.lineage import retired_us
from topics.keyspace.topology import Topology
from topics.progress.history import ProgressHistory
from topics.reading.planner import Batch, is_hop, ranges_between
from topics.records.schema_ids import SchemaIds
from topics.start.known_keyspace import known_topology
from topics.start.positions import resolve_start
from topics.start.start_forms import ParsedStart, StartWord
from topics.start.unmarked_hop import unmarked_hop, unmarked_targets
from topics.stream.progress_feed import ProgressFeed, clock_ms

# Longest search for one hop: all progress up to the end of a batch query is on Kafka already.
HOP_WAIT_S = 60.0
HOP_POLL_S = 0.1
# How often reshards without marks are looked for while heartbeats keep coming.
HOP_LOOK_S = 1.0


def stream_start(options: SourceOptions, schema_ids: SchemaIds) -> StreamOffset:
    """Return where a new streaming query begins; the default is `latest`."""
    topology = known_topology(options.kafka, options.keyspace)
    start = StartWord.LATEST if options.start is None else options.start
    return _offset(topology, _resolve(options, schema_ids, topology, start, options.clock))


def batch_bounds(
    options: SourceOptions, schema_ids: SchemaIds
) -> tuple[StreamOffset, StreamPosition]:
    """Return where a batch query begins (default: `earliest`) and where it ends.

    The end `latest` is the frontier, the lowest head (watermark) of all shards now, so the result
    is complete up to one moment.
    """
    topology = known_topology(options.kafka, options.keyspace)
    begin = StartWord.EARLIEST if options.start is None else options.start
    start = _resolve(options, schema_ids, topology, begin, options.clock)
    wanted = options.end
    if wanted is None or wanted is StartWord.LATEST:
        latest = _resolve(options, schema_ids, topology, StartWord.LATEST)
        wanted = max(start.frontier_us, latest.frontier_us)
    end = _resolve(options, schema_ids, topology, wanted, may_begin_later=True)
    if end.frontier_us < start.frontier_us:
        raise UsageError(
            f"option end ({end.frontier_us} us) lies before option start ({start.frontier_us} us)"
        )
    return _offset(topology, start), end


def batch_legs(
    options: SourceOptions, schema_ids: SchemaIds, start: StreamOffset, end: StreamPosition
) -> list[tuple[StreamOffset, StreamPosition]]:
    """Return pairs of positions of the same shards from start to end, one more per hop."""
    deadline = Deadline(HOP_WAIT_S)
    legs: list[tuple[StreamOffset, StreamPosition]] = []
    leg_start = start
    while leg_start.position.shards.keys() != end.shards.keys():
        leg_end, next_start = _next_hop(options, schema_ids, leg_start, end, deadline)
        legs.append((leg_start, leg_end))
        leg_start = next_start
    return [*legs, (leg_start, end)]


def _next_hop(
    options: SourceOptions,
    schema_ids: SchemaIds,
    start: StreamOffset,
    end: StreamPosition,
    deadline: Deadline,
) -> tuple[StreamPosition, StreamOffset]:
    """Return the positions before and after the first hop after `start`."""
    topology = known_topology(options.kafka, options.keyspace)
    planner = WatchingPlanner(
        start.position, options, retired_us(topology), until_us=end.frontier_us
    )
    look = Deadline(HOP_LOOK_S)
    feed = ProgressFeed(options.kafka, options.keyspace, schema_ids)
    try:
        while True:
            at = planner.position
            planned = planner.next_batch(clock_ms())
            if isinstance(planned, Batch):
                planner.advance(planned)
                if is_hop(at, planned.end):
                    return at, start.moved_to(planned.end, {})
                continue
            # With many shards a heartbeat arrives in every poll.
            if feed.poll(planner, HOP_POLL_S) and not look.passed:
                continue
            look = Deadline(HOP_LOOK_S)
            hop = unmarked_hop(
                at,
                config=options.kafka,
                topology=topology,
                key_range=options.key_range,
                schema_ids=schema_ids,
                is_exact=True,
                taken_us=planner.heads_us,
                clock=options.clock,
            )
            if hop is not None:
                return at, start.hopped_to(*hop)
            if deadline.passed:
                raise Retry(
                    f"keyspace {options.keyspace}: no way from the shards "
                    f"{', '.join(at.shards)} to {', '.join(end.shards)} was found in "
                    f"{deadline.seconds:g} s: {planned.reason}"
                )
    finally:
        feed.close()


def batch_splits(
    options: SourceOptions, schema_ids: SchemaIds, start: StreamPosition, end: StreamPosition
) -> Splits:
    """Choose where large ranges may be split: at the bounds of Kafka transactions."""
    splits = {}
    for shard, part in ranges_between(start, end).items():
        if part.rows <= options.max_rows_per_task:
            continue
        bounds: list[tuple[int, int]] = []
        with ProgressHistory(options.kafka, options.keyspace, shard, schema_ids) as history:
            offset = history.offset_for_position(start.shards[shard], start.frontier_us)
            for found in history.records(offset):
                progress = found.progress
                if progress.last_seq > part.last_seq:
                    break
                if not bounds or progress.last_seq >= bounds[-1][1] + BOUND_ROWS_MIN:
                    bounds.append((progress.end_offset, progress.last_seq))
        splits[shard] = choose_splits(part, bounds, options.max_rows_per_task)
    return splits


def _resolve(
    options: SourceOptions,
    schema_ids: SchemaIds,
    topology: Topology,
    start: ParsedStart,
    clock: ClockUncertainty = ClockUncertainty(),  # noqa: B008 - frozen, and has no state
    *,
    may_begin_later: bool = False,
) -> StreamPosition:
    return resolve_start(
        start,
        config=options.kafka,
        topology=topology,
        key_range=options.key_range,
        schema_ids=schema_ids,
        tables=None if options.table is None else (options.table,),
        clock=clock,
        may_begin_later=may_begin_later,
    )


def _offset(topology: Topology, position: StreamPosition) -> StreamOffset:
    """Return the offset of a query that begins here and has read nothing before."""
    return StreamOffset(position, seen=unmarked_targets(topology)).moved_to(position, {})
