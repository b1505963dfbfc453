"""One record of a shard log, decoded: a row change, a DDL statement or a mark."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum

from event_token import EventToken, Flavor, StreamPosition, UsageError, parse_gtid_set
from topics.errors import CorruptRecord
from topics.records.table_shape import EVENT_TYPES, OPS, TableShape


class EventType(str, Enum):
    """What a record of a shard log is."""

    ROW = "ROW"
    DDL = "DDL"
    JOURNAL = "JOURNAL"
    LAST_PK = "LAST_PK"
    COPY_COMPLETED = "COPY_COMPLETED"


class Op(str, Enum):
    """What happened to the row; READ is a copied row, NONE stands where there is no row."""

    NONE = "NONE"
    INSERT = "INSERT"
    UPDATE = "UPDATE"
    DELETE = "DELETE"
    READ = "READ"


# Which row images an op has: (before, after).
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


class OffCalendar(str):
    """A date that Python's calendar lacks, in the server's words: `0000-00-00`, `2024-02-00`."""

    __slots__ = ()


# int, float, Decimal, str (text, ENUM label, JSON text), bytes, date, timedelta (TIME), datetime
# (DATETIME naive, TIMESTAMP aware in UTC), list[str] (SET), OffCalendar; None is SQL NULL.
Value = int | float | Decimal | str | bytes | date | timedelta | datetime | list[str] | None
Row = dict[str, Value]


@dataclass(slots=True, unsafe_hash=True)
class TokenText:
    """An event token as it stands in the record; its GTID set is parsed when asked for.

    All records of a transaction share one, so that a set of any size is parsed at most once.
    """

    timestamp_us: int
    shard: str
    position: str
    origin: "TokenText | None" = None
    _token: EventToken | None = field(default=None, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, token: EventToken) -> "TokenText":
        """Return the text of a token; UsageError when it has no time: such one is never logged."""
        if token.timestamp_us is None:
            raise UsageError(f"the token {token} has no time and cannot stand in a shard log")
        origin = None if token.origin is None else cls.of(token.origin)
        text = cls(token.timestamp_us, token.shard, str(token.position), origin)
        text._token = token
        return text

    @property
    def token(self) -> EventToken:
        """The parsed token; CorruptRecord when its position is no GTID set."""
        if self._token is None:
            origin = None if self.origin is None else self.origin.token
            # Only MySQL's GTIDs hold a colon, and no token stands before the first GTID.
            flavor = Flavor.MYSQL if ":" in self.position else Flavor.MARIADB
            try:
                position = parse_gtid_set(self.position, flavor)
                self._token = EventToken(self.timestamp_us, self.shard, position, origin)
            except UsageError as error:
                raise CorruptRecord(f"shard {self.shard}: a token is broken: {error}") from error
        return self._token


@dataclass(frozen=True, slots=True)
class VEvent:
    """One record of a shard log.

    `commit_us` is the server's own commit time; `token.timestamp_us` never decreases in a log.
    `before` and `after` hold the columns of the row image by name: an absent column is an absent
    key, SQL NULL is None. `shape` is the table version, None for DDL; `statement` is DDL's text.
    `row_index` counts the records of the server's transaction from 0, `last` ends it.
    `possible_duplicate`: a reshard without marks came before, and the change may have been seen.
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
    position_source: Callable[[], StreamPosition] | None = field(
        default=None,
        repr=False,
        compare=False,
    )

    @property
    def token(self) -> EventToken:
        """The event token; its GTID set is parsed at the first call."""
        return self.token_text.token

    @property
    def timestamp_us(self) -> int:
        """The token's timestamp: microseconds since the epoch."""
        return self.token_text.timestamp_us

    @property
    def position(self) -> StreamPosition | None:
        """Where a reader goes on after this event; None outside a merged stream."""
        return None if self.position_source is None else self.position_source()

    def deliver(self, source: Callable[[], StreamPosition], *, late: bool = False) -> None:
        """Make this event part of a merged stream; `source` makes its position on demand.

        For the stream that has decoded it, before anybody else sees it: a copy of each event would
        cost a tenth of the reading.
        """
        object.__setattr__(self, "position_source", source)
        if late:
            object.__setattr__(self, "late", True)
