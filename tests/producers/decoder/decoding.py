"""What the decoder's tests share: running a stream through it and reading what it produced."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from databases.connection import open_connection
from event_token import Flavor
from producers.decoder import BatchSummary, Decoder, DecoderOptions
from producers.servers.server_catalog import ServerCatalog
from producers.settings import ServerSettings
from producers.typed_columns import NOTHING_DECLARED, TypedColumns
from tests.database_servers import DatabaseFixture
from tests.topics.schemas.memory_schema_ids import MemorySchemaIds
from topics.kafka.client import MESSAGE_BYTES_MAX
from topics.records.event_decoder import EventDecoder
from topics.records.vevent import VEvent

SHARD = "-80"
ALL_ROWS = 1_000_000_000


@dataclass(frozen=True)
class Message:
    """One call of `produce`."""

    topic: str
    value: bytes
    key: bytes
    partition: int
    first_callback: object
    on_delivery: object
    timestamp_ms: int
    headers: object = field(default_factory=list)


@dataclass
class Sink:
    """Takes what a decoder produces, and gives it back decoded."""

    schema_ids: MemorySchemaIds = field(default_factory=MemorySchemaIds)
    messages: list[Message] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    def produce(self, *arguments: Any) -> None:
        self.messages.append(Message(*arguments))

    def events(self) -> list[VEvent]:
        codec = EventDecoder(self.schema_ids)
        return [codec.decode(m.value, SHARD, i) for i, m in enumerate(self.messages)]


@dataclass
class CountingSink(Sink):
    """Keeps the sizes of values alone, so that what is measured is the decoder's."""

    sizes: list[int] = field(default_factory=list)

    def produce(self, *arguments: object) -> None:
        value = arguments[1]
        assert isinstance(value, bytes)
        self.sizes.append(len(value))


def catalog_of(
    database: DatabaseFixture,
    declared: TypedColumns = NOTHING_DECLARED,
    on_notice: Callable[[str], None] = lambda _: None,
) -> ServerCatalog:
    """What the server says of its columns, asked as a producer does it."""
    server = ServerSettings(database.host, database.port, database.user, database.password)
    return ServerCatalog(database.flavor, declared, server, open_connection(server), on_notice)


def nothing() -> None:
    """An `on_full` that waits for nothing."""


def new_decoder(sink: Sink, flavor: Flavor, position: str, **changes: Any) -> Decoder:
    """A decoder that begins an empty log behind a position."""
    arguments: dict[str, Any] = {
        "topic": "ks.-80",
        "keyspace": "ks",
        "shard": SHARD,
        "flavor": flavor,
        "position": position,
        "next_seq": 1,
        "last_timestamp_us": 0,
        "last_cell_us": -1,
        "produce": sink.produce,
        "record_bytes_max": MESSAGE_BYTES_MAX,
        "on_full": nothing,
        "schema_id": sink.schema_ids.register,
        "verify_checksum": True,
        "max_clock_ahead_us": 60_000_000,
        "now_us": lambda: time.time_ns() // 1000,
        "on_notice": sink.notices.append,
    }
    return Decoder(DecoderOptions(**{**arguments, **changes}))


def decode(
    stream: bytes, flavor: Flavor, position: str, **changes: Any
) -> tuple[Sink, BatchSummary]:
    """Run a whole stream through a decoder at once."""
    sink = Sink()
    decoder = new_decoder(sink, flavor, position, **changes)
    taken = decoder.feed(stream, 0, len(stream), ALL_ROWS)
    assert taken == len(stream)
    return sink, decoder.take_batch()


def feed_in_chunks(decoder: Decoder, stream: bytes, sizes: Iterable[int]) -> None:
    """Feed as a socket would: a buffer that grows, with what was not taken left in it."""
    buffer = bytearray()
    pos = 0
    for size in sizes:
        buffer += stream[pos : pos + size]
        pos += size
        taken = decoder.feed(buffer, 0, len(buffer), ALL_ROWS)
        del buffer[:taken]
        if pos >= len(stream):
            break
    assert not buffer
