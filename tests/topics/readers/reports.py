"""Makes reports as named readers write them."""

from event_token import KeyRange, ShardPosition, StreamPosition
from topics.readers.record import ReaderRecord


def report(name: str = "billing", instance: str = "a", offset: int = 1) -> ReaderRecord:
    """A report from one process."""
    position = StreamPosition(2, 30_000, {"-80": ShardPosition(offset, 1, None)})
    return ReaderRecord(
        name, instance, position, KeyRange.parse("-80"), f"host-{instance}", "1.2", 99, 3
    )
