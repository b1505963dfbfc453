"""Decides whether this process may take its shard, or take it back, or gives way to a newer one."""

import time
from collections.abc import Callable
from threading import Event
from typing import Final

from event_token.errors import Retry
from topics.kafka.client import ClientConfig
from topics.kafka.errors import TopicMissing
from topics.names import ShardTopics
from topics.progress.committed_tail import last_progress
from topics.progress.record import Progress
from topics.progress.shard_claim import ShardClaim, claimed_by
from topics.records.table_shape import SchemaIds

# A newer process commits within seconds, and nobody produces until then.
POLL_S: Final = 0.5


class Ownership:
    """What the sessions of a process know of their right to the shard.

    The process that claimed the shard last has it. An older one that was only disturbed must not
    fence it, and takes the shard back itself once the newer one is certainly dead: when that has
    committed nothing for as long as the brokers allow a transaction.
    """

    def __init__(
        self,
        config: ClientConfig,
        topics: ShardTopics,
        schema_ids: SchemaIds,
        transaction_timeout_ms: int,
    ) -> None:
        """Nothing is claimed yet."""
        self._config, self._topics, self._schema_ids = config, topics, schema_ids
        self._commit_s_max = transaction_timeout_ms / 1000
        self._claim = ShardClaim(config, topics)
        # The last progress as this process knows it, and what it may have written since.
        self._own: tuple[Progress | None, ...] = ()
        self.is_doubted = False

    def know(self, *own: Progress | None) -> None:
        """Take the log's last progress, and what this process is about to commit behind it."""
        self._own = own

    def claim(self) -> None:
        """Claim the shard, once per process. Retry when no broker answers."""
        if not self._claim.is_made:
            self._claim.make()

    def check(self) -> None:
        """Raise Fenced if a newer process has claimed the shard."""
        self._claim.check()

    def settle(self, stop: Event, report: Callable[[str], None]) -> None:
        """After Fenced: return if the shard is this process's, or the newer one is dead.

        Fenced if somebody else has committed, or the log was started over; until it is known, or
        `stop` is set, `report` gets what is waited for. Where no broker answers the doubt stays.
        """
        if not self.is_doubted:
            return
        began_s, own, newer = time.monotonic(), self._own, None
        while not stop.is_set():
            try:
                newer = self._claim.newer()
                last = None if newer is None else self._last()
            except Retry:
                return
            except TopicMissing:
                self._claim.raise_emptied()
            if newer is None:
                break
            own = own or (last,)
            if _times(last) not in map(_times, own):
                raise claimed_by(self._topics, newer)
            report(
                f"{newer.by} has claimed this shard and committed nothing yet: this process ends "
                f"when it does, and goes on if it does not within {self._commit_s_max:g} s"
            )
            if time.monotonic() - began_s > self._commit_s_max:
                self._claim.make()
                break
            stop.wait(POLL_S)
        self.is_doubted = False

    def _last(self) -> Progress | None:
        return last_progress(self._config, self._topics, self._schema_ids)


def _times(progress: Progress | None) -> tuple[int, ...]:
    """What two commits never have in common: a heartbeat has a later time than the one before."""
    if progress is None:
        return ()
    return progress.first_seq, progress.last_seq, progress.server_time_us
