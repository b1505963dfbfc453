"""Makes reports as named readers write them."""

from event_token import KeyRange, ShardPosition, StreamPosition
from tests.topics.shard_writer import TIMEOUT_S
from topics.kafka.client import ClientConfig, open_producer
from topics.named_readers import ReaderRecord, encode_record, record_key
from topics.names import readers_topic


def report(name: str = "billing", instance: str = "a", offset: int = 1) -> ReaderRecord:
    """A report from one process."""
    position = StreamPosition(2, 30_000, {"-80": ShardPosition(offset, 1, None)})
    return ReaderRecord(
        name, instance, position, KeyRange.parse("-80"), f"host-{instance}", "1.2", 99, 3
    )


def write_report(config: ClientConfig, keyspace: str, record: ReaderRecord) -> None:
    """Report as a reader does."""
    producer = open_producer(config)
    value = encode_record(record)
    producer.produce(readers_topic(keyspace), value, record_key(record.name))
    assert producer.flush(TIMEOUT_S) == 0
