"""Where reading begins and ends: options, the topology and progress together give positions."""

from event_token import StreamPosition
from event_token.errors import UsageError
from spark_consumers.batch_planning import BOUND_ROWS_MIN
from spark_consumers.source_options import SourceOptions
from spark_consumers.stream_offset import Splits, choose_splits
from topics.progress import cell_start_us
from topics.progress_history import ProgressHistory
from topics.reading.planner import ranges_between
from topics.schema_ids import SchemaIds
from topics.start import EARLIEST, LATEST, resolve_start
from topics.topology import Topology, read_topology


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
        wanted = _frontier_us(options, schema_ids, start)
    end = _resolve(options, schema_ids, topology, wanted)
    if end.frontier_us < start.frontier_us:
        raise UsageError(
            f"option end ({end.frontier_us} us) lies before option start ({start.frontier_us} us)"
        )
    return start, end


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


def _frontier_us(options: SourceOptions, schema_ids: SchemaIds, start: StreamPosition) -> int:
    heads = []
    for shard in start.shards:
        with ProgressHistory(options.kafka, options.keyspace, shard, schema_ids) as history:
            last = history.last()
        heads.append(0 if last is None else last.progress.head_us)
    return max(start.frontier_us, cell_start_us(min(heads)))


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
