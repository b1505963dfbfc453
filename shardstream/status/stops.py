"""Which shards have stood still since this process looks: what an operator asks for in the morning.

Pure. Kafka shows since when, and until when; and of a producer that an error has ended, why.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from topics.fleet.view import KeyspaceView, ShardCondition, ShardView

# As many as anybody reads; enough for a night.
STOPS_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class Stop:
    """A shard whose producer wrote nothing for long. `until_us` None: it still does not.

    `since_us`: when it wrote last. `server`: whom it had streamed from. `reason`: what its producer
    said when an error ended it, "" if it could say nothing.
    """

    shard: str
    since_us: int
    until_us: int | None
    server: str
    reason: str = ""


def next_stops(stops: Sequence[Stop], view: KeyspaceView, now_us: int) -> tuple[Stop, ...]:
    """Return the stops after a look at `now_us`, the newest first.

    A shard whose first producer has not written yet has not stopped.
    """
    silent = {
        shard.shard: shard for shard in view.shards if shard.condition is ShardCondition.SILENT
    }
    known = [
        _after(stop, silent.get(stop.shard), now_us) if stop.until_us is None else stop
        for stop in stops
    ]
    going_on = {stop.shard for stop in known if stop.until_us is None}
    new = [
        Stop(shard.shard, shard.written_us, None, shard.server, _reason(shard))
        for shard in silent.values()
        if shard.written_us is not None and shard.shard not in going_on
    ]
    return (*new, *known)[:STOPS_MAX]


def _after(stop: Stop, silent: ShardView | None, now_us: int) -> Stop:
    """Return a stop that went on at the look before; `silent`: the shard if it still does."""
    if silent is None:
        return replace(stop, until_us=now_us)
    return replace(stop, reason=_reason(silent) or stop.reason)


def _reason(shard: ShardView) -> str:
    return str(shard.stopped) if shard.stopped is not None else ""
