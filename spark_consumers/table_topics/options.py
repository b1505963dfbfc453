"""What a query that writes table topics is told: for the driver to check, for tasks to obey."""

from dataclasses import dataclass, replace
from enum import StrEnum

from event_token.errors import UsageError
from spark_consumers.sink_query.same_keys import OnSameKey
from spark_consumers.table_topics.envelope.options import EnvelopeOptions
from spark_consumers.table_topics.moves import MOVE_WINDOW_US_DEFAULT, MOVES_MAX_DEFAULT
from topics.kafka.topic_settings import POSITIONS_PARTITIONS
from topics.names import check_keyspace, check_prefix

# Spark's own cost per task is some milliseconds; each has a transaction per batch.
TASKS_DEFAULT = 4
TASKS_MAX = POSITIONS_PARTITIONS
PARTITIONS_DEFAULT = 12
# More than a broker is sensibly given for one topic.
PARTITIONS_MAX = 1_000


class OnTruncate(StrEnum):
    """What follows a TRUNCATE, DROP or CREATE OR REPLACE of a table on a shard."""

    KEEP = "keep"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class TopicOptions:
    """How topics are written.

    `tasks` write at the same time, a power of two; `partitions` is that of each topic. Neither can
    change later. `keep_ms` deletes records of that age; None keeps each key's last one. For the
    moves see `moves`. `registry_url`: the schema registry of the Avro formats. `on_truncate`: what
    follows a TRUNCATE or DROP. `on_same_key`: what follows a key that has rows on several shards
    for longer than the window. UsageError on a number out of bounds or a bad name.
    """

    envelope: EnvelopeOptions
    tasks: int = TASKS_DEFAULT
    partitions: int = PARTITIONS_DEFAULT
    keep_ms: int | None = None
    move_window_us: int = MOVE_WINDOW_US_DEFAULT
    moves_max: int = MOVES_MAX_DEFAULT
    registry_url: str | None = None
    on_truncate: OnTruncate = OnTruncate.KEEP
    on_same_key: OnSameKey = OnSameKey.STOP

    def __post_init__(self) -> None:
        """Check the numbers."""
        check_keyspace(self.envelope.keyspace)
        check_prefix(self.envelope.prefix)
        if not 1 <= self.tasks <= TASKS_MAX or self.tasks & (self.tasks - 1):
            raise UsageError(f"--tasks {self.tasks}: must be a power of two, at most {TASKS_MAX}")
        if not 1 <= self.partitions <= PARTITIONS_MAX:
            raise UsageError(f"--partitions {self.partitions}: must be 1 to {PARTITIONS_MAX}")
        if self.keep_ms is not None and self.keep_ms <= 0:
            raise UsageError(f"--keep {self.keep_ms} ms: must be greater than 0")
        if self.move_window_us < 0 or self.moves_max < 0:
            raise UsageError("--move-window and --moves-max: must not be negative")

    def with_registry(self, default_url: str | None) -> "TopicOptions":
        """Return the options with the registry to use. UsageError when a format lacks one."""
        if not self.envelope.format.is_avro:
            return replace(self, registry_url=None)
        found = replace(self, registry_url=self.registry_url or default_url)
        if found.registry_url is None:
            raise UsageError(
                f"--format {self.envelope.format.value} needs a schema registry: name one with "
                f"--schema-registry URL"
            )
        return found
