"""The marker that a task writes in the transaction of its rows: where its topics stand. Pure."""

import json
import zlib
from dataclasses import dataclass
from typing import cast

from event_token.errors import Halt, UsageError
from event_token.position import StreamPosition
from spark_consumers.decoding.key_scope import KeyScope
from spark_consumers.errors import TargetConflict
from topics.kafka.topic_settings import POSITIONS_PARTITIONS

# The version of the JSON layout; another one is refused.
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Owner:
    """The run of a query that may write; a later run has a greater `generation`.

    `name` tells an operator which process it is. `tasks`, `partitions`, `key_scope` and `key_range`
    must not change. `tables` (`database.table`): those that it writes, empty for all.
    """

    generation: int
    name: str
    tasks: int
    partitions: int
    key_scope: KeyScope = KeyScope.KEYSPACE
    key_range: str = "-"
    tables: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Marker:
    """What a task has written: all rows of its keys before `end`; None before the first batch.

    `query` and `batch` say which batch wrote it, `start` where that began. `records`: how many
    records the task has written in all. `moves`: see `moves`.
    """

    owner: Owner
    query: str = ""
    batch: int = -1
    start: StreamPosition | None = None
    end: StreamPosition | None = None
    moves: tuple[object, ...] = ()
    records: int = 0

    def to_json(self) -> bytes:
        """Return the value of its record."""
        return json.dumps(
            {
                "version": _VERSION,
                "generation": self.owner.generation,
                "owner": self.owner.name,
                "tasks": self.owner.tasks,
                "partitions": self.owner.partitions,
                "key_scope": self.owner.key_scope,
                "key_range": self.owner.key_range,
                "tables": self.owner.tables,
                "query": self.query,
                "batch": self.batch,
                "start": None if self.start is None else self.start.to_string(),
                "end": None if self.end is None else self.end.to_string(),
                "moves": self.moves,
                "records": self.records,
            },
            separators=(",", ":"),
        ).encode()

    @classmethod
    def from_json(cls, value: bytes | None, where: str) -> "Marker":
        """Parse the value of a record; Halt unless it is a marker of this release."""
        try:
            found = json.loads(value or b"null")
            if found["version"] != _VERSION:
                raise Halt(f"{where}: a marker of version {found['version']}, of another release")
            owner = Owner(
                int(found["generation"]),
                str(found["owner"]),
                int(found["tasks"]),
                int(found["partitions"]),
                KeyScope(found.get("key_scope", KeyScope.KEYSPACE)),
                str(found.get("key_range", "-")),
                tuple(map(str, found.get("tables", ()))),
            )
            return cls(
                owner,
                str(found["query"]),
                int(found["batch"]),
                _position(found["start"]),
                _position(found["end"]),
                tuple(cast("list[object]", found["moves"])),
                int(found["records"]),
            )
        except (ValueError, KeyError, TypeError, UsageError) as error:
            raise Halt(f"{where}: not a marker of table topics: {error!r}") from error


def _position(text: object) -> StreamPosition | None:
    return None if text is None else StreamPosition.from_string(str(text))


def marker_partition(keyspace: str, prefix: str, task: int) -> int:
    """Return the partition of a task's markers; tasks of one query have different ones."""
    return (zlib.crc32(f"{keyspace}.{prefix}".encode()) + task) % POSITIONS_PARTITIONS


def check_owner(stored: Owner, own: Owner, transactional_id: str) -> None:
    """TargetConflict when a later run owns the topics, or their numbers are others."""
    if stored.generation > own.generation:
        raise TargetConflict(
            f"{transactional_id}: another query took over these topics: {stored.name} "
            f"(generation {stored.generation}; this one is {own.name}, generation "
            f"{own.generation}). Only one can write them; this one must stay stopped"
        )
    moved, lacking = "keys would change their place", "rows from before it would be missing"
    for name, was, now, why in (
        ("--tasks", stored.tasks, own.tasks, moved),
        ("--partitions", stored.partitions, own.partitions, moved),
        ("--key-scope", stored.key_scope, own.key_scope, moved),
        ("--key-range", stored.key_range, own.key_range, lacking),
    ):
        if was != now:
            raise TargetConflict(
                f"{transactional_id}: the topics were begun with {name} {was}, and this query has "
                f"{now}: {why}. Continue with {name} {was}, or begin new "
                f"topics under another --prefix"
            )
