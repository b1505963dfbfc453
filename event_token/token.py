"""The event token: a point in the history of one shard, and the order of two such points."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Self

from event_token.errors import UsageError
from event_token.gtid_set import Flavor, GtidError, GtidSet, parse_gtid_set
from event_token.opaque import FieldReader, FieldWriter, OpaqueError, seal, unseal

# The first byte of every opaque token; positions begin with a different one, so that neither is
# accepted in place of the other. A new layout gets a new byte.
TOKEN_VERSION = 0x41

TIMESTAMP_US_MAX = 2**63 - 1
SHARD_CHARS_MAX = 249  # the shard is part of a topic name, which is no longer

# A timestamp denotes [t, t + granularity): microseconds in MySQL's GTID event, whole seconds in
# MariaDB's.
GRANULARITY_US = {Flavor.MYSQL: 1, Flavor.MARIADB: 1_000_000}

_HAS_TIMESTAMP = 1
_HAS_ORIGIN = 2
_IS_MARIADB = 4


class TokenError(UsageError):
    """Raised on an invalid token and on a string that is not an event token."""


@dataclass(frozen=True, slots=True)
class EventToken:
    """A point in a shard's history: everything up to and including one transaction.

    `timestamp_us` is the commit time in microseconds since the epoch; None for transactions that
    a target of a reshard committed by itself before it served. `position` is the executed GTID
    set. `origin` is the source shard's token of a change that a reshard replicated here; it has
    no origin itself. TokenError on anything else.
    """

    timestamp_us: int | None
    shard: str
    position: GtidSet
    origin: "EventToken | None" = None
    # Its fields as `write_token` appends them, once that has been called.
    _written: bytes | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the fields."""
        if self.timestamp_us is not None and not 0 <= self.timestamp_us <= TIMESTAMP_US_MAX:
            raise TokenError(
                f"shard {self.shard}: timestamp {self.timestamp_us} is not microseconds "
                f"since the epoch",
            )
        if not 0 < len(self.shard) <= SHARD_CHARS_MAX:
            raise TokenError(f"shard name '{self.shard[:SHARD_CHARS_MAX]}' is empty or too long")
        if self.origin is not None and self.origin.origin is not None:
            raise TokenError(
                f"shard {self.shard}: the origin of a token must be native, but the one on shard "
                f"{self.origin.shard} has an origin itself",
            )

    @property
    def effective(self) -> "EventToken":
        """The token where the change was first committed: the origin if there is one."""
        return self if self.origin is None else self.origin

    def to_string(self) -> str:
        """Return the opaque URL-safe string of the token."""
        writer = FieldWriter()
        try:
            write_token(writer, self)
            return seal(TOKEN_VERSION, writer.getvalue())
        except OpaqueError as error:
            raise TokenError(f"the token on shard {self.shard} has {error}") from error

    @classmethod
    def from_string(cls, text: str) -> Self:
        """Parse an opaque string; TokenError unless it is a valid token."""
        try:
            reader = FieldReader(unseal(TOKEN_VERSION, text))
            token = read_token(reader)
            reader.finish()
        except (OpaqueError, GtidError) as error:
            raise TokenError(f"not an event token: {error}") from error
        return cls(token.timestamp_us, token.shard, token.position, token.origin)


def write_token(writer: FieldWriter, token: EventToken) -> None:
    """Append the fields of a token, including its origin."""
    written = token._written  # noqa: SLF001 - of this module
    if written is None:
        written = _written_fields(token)
        object.__setattr__(token, "_written", written)
    writer.raw(written)


def _written_fields(token: EventToken) -> bytes:
    writer = FieldWriter()
    flags = 0
    if token.timestamp_us is not None:
        flags |= _HAS_TIMESTAMP
    if token.origin is not None:
        flags |= _HAS_ORIGIN
    if token.position.flavor is Flavor.MARIADB:
        flags |= _IS_MARIADB
    writer.unsigned(flags)
    if token.timestamp_us is not None:
        writer.unsigned(token.timestamp_us)
    writer.text(token.shard)
    writer.text(str(token.position))
    if token.origin is not None:
        write_token(writer, token.origin)
    return writer.getvalue()


def read_token(reader: FieldReader, *, may_have_origin: bool = True) -> EventToken:
    """Read the fields of a token; OpaqueError, GtidError or TokenError if they are broken."""
    flags = reader.unsigned()
    known = _HAS_TIMESTAMP | _IS_MARIADB | (_HAS_ORIGIN if may_have_origin else 0)
    if flags & ~known:
        raise OpaqueError(f"it has a token with the unknown flags {flags}")
    timestamp_us = reader.unsigned() if flags & _HAS_TIMESTAMP else None
    shard = reader.text()
    flavor = Flavor.MARIADB if flags & _IS_MARIADB else Flavor.MYSQL
    position = parse_gtid_set(reader.text(), flavor)
    origin = read_token(reader, may_have_origin=False) if flags & _HAS_ORIGIN else None
    return EventToken(timestamp_us, shard, position, origin)


class Order(Enum):
    """The relation of the first token of a comparison to the second."""

    OLDER = "older"
    EQUAL = "equal"
    NEWER = "newer"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class ClockUncertainty:
    """How far the clocks of servers may be off, in microseconds.

    `uncertainty_us` widens every interval on both sides. `mariadb_longest_statement_us` extends
    the end of MariaDB's, whose time is the start of the statement rather than its commit.
    UsageError when negative.
    """

    uncertainty_us: int = 0
    mariadb_longest_statement_us: int = 0

    def __post_init__(self) -> None:
        """Refuse negative values."""
        if self.uncertainty_us < 0 or self.mariadb_longest_statement_us < 0:
            raise UsageError(
                f"a clock uncertainty cannot be negative: {self.uncertainty_us} us, "
                f"longest statement {self.mariadb_longest_statement_us} us",
            )

    @property
    def behind_us(self) -> int:
        """The most by which a timestamp may lie before the true time of its commit."""
        return self.uncertainty_us + self.mariadb_longest_statement_us


_CLOCKS_TRUSTED = ClockUncertainty()


def compare(a: EventToken, b: EventToken, clock: ClockUncertainty = _CLOCKS_TRUSTED) -> Order:
    """Return the relation of a to b: NEWER when a is provably later.

    1. First committed on the same shard: by inclusion of the GTID sets there.
    2. Logged on the same shard, at least one of them native: by inclusion there. Two replicated
       ones are not ordered by the target's log, because a merge interleaves its sources
       arbitrarily; a native one from before the shard served says nothing about its sources.
    3. By time, if the two intervals are disjoint.
    4. UNKNOWN otherwise.
    """
    first_a, first_b = a.effective, b.effective
    if first_a.shard == first_b.shard:
        return _by_inclusion(first_a.position, first_b.position)
    if a.shard == b.shard and (_is_native_served(a) or _is_native_served(b)):
        return _by_inclusion(a.position, b.position)
    return _by_time(first_a, first_b, clock)


def _is_native_served(token: EventToken) -> bool:
    return token.origin is None and token.timestamp_us is not None


def _by_inclusion(a: GtidSet, b: GtidSet) -> Order:
    if a.flavor is not b.flavor:
        return Order.UNKNOWN
    match a.includes(b), b.includes(a):
        case True, True:
            return Order.EQUAL
        case True, False:
            return Order.NEWER
        case False, True:
            return Order.OLDER
        case _:
            return Order.UNKNOWN


def _by_time(a: EventToken, b: EventToken, clock: ClockUncertainty) -> Order:
    if a.timestamp_us is None or b.timestamp_us is None:
        return Order.UNKNOWN
    a_from_us, a_until_us = _interval_us(a.timestamp_us, a.position.flavor, clock)
    b_from_us, b_until_us = _interval_us(b.timestamp_us, b.position.flavor, clock)
    if a_until_us <= b_from_us:
        return Order.OLDER
    if b_until_us <= a_from_us:
        return Order.NEWER
    return Order.UNKNOWN


def _interval_us(timestamp_us: int, flavor: Flavor, clock: ClockUncertainty) -> tuple[int, int]:
    """Return [from, until) in which the transaction committed in true time."""
    until_us = timestamp_us + GRANULARITY_US[flavor]
    if flavor is Flavor.MARIADB:
        until_us += clock.mariadb_longest_statement_us
    return timestamp_us - clock.uncertainty_us, until_us + clock.uncertainty_us
