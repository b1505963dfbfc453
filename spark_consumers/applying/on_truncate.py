"""Statements that empty a table: applied to a target, or a reason to stop. Pure."""

from enum import StrEnum

from spark_consumers.applying.homes import Version
from spark_consumers.errors import CannotApply


class OnTruncate(StrEnum):
    """What follows a TRUNCATE, DROP or CREATE OR REPLACE of a table on a shard."""

    APPLY = "apply"
    STOP = "stop"


def emptied(table: str, at: Version) -> CannotApply:
    """Return the error of a query that is to stop at such a statement."""
    return CannotApply(
        f"{table}, shard {at.shard}, seq {at.seq}: TRUNCATE, DROP or CREATE OR REPLACE emptied the "
        f"table on this shard, and --on-truncate is stop. The target still has the rows. To remove "
        f"those of this shard, start again with --on-truncate apply; to keep them, leave the table "
        f"out of a new target, or start one from a copy once the shard has them again"
    )
