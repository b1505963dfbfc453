"""The columns that every stored or staged row has beside those of its table."""

from dataclasses import dataclass

from spark_consumers.applying.changes import (
    ABSENT,
    COMPARE,
    DELETED,
    HOME,
    KEY,
    SEQ,
    SHARD,
    TIME,
    TOKEN,
)
from topics.records.table_shape import TableShape

# The schema (or, where there are none, the prefix) of the tables that the followers need.
INTERNAL = "_shardstream"
CONTESTED = "_contested"
NUMBER = "_number"
ORIGIN = "_origin"

# What a row of the target keeps of its last change, and what is staged of a change.
STORED = (TIME, SHARD, SEQ, HOME, TOKEN)
KEPT = (*STORED, DELETED)
STAGED = (KEY, *KEPT, COMPARE, ABSENT, CONTESTED)
# What no column of a table may be called.
RESERVED = (*STAGED, NUMBER, ORIGIN)

# By column: the names of `Dialect.meta_types`.
META_KINDS = {
    KEY: "key",
    TIME: "long",
    SHARD: "name",
    SEQ: "long",
    HOME: "bytes",
    TOKEN: "text",
    DELETED: "flag",
    COMPARE: "flag",
    ABSENT: "text",
    CONTESTED: "small",
    NUMBER: "long",
}


@dataclass(frozen=True, slots=True)
class TargetTable:
    """A table of the target, as the follower knows it.

    `schema` is empty where the database has none. `shape` names all columns that the follower has
    created; the table may have others.
    """

    number: int
    schema: str
    name: str
    shape: TableShape

    @property
    def columns(self) -> list[str]:
        """The names of the follower's columns."""
        return [column.name for column in self.shape.columns]

    @property
    def key(self) -> list[str]:
        """The names of the primary key's columns."""
        return [self.shape.columns[i].name for i in self.shape.primary_key]

    @property
    def homes(self) -> str:
        """The name of the table that has the other homes of its keys, and tombstones."""
        return f"homes_{self.number}"
