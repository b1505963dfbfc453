"""The subscriber that applications import, with the settings file as a way to make one."""

from collections.abc import Iterable, Iterator
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Self

from shardstream.installation import import_own
from topics.reading.planner import Strict
from topics.start.start_forms import Start
from topics.stream.subscriber import (
    BATCH_BYTES_MAX,
    BATCH_ROWS_MAX,
    BATCH_WAIT_MS,
    ReadingMode,
    StreamSubscriber,
)

if TYPE_CHECKING:
    from topics.arrow.event_batches import EventBatch, EventBatches


class Subscriber(StreamSubscriber):
    """Iterates over the events of a keyspace in the merged order (timestamp_us, shard, offset).

    Each event is delivered once; those of one MySQL transaction are contiguous. To continue after
    an event, start at its `position`. Iteration ends after `close`, or when no event has come for
    `idle_timeout_s`. `tables` are `database.table` names; events without a table, such as DDL,
    always pass. Key ranges that do not consist of whole shards are filtered by keyspace id. The
    stream hops over reshards: events of the targets follow those of the sources, in order.

    `start` is "latest" (default), "earliest", "copy", a time (an aware datetime, or microseconds
    since the epoch; as text with a zone, or `us:` and a number), or a position (StreamPosition, or
    its string). Ambiguous starts are refused. "copy" delivers every row of
    the tables: it starts where their newest copy (snapshot) began, with copied rows as READ among
    the changes. Tables without a copy are copied first.

    `clock`: how far the servers' clocks may be off. A start at a time begins so much earlier, and
    `compare` calls two changes of different shards UNKNOWN that are closer than that.

    `mode`: Strict() (default) waits for a silent shard, MaxHold(max_hold_ms) continues without it
    after that time. Unmerged() delivers each shard log as it comes, in order per shard and in no
    order between shards: a silent shard delays no other, and events come up to half a heartbeat
    sooner. A start at a time does not wait for a log that has not reached it.

    `name`: under which the position is reported on Kafka every 10 s, for `shardstream status` and
    the tools that show consumer lag; see docs/reader-api.md. It has no effect on what is read.

    One thread iterates; any may call `close`, which ends the iteration; a new one raises
    ReaderClosed (Rebuild). No connection is made before the first event is
    requested. After a Retry the iteration may continue, after the last event delivered. Errors:
    UsageError, PositionTooOld, LogGap, LogRepeat and other Halts, Retry (BrokersUnreachable,
    RowsNotReadable, StartNotReached).
    """

    _batches: "EventBatches | None" = None

    def batches(
        self,
        columns: Iterable[str] | None = None,
        *,
        rows_max: int = BATCH_ROWS_MAX,
        bytes_max: int = BATCH_BYTES_MAX,
        wait_ms: int = BATCH_WAIT_MS,
    ) -> "Iterator[EventBatch]":
        """Iterate over the stream as Arrow record batches, typed by table; instead of events.

        Each `EventBatch` holds what lies between two positions: in `tables` a record batch for
        each table version, its rows in the order of the stream; in `events` what is no row. A
        statement (DDL), a mark of a reshard, the end of a copy and a skip end a batch, so all rows
        of the batch precede it. To continue after a batch, start at its `position`.

        `columns` are those of the Spark source with option `table`, `after.name` included; None:
        op, before, after, absent, invalid_dates, shard, seq, timestamp_us. A batch has at most
        `rows_max` rows and `bytes_max` bytes of records, as on Kafka; it ends with a transaction
        from half of these on, and cuts one only at the limit. It also ends `wait_ms` milliseconds
        after its first row or event; inside a transaction, when none has come for so long.
        Iteration ends after `close` or `idle_timeout_s`.

        Errors: those of iterating; UsageError: unknown columns, limits that are not positive;
        HiddenValue: NULL would hide an absent column or invalid date, as the columns leave out
        `absent` or `invalid_dates`; MissingExtraError (an ImportError) without the extra `arrow`.
        """
        events: ModuleType = import_own("topics.arrow.event_batches", extra="arrow")
        limits = events.BatchLimits(rows_max, bytes_max, wait_ms)
        found: EventBatches = events.EventBatches(
            self, columns, limits, self._idle_timeout_s, self._batches
        )
        self._batches = found
        return found

    @classmethod
    def from_settings(
        cls,
        path: str | PathLike[str] | None,
        keyspace: str,
        key_range: str = "-",
        start: Start = "latest",
        *,
        mode: ReadingMode = Strict(),  # noqa: B008 - frozen, and has no state
        idle_timeout_s: float | None = None,
        tables: Iterable[str] | None = None,
        name: str | None = None,
    ) -> Self:
        """Return a subscriber for the Kafka cluster, registry and clocks of a settings file.

        `path` None takes the file that the variable SHARDSTREAM_CONFIG names, else
        ./shardstream.toml, else the one of `shardstream local up`. UsageError lists everything
        that is wrong with the file; for an unknown keyspace it lists those of the file.
        """
        from shardstream.settings.model import load_settings  # noqa: PLC0415 - pydantic, if wanted

        settings = load_settings(None if path is None else Path(path))
        settings.keyspace(keyspace)
        return cls(
            keyspace,
            key_range,
            start,
            config=settings.kafka_client(),
            registry_url=settings.kafka.schema_registry_url,
            mode=mode,
            idle_timeout_s=idle_timeout_s,
            tables=tables,
            clock=settings.clock_uncertainty(),
            name=name,
        )
