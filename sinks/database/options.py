"""How a second database follows the stream: where its tables are, and what changes do to them."""

from dataclasses import dataclass
from typing import Annotated, Literal

from event_token import KeyRange
from sinks.rule.policy import Option, RowPolicy, duration_us
from topics.arrow.key_scope import KeyScope

WHOLE = KeyRange.parse("-")
# As long as topics are usually kept: late changes cannot be older than the log.
TOMBSTONES_US = 7 * 24 * 3600 * 1_000_000
# Tasks that decode and stage side by side; the transaction that applies is one, on one core.
PARTITIONS_DEFAULT = 4

FollowerName = Annotated[
    str,
    Option("Name under which the database keeps position and tables (default: the keyspace)"),
]
NulText = Annotated[
    Literal["stop", "replace"], Option("PostgreSQL: stop at a zero character or write U+FFFD")
]


@dataclass(frozen=True, slots=True)
class DatabaseOptions(RowPolicy):
    """The policy of a second database.

    `follower`: the name under which the target keeps position and tables; `run_database` takes the
    keyspace where it is empty. `tombstones_us`: how long a deleted key is remembered, for late
    changes. `partitions`: tasks of Spark.

    `run_database` sets the others: `key_range` and `key_scope` are those of the source and cannot
    change, `is_loading` says that new tables begin with a copy, and `left` are the (database,
    table) that the target has and the query does not follow.
    """

    follower: FollowerName = ""
    schema: Annotated[
        str | None,
        Option(
            "Schema of all tables (default: named as the source's databases; "
            "MySQL, MariaDB: the database of --to)"
        ),
    ] = None
    deletes: Annotated[
        Literal["hard", "soft"], Option("Delete rows, or keep them marked in column _deleted")
    ] = "hard"
    nul_text: NulText = "stop"
    on_bad_row: Annotated[
        Literal["stop", "table"],
        Option("Stop at a value that does not fit, or put its row into _shardstream.rejected"),
    ] = "stop"
    tombstones_us: Annotated[
        int,
        Option(
            "How long a deleted key is remembered, for late changes: 12h, 7d",
            "--tombstones",
            parse=duration_us,
            default="7d",
        ),
    ] = TOMBSTONES_US
    partitions: Annotated[int, Option("Tasks that stage side by side, a power of two")] = (
        PARTITIONS_DEFAULT
    )
    key_range: KeyRange = WHOLE
    key_scope: KeyScope = KeyScope.KEYSPACE
    is_loading: bool = False
    left: tuple[tuple[str, str], ...] = ()

    @property
    def is_soft(self) -> bool:
        """Whether rows that the source deleted stay, with `_deleted` true."""
        return self.deletes == "soft"
