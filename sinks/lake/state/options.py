"""Which tables a lake's current state has, how they are laid out, and what changes do to them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from event_token.errors import UsageError
from sinks.resume import Origin
from sinks.rule.policy import OnPartial, Option, RowPolicy, number_or_auto, table_name

# As many tasks as a small machine has processors.
PARTITIONS_DEFAULT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class StateOptions(RowPolicy):
    """The policy of a current state. UsageError on options that exclude each other.

    `history`: by `database.table`, the columns whose changes begin a version, none for all.
    `partitions` (tasks) and `buckets` are powers of two, and a table has at least as many buckets
    as the query has partitions. Columns of a table with a history are never dropped.
    """

    history: Mapping[str, Sequence[str]] = field(default_factory=dict)
    partitions: Annotated[int, Option("Tasks that write, a power of two")] = PARTITIONS_DEFAULT
    buckets: Annotated[
        int | None,
        Option(
            "Parts of a new table, a power of two; auto: as many as partitions, and twice as "
            "many each time that the table outgrows them",
            parse=number_or_auto,
            default="auto",
        ),
    ] = None

    def __post_init__(self) -> None:
        """Check the options."""
        RowPolicy.__post_init__(self)
        for name in self.history:
            table_name(name, "--history")
            if self.tables and name not in self.tables:
                raise UsageError(f"--history {name}: name it with --table too, as the others are")
        if self.history and self.on_partial is OnPartial.INSERT_NULLS:
            raise UsageError(
                "--partial insert-nulls: a history would keep values that no row had as those of a "
                "version. Leave it out, or keep no --history, in a new target"
            )
        for name, number in (("partitions", self.partitions), ("buckets", self.new_buckets)):
            if number < 1 or number & (number - 1):
                raise UsageError(f"{name}: {number} is not a power of two")
        if self.new_buckets < self.partitions:
            raise UsageError(
                f"buckets: {self.new_buckets} are fewer than the {self.partitions} partitions, and "
                f"a task writes whole buckets"
            )

    @property
    def new_buckets(self) -> int:
        """The buckets of a new table."""
        return self.partitions if self.buckets is None else self.buckets


@dataclass(frozen=True, slots=True)
class StateTarget:
    """Where a query writes, and what the target keeps of the stream: None if it is not known."""

    path: str
    storage: Mapping[str, str]
    options: StateOptions = field(default_factory=StateOptions)
    origin: Origin | None = None
