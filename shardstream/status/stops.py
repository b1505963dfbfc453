"""Which shards have stood still since this process looks: what an operator asks for in the morning.

Pure. A producer that stops says why in its own log; what Kafka shows is since when, and until when.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from topics.fleet.view import KeyspaceView, ShardCondition

# More than anybody reads; enough for a night.
STOPS_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class Stop:
    """A shard whose producer wrote nothing for long. `until_us` None: it still does not.

    `since_us`: when it wrote last. `server`: whom it had streamed from.
    """

    shard: str
    since_us: int
    until_us: int | None
    server: str


def next_stops(stops: Sequence[Stop], view: KeyspaceView, now_us: int) -> tuple[Stop, ...]:
    """Return the stops after a look at `now_us`, the newest first.

    A shard whose first producer has not written yet has not stopped.
    """
    silent = {
        shard.shard: shard for shard in view.shards if shard.condition is ShardCondition.SILENT
    }
    known = [
        stop
        if stop.until_us is not None or stop.shard in silent
        else replace(stop, until_us=now_us)
        for stop in stops
    ]
    going_on = {stop.shard for stop in known if stop.until_us is None}
    new = [
        Stop(shard.shard, shard.written_us, None, shard.server)
        for shard in silent.values()
        if shard.written_us is not None and shard.shard not in going_on
    ]
    return (*new, *known)[:STOPS_MAX]
