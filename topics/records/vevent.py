"""One record of a shard log, decoded: a row change, a DDL statement or a mark."""

from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from event_token import EventToken, Flavor, StreamPosition, UsageError, parse_gtid_set
from topics.errors import CorruptRecord
from topics.records.envelope_table import EVENT_TYPES, OPS
from topics.records.table_shape import TableShape


class EventType(StrEnum):
    """The type of a record of a shard log."""

    ROW = "ROW"
    DDL = "DDL"
    JOURNAL = "JOURNAL"
    LAST_PK = "LAST_PK"
    COPY_COMPLETED = "COPY_COMPLETED"
    SKIP = "SKIP"


class Op(StrEnum):
    """The change of a row; READ is a row of a copy (snapshot), NONE means that there is no row."""

    NONE = "NONE"
    INSERT = "INSERT"
    UPDATE = "UPDATE"
    DELETE = "DELETE"
    READ = "READ"


# The row images of each op: (before, after).
IMAGES = {
    Op.NONE: (False, False),
    Op.INSERT: (False, True),
    Op.UPDATE: (True, True),
    Op.DELETE: (True, False),
    Op.READ: (False, True),
}

# By their index on the wire.
TYPES_BY_INDEX = tuple(EventType(name) for name in EVENT_TYPES)
OPS_BY_INDEX = tuple(Op(name) for name in OPS)


class InvalidDate(str):
    """A date that does not exist, as the server prints it: `0000-00-00`, `2024-02-00`."""

    __slots__ = ()


# int, float, Decimal, str (text, ENUM label, JSON text), bytes, date, timedelta (TIME), datetime
# (DATETIME naive, TIMESTAMP aware in UTC), list[str] (SET), InvalidDate; None is SQL NULL.
Value = int | float | Decimal | str | bytes | date | timedelta | datetime | list[str] | None
Row = dict[str, Value]


@dataclass(slots=True, unsafe_hash=True)
class TokenText:
    """An event token as stored in the record; its GTID set is parsed on demand.

    All records of a transaction share one, so its GTID set is parsed at most once.
    """

    timestamp_us: int
    shard: str
    position: str
    origin: "TokenText | None" = None
    _token: EventToken | None = field(default=None, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, token: EventToken) -> "TokenText":
        """Return the text of a token; UsageError if it has no time: such are never logged."""
        if token.timestamp_us is None:
            raise UsageError(f"the token {token} has no time, so no shard log can contain it")
        origin = None if token.origin is None else cls.of(token.origin)
        text = cls(token.timestamp_us, token.shard, str(token.position), origin)
        text._token = token
        return text

    @property
    def token(self) -> EventToken:
        """The parsed token; CorruptRecord when its position is not a GTID set."""
        if self._token is None:
            origin = None if self.origin is None else self.origin.token
            # Only MySQL's GTIDs contain a colon, and every token follows a GTID.
            flavor = Flavor.MYSQL if ":" in self.position else Flavor.MARIADB
            try:
                position = parse_gtid_set(self.position, flavor)
                self._token = EventToken(self.timestamp_us, self.shard, position, origin)
            except UsageError as error:
                raise CorruptRecord(f"shard {self.shard}: a token is broken: {error}") from error
        return self._token


class Places(Protocol):
    """The positions after the events of a run, built on demand."""

    def position_after(self, count: int) -> StreamPosition:
        """Return the position after the first `count` events of the run."""


class EventFields:
    """An event while it is being read: the memory of a VEvent, which cannot be assigned to.

    `SchemaReader.event` fills it in and turns it into a VEvent by assigning `__class__`, which
    takes a tenth of the time of the constructor of a frozen class. Row images that it leaves out
    are found by `read_images` when they are asked for.
    """

    __slots__ = (
        *("type", "seq", "token_text", "commit_us", "gtid", "row_index", "last", "database"),
        *("table", "op", "keyspace_id_before", "keyspace_id_after", "before", "after", "statement"),
        *("shape", "shard", "offset", "late", "possible_duplicate", "place", "record"),
        *("added", "read_images"),
    )


@dataclass(frozen=True, slots=True)
class VEvent(EventFields):
    """One record of a shard log.

    `commit_us` is the commit time of the server; `token.timestamp_us` never decreases in a log.
    `before` and `after` are the row images by column name: an absent column is an absent key, SQL
    NULL is None. `shape` is the table version, None for DDL; `statement` is the text of DDL, and
    JSON text for marks, copies and skips.
    `row_index` counts the records of the server's transaction from 0; `last` ends it.
    `possible_duplicate`: the change may have been delivered before a reshard without marks.
    `record`: the record as on Kafka, for programs that decode it in columns. `place`: the run of a
    merged stream that the event belongs to, and its number there. `added`: the fields that releases
    after 1.0 have added to the envelope, by name.
    """

    type: EventType
    seq: int
    token_text: TokenText
    commit_us: int
    gtid: str
    row_index: int
    last: bool
    database: str
    table: str
    op: Op
    keyspace_id_before: bytes | None
    keyspace_id_after: bytes | None
    before: Row | None
    after: Row | None
    statement: str | None
    shape: TableShape | None
    shard: str
    offset: int
    late: bool = False
    possible_duplicate: bool = False
    place: tuple[Places, int] | None = field(default=None, repr=False, compare=False)
    record: bytes = field(default=b"", repr=False, compare=False)
    added: dict[str, object] = field(default_factory=dict, repr=False)

    @property
    def token(self) -> EventToken:
        """The event token; its GTID set is parsed on first use."""
        return self.token_text.token

    @property
    def timestamp_us(self) -> int:
        """The timestamp of the token: microseconds since the epoch."""
        return self.token_text.timestamp_us

    @property
    def position(self) -> StreamPosition | None:
        """The position after this event; None outside of a merged stream."""
        return None if self.place is None else self.place[0].position_after(self.place[1])

    def deliver(self, run: Places, count: int, *, late: bool = False) -> None:
        """Make this event part of a merged stream, the `count`th event of a run.

        Only for the stream that has decoded it, before it is delivered.
        """
        object.__setattr__(self, "place", (run, count))
        if late:
            object.__setattr__(self, "late", True)

    if not TYPE_CHECKING:  # a type checker must refuse names that are no fields

        def __getattr__(self, name: str) -> object:
            """Read the row images, which the reader left out; they are kept."""
            if name not in {"before", "after"} or not hasattr(self, "read_images"):
                message = f"{type(self).__name__!r} object has no attribute {name!r}"
                raise AttributeError(message)
            before, after = self.read_images(self)
            object.__setattr__(self, "before", before)
            object.__setattr__(self, "after", after)
            return before if name == "before" else after
