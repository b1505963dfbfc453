"""Writes shard logs and progress as a producer does: rows and progress in one transaction."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace

from confluent_kafka import Message, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, but not in __all__
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from event_token import parse_gtid_set
from event_token.gtid_set import Flavor
from event_token.token import EventToken
from tests.topics.records.record_encoder import RecordEncoder, record_key
from tests.topics.schemas.writing import transactional
from topics.kafka.client import MESSAGE_BYTES_MAX, ClientConfig, open_admin, open_consumer
from topics.kafka.partition_reader import await_stable, partition_bounds
from topics.kafka.provisioning import provision_keyspace, provision_schemas_topic, provision_shard
from topics.kafka.record_parts import MESSAGE_OVERHEAD_BYTES, Headers, cut_record
from topics.keyspace.topology import ShardEntry, Topology, update_topology
from topics.names import ShardTopics
from topics.progress.codec import PROGRESS_KEY, encode_progress
from topics.progress.record import InParts, Mark, MarkKind, Progress, Tick, cell_start_us
from topics.records.table_shape import Column, TableShape, ValueKind
from topics.records.vevent import EventType, Op, Row, TokenText, VEvent
from topics.schemas import TopicSchemaIds

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
# Longer than any broker here takes to answer, or to come back, beside other work.
TIMEOUT_S = 150.0
START_US = 1_700_000_000_000_000
CELL_US = 10_000
ORDERS = TableShape(
    "shop",
    "orders",
    (Column("id", ValueKind.LONG, "bigint"), Column("note", ValueKind.STRING, "text")),
    (0,),
)
ITEMS = TableShape("shop", "items", ORDERS.columns, (0,))


@dataclass(frozen=True)
class Reshard:
    """A reshard as its marks tell of it; `hop_us` counts from START_US."""

    reshard_id: str
    sources: tuple[str, ...]
    targets: tuple[str, ...]
    hop_us: int


def provision(config: ClientConfig, keyspace: str, shards: Sequence[str]) -> None:
    """Make the topics of a keyspace and its topology."""
    provision_schemas_topic(config)
    provision_keyspace(config, keyspace)
    for shard in shards:
        provision_shard(config, ShardTopics(keyspace, shard))
    entries = tuple(ShardEntry(shard) for shard in shards)
    update_topology(config, keyspace, lambda _: Topology(keyspace, 0, entries))


def limit_messages(config: ClientConfig, topic: str, bytes_max: int) -> None:
    """Let a topic take no larger messages."""
    set_topic(config, topic, "max.message.bytes", str(bytes_max))


def set_topic(config: ClientConfig, topic: str, name: str, value: str) -> None:
    """Change one setting of a topic."""
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = open_admin(config)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(TIMEOUT_S)


class ShardWriter:
    """The producer of one shard. Times are microseconds after START_US."""

    def __init__(self, config: ClientConfig, keyspace: str, shard: str) -> None:
        self.config = config
        self.shard = shard
        self.topics = ShardTopics(keyspace, shard)
        self.schema_ids = TopicSchemaIds(config)
        self.encoder = RecordEncoder(self.schema_ids, keyspace)
        self.seq = 0
        self.written: list[VEvent] = []
        self.head_us = START_US
        self.last_cell_us = -1
        self.transactions = 0
        self.rows_end = 0  # behind the last record that this writer has produced
        self.message_bytes_max = MESSAGE_BYTES_MAX  # larger records go in parts
        self.in_parts: dict[int, int] = {}  # the parts of each of them, by seq
        self.producer = transactional(config, self.topics.transactional_id)

    def close(self) -> None:
        """Leave nothing to send."""
        self.producer.flush(TIMEOUT_S)

    def row(
        self,
        at_us: int,
        row_index: int = 0,
        *,
        last: bool = True,
        shape: TableShape = ORDERS,
        op: Op = Op.INSERT,
        ids: tuple[bytes | None, bytes | None] = (None, None),
        note: str = "",
    ) -> VEvent:
        """Make the next row of this log; a transaction's number goes up with its first row."""
        if row_index == 0:
            self.transactions += 1
        self.seq += 1
        row: Row = {"id": self.seq, "note": note or self.shard}
        return VEvent(
            type=EventType.ROW,
            seq=self.seq,
            token_text=TokenText.of(self._token(at_us)),
            commit_us=START_US + at_us,
            gtid=f"{UUID}:{self.transactions}",
            row_index=row_index,
            last=last,
            database=shape.database,
            table=shape.table,
            op=op,
            keyspace_id_before=ids[0],
            keyspace_id_after=ids[1],
            before=row if op in {Op.UPDATE, Op.DELETE} else None,
            after=row if op is not Op.DELETE else None,
            statement=None,
            shape=shape,
            shard=self.shard,
            offset=0,
        )

    def rows(self, transactions: Iterable[tuple[int, int]]) -> list[VEvent]:
        """Make rows of MySQL transactions (time, rows)."""
        return [
            self.row(at_us, i, last=i == count - 1)
            for at_us, count in transactions
            for i in range(count)
        ]

    def commit(self, *transactions: tuple[int, int], mark: Mark | None = None) -> None:
        """Write MySQL transactions (time, rows) and their progress in one Kafka transaction."""
        self.commit_events(self.rows(transactions), mark=mark)

    def mark(self, at_us: int, kind: MarkKind, reshard: Reshard) -> None:
        """Write a mark of a reshard: a JOURNAL record, and the mark in its progress."""
        self.transactions += 1
        self.seq += 1
        hop_us = None if kind is not MarkKind.BEGIN else START_US + reshard.hop_us
        mark = Mark(kind, -1, reshard.reshard_id, reshard.sources, reshard.targets, hop_us)
        event = VEvent(
            type=EventType.JOURNAL,
            seq=self.seq,
            token_text=TokenText.of(self._token(at_us)),
            commit_us=START_US + at_us,
            gtid=f"{UUID}:{self.transactions}",
            row_index=0,
            last=True,
            database="_shardstream",
            table="journal",
            op=Op.NONE,
            keyspace_id_before=None,
            keyspace_id_after=None,
            before=None,
            after=None,
            statement=mark.journal_text(),
            shape=None,
            shard=self.shard,
            offset=0,
        )
        self.producer.begin_transaction()
        offset = self.produce([event])
        self.produce_progress(self.progress([event], offset, replace(mark, offset=offset)))
        self.producer.commit_transaction(TIMEOUT_S)

    def _token(self, at_us: int) -> EventToken:
        position = parse_gtid_set(f"{UUID}:1-{self.transactions}", Flavor.MYSQL)
        return EventToken(START_US + at_us, self.shard, position)

    def commit_events(self, events: Sequence[VEvent], mark: Mark | None = None) -> None:
        """Write these events and their progress in one Kafka transaction."""
        self.producer.begin_transaction()
        first_offset = self.produce(events)
        self.produce_progress(self.progress(events, first_offset, mark))
        self.producer.commit_transaction(TIMEOUT_S)

    def commit_rows(self, events: Sequence[VEvent]) -> None:
        """Write these events without progress."""
        self.producer.begin_transaction()
        self.produce(events)
        self.producer.commit_transaction(TIMEOUT_S)

    def commit_progress(self, progress: Progress) -> None:
        """Write a progress record without rows."""
        self.producer.begin_transaction()
        self.produce_progress(progress)
        self.producer.commit_transaction(TIMEOUT_S)

    def heartbeat(self, head_us: int) -> None:
        """Promise that nothing older than this comes."""
        self.head_us = max(self.head_us, START_US + head_us)
        # Brokers may still answer with the end of before the last commit.
        self.commit_progress(self.progress((), max(self.end_offset(), self.rows_end)))

    def produce(self, events: Sequence[VEvent]) -> int:
        """Produce events in the open transaction; return the offset of the first."""
        offsets: list[int] = []

        def delivered(error: object, message: Message) -> None:
            assert error is None
            offsets.append(message.offset() or 0)

        for event in events:
            for value, headers in self.messages(event):
                self.producer.produce(
                    self.topics.log,
                    value=value,
                    key=record_key(event),
                    partition=0,
                    on_delivery=delivered,
                    timestamp=event.timestamp_us // 1_000,
                    headers=list(headers),
                )
        assert self.producer.flush(TIMEOUT_S) == 0
        self.written.extend(events)
        self.rows_end = offsets[-1] + 1
        return offsets[0]

    def messages(self, event: VEvent) -> list[tuple[bytes, Headers]]:
        """The messages of an event: one, or its parts."""
        value, key = self.encoder.encode(event), record_key(event)
        if len(value) + len(key) + MESSAGE_OVERHEAD_BYTES <= self.message_bytes_max:
            return [(value, [])]
        parts = cut_record(value, len(key), self.message_bytes_max)
        self.in_parts[event.seq] = len(parts)
        return parts

    def produce_progress(self, progress: Progress) -> None:
        """Produce a progress record in the open transaction."""
        self.producer.produce(
            self.topics.progress,
            value=encode_progress(progress, self.schema_ids),
            key=PROGRESS_KEY,
            partition=0,
            timestamp=progress.head_us // 1_000,
        )

    def progress(
        self, events: Sequence[VEvent], first_offset: int, mark: Mark | None = None
    ) -> Progress:
        """The progress record of events that lie, or will lie, from `first_offset` on."""
        ticks = []
        offset = first_offset
        in_parts = []
        for event in events:
            cell_us = cell_start_us(event.timestamp_us)
            if cell_us > self.last_cell_us:
                self.last_cell_us = cell_us
                ticks.append(Tick(cell_us, offset))
            offset += self.in_parts.get(event.seq, 1)
            if event.seq in self.in_parts:
                in_parts.append(InParts(event.seq, self.in_parts[event.seq]))
            self.head_us = max(self.head_us, event.timestamp_us)
        return Progress(
            first_seq=self.seq - len(events) + 1,
            last_seq=self.seq,
            end_offset=offset,
            flavor="mysql",
            position=str(self._token(0).position) if self.transactions else "",
            head_us=self.head_us,
            ticks=tuple(ticks),
            mark=mark,
            server="",
            server_time_us=0,
            lag_ms=0,
            in_parts=tuple(in_parts),
        )

    def end_offset(self) -> int:
        """The log's end: where the next record will lie once all markers are written."""
        return self._bounds()[1]

    def remove_until(self, offset: int) -> None:
        """Remove what lies below an offset, as retention does."""
        admin = open_admin(self.config)
        futures = admin.delete_records([TopicPartition(self.topics.log, 0, offset)])
        for future in futures.values():
            future.result(TIMEOUT_S)

    def wait_committed(self) -> None:
        """Wait until all that was committed can be read, in the log and of the progress."""
        for topic in (self.topics.log, self.topics.progress):
            await_stable(self.config, topic, TIMEOUT_S)

    def _bounds(self) -> tuple[int, int]:
        consumer = open_consumer(self.config)
        try:
            return partition_bounds(consumer, self.config, self.topics.log)
        finally:
            consumer.close()


# Makes one writer per shard that it is given.
Writers = Callable[..., list[ShardWriter]]


@contextmanager
def writing(
    config: ClientConfig, keyspace: str, make_topics: Callable[[Sequence[str]], None]
) -> Iterator[Writers]:
    """Make writers of shards whose topics `make_topics` makes, and close them at the end."""
    made: list[ShardWriter] = []

    def make(*shards: str) -> list[ShardWriter]:
        make_topics(shards)
        new = [ShardWriter(config, keyspace, shard) for shard in shards]
        made.extend(new)
        return new

    yield make
    for writer in made:
        writer.close()


def serving(config: ClientConfig, keyspace: str) -> AbstractContextManager[Writers]:
    """Writers of shards that serve: the keyspace is provisioned with them."""
    return writing(config, keyspace, lambda shards: provision(config, keyspace, shards))


def filling(config: ClientConfig, keyspace: str) -> AbstractContextManager[Writers]:
    """Writers of shards that do not serve yet: only their topics are made."""

    def make_topics(shards: Sequence[str]) -> None:
        for shard in shards:
            provision_shard(config, ShardTopics(keyspace, shard))

    return writing(config, keyspace, make_topics)
