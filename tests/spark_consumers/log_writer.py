"""Writes shard logs as producers do: transactions with rows and one progress record each."""

from collections.abc import Sequence
from dataclasses import dataclass

from confluent_kafka import KafkaError, Message

from event_token.errors import Halt
from tests.topics.stream.shard_writer import provision
from topics.kafka.client import ClientConfig, open_producer
from topics.names import ShardTopics
from topics.progress.codec import PROGRESS_KEY, encode_progress
from topics.progress.record import Progress, Tick, cell_start_us
from topics.records.codec import VEventCodec, record_key
from topics.records.table_shape import TableShape
from topics.records.vevent import EventType, Op, Row, TokenText, VEvent
from topics.schemas.ids import SchemaIds
from topics.schemas.registry import TopicSchemaIds

SERVER = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class NewRow:
    """A change to be logged, or a row that was `copied`.

    `statement`: a record of `statement_type` instead of a row.
    """

    timestamp_us: int
    shape: TableShape | None
    before: Row | None = None
    after: Row | None = None
    last: bool = True
    statement: str | None = None
    statement_type: EventType = EventType.DDL
    copied: bool = False

    @property
    def op(self) -> Op:
        """The op that the images make."""
        if self.before is None and self.after is None:
            return Op.NONE
        if self.before is None:
            return Op.READ if self.copied else Op.INSERT
        return Op.DELETE if self.after is None else Op.UPDATE


class ShardLogWriter:
    """The only producer of one shard log, which begins empty."""

    def __init__(
        self, config: ClientConfig, keyspace: str, shard: str, schema_ids: SchemaIds
    ) -> None:
        self._topics = ShardTopics(keyspace, shard)
        self._schema_ids = schema_ids
        self._codec = VEventCodec(schema_ids)
        self._producer = open_producer(config, transactional_id=self._topics.transactional_id)
        self._producer.init_transactions(WAIT_S)
        self._row_index = 0
        self._gno = 1
        self._last_cell_us = -1
        self._end_offset = 0
        self.seq = 0
        self.head_us = 0

    def commit(self, rows: Sequence[NewRow], head_us: int | None = None) -> None:
        """Commit rows and their progress; the head is that of the last row unless given."""
        events = [self._event(row) for row in rows]
        offsets: list[int] = []

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                raise Halt(str(error))
            offsets.append(message.offset() or 0)

        first_seq = self.seq - len(rows) + 1
        self._producer.begin_transaction()
        for event in events:
            self._producer.produce(
                self._topics.log,
                self._codec.encode(event),
                record_key(event),
                0,
                on_delivery=on_delivery,
                timestamp=event.timestamp_us // 1000,
            )
        self._producer.flush(WAIT_S)
        self.head_us = max(self.head_us, head_us or 0, *(r.timestamp_us for r in rows), 0)
        progress = Progress(
            first_seq=first_seq,
            last_seq=self.seq,
            end_offset=offsets[-1] + 1 if offsets else self._end_offset,
            flavor="mysql",
            position=f"{SERVER}:1-{self._gno - 1}" if self._gno > 1 else "",
            head_us=self.head_us,
            ticks=tuple(self._ticks(events, offsets)),
            mark=None,
            server="test",
            server_time_us=self.head_us,
            lag_ms=0,
        )
        self._end_offset = progress.end_offset
        self._producer.produce(
            self._topics.progress,
            encode_progress(progress, self._schema_ids),
            PROGRESS_KEY,
            0,
            timestamp=self.head_us // 1000,
        )
        self._producer.commit_transaction(WAIT_S)

    def heartbeat(self, head_us: int) -> None:
        """Promise a head; rows older than it never come."""
        self.commit([], head_us)

    def _event(self, row: NewRow) -> VEvent:
        self.seq += 1
        shape = row.shape
        event = VEvent(
            type=EventType.ROW if row.statement is None else row.statement_type,
            seq=self.seq,
            token_text=TokenText(row.timestamp_us, self._topics.shard, f"{SERVER}:1-{self._gno}"),
            commit_us=row.timestamp_us,
            gtid=f"{SERVER}:{self._gno}",
            row_index=self._row_index,
            last=row.last,
            database=shape.database if shape else "shop",
            table=shape.table if shape else "",
            op=row.op,
            keyspace_id_before=None,
            keyspace_id_after=None,
            before=row.before,
            after=row.after,
            statement=row.statement,
            shape=shape,
            shard=self._topics.shard,
            offset=0,
        )
        self._row_index = 0 if row.last else self._row_index + 1
        self._gno += row.last
        return event

    def _ticks(self, events: Sequence[VEvent], offsets: Sequence[int]) -> list[Tick]:
        ticks = []
        for event, offset in zip(events, offsets, strict=True):
            cell_us = cell_start_us(event.timestamp_us)
            if cell_us > self._last_cell_us:
                ticks.append(Tick(cell_us, offset))
                self._last_cell_us = cell_us
        return ticks


def make_keyspace(
    bootstrap_servers: str, keyspace: str, shards: Sequence[str]
) -> tuple[ClientConfig, list[ShardLogWriter]]:
    """Make the topics and the topology of a keyspace; return a writer a shard."""
    config = ClientConfig({"bootstrap.servers": bootstrap_servers})
    provision(config, keyspace, shards)
    schema_ids = TopicSchemaIds(config)
    return config, [ShardLogWriter(config, keyspace, shard, schema_ids) for shard in shards]
