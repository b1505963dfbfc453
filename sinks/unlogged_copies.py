"""Has tables copied again behind statements that changed values of rows without logging them."""

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from event_token.errors import Halt, Retry, UsageError
from sinks.rule.statements import Unlogged
from topics.errors import CannotApply
from topics.kafka.client import ClientConfig
from topics.start.copies import ensure_copy_after

_LOG = logging.getLogger("shardstream.spark")

# Tables whose producers are asked side by side; each takes a connection to Kafka.
_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class UnloggedCopies:
    """Returns from a call once a copy of each table has begun behind its statement.

    A batch with such a statement is applied only then, so nothing has to be remembered: the READs
    of the copy lie behind the batch in the stream.
    """

    kafka: ClientConfig
    keyspace: str

    def __call__(self, found: Sequence[Unlogged]) -> None:
        """CannotApply if a producer refuses a copy, Retry while none begins it."""
        with ThreadPoolExecutor(min(len(found), _AT_ONCE)) as pool:
            for _ in pool.map(self._have_copied, found):
                pass

    def _have_copied(self, each: Unlogged) -> None:
        name = (each.what.database, str(each.what.table))
        at = each.at.seq, each.at.timestamp_us
        try:
            asked = ensure_copy_after(self.kafka, self.keyspace, each.at.shard, name, at)
        except Retry as error:
            raise Retry(f"{self._notice(each)} The query waits for that copy: {error}") from error
        except (Halt, UsageError) as error:
            raise CannotApply(
                f"{self._notice(each)} The query could not have that copy: {error}. Fix that, or "
                f"type: shardstream copy start {self.keyspace} --shard={each.at.shard} "
                f"--table {'.'.join(name)}. Started again, the query goes on once the copy has "
                f"begun. If the statement changed no value, or the table is gone, pass its GTID "
                f"with --accept-skip"
            ) from error
        if asked:
            _LOG.warning("%s The copy has begun.", self._notice(each))

    def _notice(self, each: Unlogged) -> str:
        return (
            f"{each.place}. This statement changed values of rows without logging them, so the "
            f"table is copied again."
        )
