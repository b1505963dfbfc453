"""The ends of a shard's topics, made by hand."""

from topics.fleet.view import ShardEnds
from topics.progress.record import Progress

SECOND_US = 1_000_000
RETENTION_MS = 7 * 86_400_000


def shard_look(
    now_us: int,
    *,
    head_s_ago: float,
    written_s_ago: float,
    seq: int = 7,
    server: str = "db-a:3306",
) -> ShardEnds:
    """The end of a shard's topics with this watermark, written then."""
    head_us = now_us - round(head_s_ago * SECOND_US)
    progress = Progress(
        first_seq=seq,
        last_seq=seq,
        end_offset=seq,
        flavor="mysql",
        position="",
        head_us=head_us,
        ticks=(),
        mark=None,
        server=server,
        server_time_us=head_us,
        lag_ms=0,
    )
    written_us = now_us - round(written_s_ago * SECOND_US)
    return ShardEnds(progress, written_us, 3.5, retention_ms=RETENTION_MS)
