"""Event tokens, GTID sets, key ranges and stream positions. Pure: no I/O, no clock."""

from event_token.errors import Halt, Rebuild, Retry, ShardstreamError, UsageError
from event_token.gtid_set import (
    Flavor,
    GtidError,
    GtidSet,
    MariadbGtidSet,
    MysqlGtidSet,
    empty_gtid_set,
    parse_gtid_set,
)
from event_token.key_range import KeyRange, KeyRangeError, ShardName, covers, tiles
from event_token.mysql_gtid import parse_mysql_gtid
from event_token.position import PositionError, ShardPosition, StreamPosition
from event_token.token import ClockUncertainty, EventToken, Order, TokenError, compare

__all__ = [
    "ClockUncertainty",
    "EventToken",
    "Flavor",
    "GtidError",
    "GtidSet",
    "Halt",
    "KeyRange",
    "KeyRangeError",
    "MariadbGtidSet",
    "MysqlGtidSet",
    "Order",
    "PositionError",
    "Rebuild",
    "Retry",
    "ShardName",
    "ShardPosition",
    "ShardstreamError",
    "StreamPosition",
    "TokenError",
    "UsageError",
    "compare",
    "covers",
    "empty_gtid_set",
    "parse_gtid_set",
    "parse_mysql_gtid",
    "tiles",
]
