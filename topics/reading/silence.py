"""Decides which shards a stream leaves out because they have been silent for too long."""

from collections.abc import Iterable, Sequence

from topics.reading.shard_ticks import ShardTicks


class Silence:
    """The shards left out of the frontier by mode MaxHold.

    Times named `..._ms` are on the planner's clock.
    """

    def __init__(self, max_hold_ms: int) -> None:
        """Begin with all shards counting."""
        self._max_hold_ms = max_hold_ms
        self._left_out: dict[str, int] = {}  # with its head at that time
        self._held_since_ms: int | None = None

    def taking_part(self, shards: Iterable[ShardTicks]) -> list[ShardTicks]:
        """Return the shards that are not left out."""
        return [known for known in shards if known.shard not in self._left_out]

    def update(
        self, shards: Sequence[ShardTicks], so_far_us: int, now_ms: int, *, held: bool
    ) -> None:
        """Update the shards left out. `held`: something else holds the frontier at `so_far_us`."""
        names = {known.shard for known in shards}
        self._left_out = {s: head for s, head in self._left_out.items() if s in names}
        self._rejoin(shards, so_far_us)
        self._leave_out(shards, so_far_us, now_ms, held=held)

    def _rejoin(self, shards: Sequence[ShardTicks], so_far_us: int) -> None:
        """Readmit shards that advance and are no further behind than the hold allows."""
        behind_us_max = self._max_hold_ms * 1_000
        for known in shards:
            head_then_us = self._left_out.get(known.shard)
            head_us = known.head_cell_us
            if (
                head_then_us is not None
                and head_us > head_then_us
                and head_us >= so_far_us - behind_us_max
            ):
                del self._left_out[known.shard]

    def _leave_out(
        self, shards: Sequence[ShardTicks], so_far_us: int, now_ms: int, *, held: bool
    ) -> None:
        """Leave out the shards that have held the others back for too long.

        The last shard is never left out, because that would help no other.
        """
        taking_part = self.taking_part(shards)
        holding = [s for s in taking_part if s.head_cell_us <= so_far_us]
        if held or not holding or len(holding) == len(taking_part):
            self._held_since_ms = None
            return
        if self._held_since_ms is None:
            self._held_since_ms = now_ms
        if now_ms - self._held_since_ms >= self._max_hold_ms:
            self._left_out.update({s.shard: s.head_cell_us for s in holding})
            self._held_since_ms = None
