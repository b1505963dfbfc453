"""The logs of a reshard's sources, merged by time: what an applier reads.

Like a subscriber's stream (frontier and cut), but of named shards, and it reads on past the marks
of reshards: an applier has to bring its target up to END itself, and never hops.
"""

from dataclasses import replace
from typing import Final

from event_token import StreamPosition
from resharding.plan.reshard_plan import range_of
from topics.kafka.client import ClientConfig
from topics.progress.record import Progress
from topics.reading.planner import Planner
from topics.records.record_decoder import RecordDecoder
from topics.schemas.registry import open_schema_ids
from topics.stream.delivery import Delivery
from topics.stream.log_reader import ShardLogReader
from topics.stream.merged_stream import MergedStream
from topics.stream.progress_feed import ProgressFeed

# Events delivered at once, hence the size of a target transaction under load: a commit costs about
# as much as 100 rows.
RUN_ROWS_MAX: Final = 1_000
# Longest wait of one read, so that the applier can stop.
POLL_S: Final = 0.05


class _UnmarkedPlanner(Planner):
    """Plans past marks, which are ordinary records here."""

    def observe(self, shard: str, progress: Progress, seen_at_ms: int) -> None:
        """Take in a progress record without its mark."""
        super().observe(shard, replace(progress, mark=None), seen_at_ms)


def source_stream(
    start: StreamPosition, *, config: ClientConfig, registry_url: str | None, keyspace: str
) -> MergedStream:
    """Events of the sources in merged order, from a position that names the shards.

    No network access before the first `read`. Raises what a subscriber raises: Halts of the reading
    core, Retry while brokers are unavailable.
    """
    whole = range_of(start.shards)
    schema_ids = open_schema_ids(config, registry_url)
    return MergedStream(
        start,
        run_rows_max=RUN_ROWS_MAX,
        poll_s=POLL_S,
        planner=_UnmarkedPlanner(start, whole),
        feed=ProgressFeed(config, keyspace, schema_ids),
        open_reader=lambda shard: ShardLogReader(config, keyspace, shard),
        decoder=RecordDecoder(schema_ids),
        delivery=Delivery(whole, None, start),
        with_images=True,
    )
