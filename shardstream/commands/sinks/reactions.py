"""What the commands of sinks are told to do where the stream cannot simply be applied."""

from dataclasses import dataclass

from spark_consumers.applying.on_truncate import OnTruncate
from spark_consumers.applying.on_type_change import OnTypeChange
from spark_consumers.decoding.on_partial import OnPartial


@dataclass(frozen=True, slots=True)
class Reactions:
    """What follows a type that does not fit, an emptied table, and a row without stored columns.

    `drop_columns`: columns that no shard has any more are dropped.
    """

    on_type_change: OnTypeChange = OnTypeChange.HALT
    on_truncate: OnTruncate = OnTruncate.APPLY
    on_partial: OnPartial = OnPartial.STOP
    drop_columns: bool = False
