"""Where reading begins and ends: options, the topology and progress together give positions."""

from event_token import StreamPosition
from event_token.errors import Retry, UsageError
from spark_consumers.batch_planning import BOUND_ROWS_MIN
from spark_consumers.source_options import SourceOptions
from spark_consumers.stream_offset import Splits, choose_splits
from topics.deadline import Deadline
from topics.progress_feed import ProgressFeed, clock_ms
from topics.progress_history import ProgressHistory
from topics.reading.planner import Batch, Planner, is_hop, ranges_between
from topics.schema_ids import SchemaIds
from topics.start import EARLIEST, LATEST, resolve_start
from topics.topology import Topology, read_topology
from topics.unmarked_hop import check_marked

# All progress up to a batch query's end is on Kafka when its hops are looked for.
HOP_WAIT_S = 60.0
HOP_POLL_S = 0.1


def stream_start(options: SourceOptions, schema_ids: SchemaIds) -> StreamPosition:
    """Where a new query begins; `latest` where the options do not say."""
    topology = _topology(options)
    return _resolve(
        options, schema_ids, topology, LATEST if options.start is None else options.start
    )


def batch_bounds(
    options: SourceOptions, schema_ids: SchemaIds
) -> tuple[StreamPosition, StreamPosition]:
    """Where a batch query begins (`earliest` unless said) and ends.

    The end `latest` is the frontier: the least head of all shards now, so that the result is
    whole up to one moment. What lies beyond it is another query's.
    """
    topology = _topology(options)
    start = _resolve(
        options, schema_ids, topology, EARLIEST if options.start is None else options.start
    )
    wanted = options.end
    if wanted is None or wanted == LATEST:
        latest = _resolve(options, schema_ids, topology, LATEST)
        wanted = max(start.frontier_us, latest.frontier_us)
    end = _resolve(options, schema_ids, topology, wanted)
    if end.frontier_us < start.frontier_us:
        raise UsageError(
            f"option end ({end.frontier_us} us) lies before option start ({start.frontier_us} us)"
        )
    if start.shards.keys() != end.shards.keys():
        check_marked(topology, start)
    return start, end


def batch_legs(
    options: SourceOptions, schema_ids: SchemaIds, start: StreamPosition, end: StreamPosition
) -> list[tuple[StreamPosition, StreamPosition]]:
    """What lies between, as pairs of positions of the same shards: one more for each hop."""
    planner = Planner(start, options.key_range, until_us=end.frontier_us)
    feed = ProgressFeed(options.kafka, options.keyspace, schema_ids)
    deadline = Deadline(HOP_WAIT_S)
    legs: list[tuple[StreamPosition, StreamPosition]] = []
    leg_start = start
    try:
        while planner.position.shards.keys() != end.shards.keys():
            before = planner.position
            planned = planner.next_batch(clock_ms())
            if isinstance(planned, Batch):
                planner.advance(planned)
                if is_hop(before, planned.end):
                    legs.append((leg_start, before))
                    leg_start = planned.end
            elif feed.poll(planner, HOP_POLL_S) == 0 and deadline.passed:
                raise Retry(
                    f"keyspace {options.keyspace}: no way from the shards "
                    f"{', '.join(start.shards)} to {', '.join(end.shards)} was found in "
                    f"{deadline.seconds:g} s: {planned.reason}"
                )
    finally:
        feed.close()
    return [*legs, (leg_start, end)]


def batch_splits(
    options: SourceOptions, schema_ids: SchemaIds, start: StreamPosition, end: StreamPosition
) -> Splits:
    """Where big ranges may be split, at bounds of Kafka transactions."""
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
    options: SourceOptions, schema_ids: SchemaIds, topology: Topology, start: str | int
) -> StreamPosition:
    return resolve_start(
        start,
        config=options.kafka,
        topology=topology,
        key_range=options.key_range,
        schema_ids=schema_ids,
    )


def _topology(options: SourceOptions) -> Topology:
    topology = read_topology(options.kafka, options.keyspace)
    if topology is None:
        raise UsageError(
            f"keyspace {options.keyspace} has no topology: has a producer been set up?"
        )
    return topology
