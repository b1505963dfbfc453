"""The plan of a reshard, as `reshard create` stores it on every target."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from event_token import KeyRange, ShardName
from event_token.errors import Halt
from topics.keyspace.topology import TableVindex

# The version of the JSON layout; any other is refused.
LAYOUT_VERSION = 1


def range_of(shards: Iterable[str]) -> KeyRange:
    """The range from the first to the last of one or more shards."""
    ranges = [ShardName.parse(shard).key_range for shard in shards]
    open_end = any(not part.end for part in ranges)
    return KeyRange(
        min(part.start for part in ranges), b"" if open_end else max(part.end for part in ranges)
    )


@dataclass(frozen=True, slots=True)
class ReshardPlan:
    """A reshard from its creation on.

    `start`: the position of the sources at which appliers start, as its opaque string.
    `agreed_seqs`: per source, the last seq at which the targets' tables are known to match: DDL
    up to there is taken into account.
    """

    reshard_id: str
    keyspace: str
    sources: tuple[str, ...]
    targets: tuple[str, ...]
    tables: tuple[TableVindex, ...]
    start: str
    agreed_seqs: dict[str, int]

    def to_json(self) -> str:
        """The text that is stored on the targets."""
        return json.dumps(
            {
                "version": LAYOUT_VERSION,
                "reshard_id": self.reshard_id,
                "keyspace": self.keyspace,
                "sources": list(self.sources),
                "targets": list(self.targets),
                "tables": [[t.database, t.table, list(t.columns), t.vindex] for t in self.tables],
                "start": self.start,
                "agreed_seqs": self.agreed_seqs,
            },
        )

    @classmethod
    def from_json(cls, text: str, where: str) -> "ReshardPlan":
        """Parse a stored plan; Halt on another layout version or invalid text."""
        try:
            fields: dict[str, Any] = json.loads(text)
            if fields["version"] != LAYOUT_VERSION:
                raise Halt(f"{where}: version {fields['version']} of the reshard's plan is unknown")
            return cls(
                reshard_id=fields["reshard_id"],
                keyspace=fields["keyspace"],
                sources=tuple(fields["sources"]),
                targets=tuple(fields["targets"]),
                tables=tuple(TableVindex(d, t, tuple(c), v) for d, t, c, v in fields["tables"]),
                start=fields["start"],
                agreed_seqs=dict(fields["agreed_seqs"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise Halt(f"{where}: the reshard's plan is invalid: {error!r}") from error
