"""The time of a read: that of the newest heartbeat row, where it proves something.

All that the shard's log holds from before the row is in the read, if the server shows commits in
the order of the log. It is compared only across a reshard. So a target has no time before its
BEGIN, and a source none after its END.
"""

import json
from dataclasses import dataclass
from typing import Any, Final

from databases.internal_tables import HEARTBEAT, JOURNAL, ROLE
from databases.sql import text_literal

# The columns that `time_columns` selects.
TIME_COLUMNS: Final = 4


@dataclass(frozen=True, slots=True)
class ShardTime:
    """What a server's own tables say of a shard.

    `heartbeat_us`: the newest heartbeat row, 0 for none. `begun_us`: the hop time of its BEGIN, 0
    if the shard was never a target, None if it is one without BEGIN. `has_ended`: it has its END.
    """

    heartbeat_us: int
    begun_us: int | None
    has_ended: bool

    def timestamp_us(self, *, keeps_order: bool) -> int | None:
        """The time of a read, None if there is none. `keeps_order`: commits show in log order."""
        if self.begun_us is None or self.has_ended or not keeps_order:
            return None
        return max(self.heartbeat_us, self.begun_us) or None


def time_columns(keyspace: str, shard: str) -> str:
    """What to select for the time of a shard, on either family. Pure."""
    name, listed = text_literal(shard), text_literal(json.dumps(shard))
    # Rows of earlier releases name no keyspace.
    own = f"keyspace IN ('', {text_literal(keyspace)})"
    return (
        f"(SELECT at_us FROM {HEARTBEAT} WHERE shard = {name}), "
        f"(SELECT COUNT(*) FROM {ROLE} WHERE shard = {name} AND role = 'target'), "
        f"(SELECT MAX(hop_time_us) FROM {JOURNAL} "
        f"WHERE {own} AND kind = 'BEGIN' AND JSON_CONTAINS(targets, {listed})), "
        f"(SELECT COUNT(*) FROM {JOURNAL} "
        f"WHERE {own} AND kind = 'END' AND JSON_CONTAINS(sources, {listed}))"
    )


def shard_time(columns: tuple[Any, ...]) -> ShardTime:
    """Read the values of `time_columns`. Pure."""
    heartbeat_us, target_roles, hop_time_us, ends = columns
    begun_us = None if hop_time_us is None else int(hop_time_us)
    if begun_us is None and not int(target_roles):
        begun_us = 0
    return ShardTime(int(heartbeat_us or 0), begun_us, bool(int(ends)))
