"""The last change of each row since the last statements were sent. Pure.

Rows of one key keep their order, because only the last change is left. Between keys the order is
free: what the last changes leave is a state that the sources have had together, except for copied
rows that are ahead, and what is in the way of those has a change of its own still to come. So all
deletes go first, and no upsert can be undone by the delete of a key that a collation takes for the
same one.
"""

from collections.abc import Callable
from dataclasses import dataclass

from resharding.apply.routing import Change, Delete, Upsert
from topics.records.table_shape import TableShape, ValueKind
from topics.records.vevent import Row, Value, VEvent

Key = tuple[object, ...]
Changed = tuple[Change, VEvent]


@dataclass(frozen=True, slots=True)
class Section:
    """Changes of one source, to be sent behind a checkpoint of it.

    `newest`: the newest record of the source among all that were collected. `is_last`: no section
    of the source follows.
    """

    source: str
    newest: VEvent
    changes: list[Changed]
    is_last: bool = True


class _TableChanges:
    """The last changes of one table, of all sources together: a row may move between them."""

    def __init__(self, shape: TableShape, sharding_column: str) -> None:
        columns = [shape.columns[i] for i in shape.primary_key]
        self._shapes = [shape]
        self.upserts: dict[Key, Changed] = {}
        # The key, and the sharding column: a delete leaves the row of another source alone.
        self.deletes: dict[Key, Changed] = {}
        self._names = [column.name for column in columns]
        self._has_lists = any(column.kind is ValueKind.SET for column in columns)
        self._sharding_column = sharding_column

    def is_of(self, shape: TableShape | None) -> bool:
        """Whether a record's table version is this one; each source has an object of its own."""
        if any(known is shape for known in self._shapes):
            return True
        if shape is None or shape != self._shapes[0]:
            return False
        self._shapes.append(shape)
        return True

    def add(self, change: Change, event: VEvent) -> None:
        key = self._key(change.row)
        if isinstance(change, Upsert):
            self.upserts[key] = (change, event)
            before = event.before
            if before is not None and self._is_other(before, change.row, key):
                self._delete(key, Delete(change.database, change.table, before), event)
            return
        last = self.upserts.get(key)
        if last is not None and self._shard_by(last[0].row) == self._shard_by(change.row):
            del self.upserts[key]
        self._delete(key, change, event)

    def _is_other(self, before: Row, after: Row, key: Key) -> bool:
        """Whether an update in place changes what a later delete will name."""
        return self._shard_by(before) != self._shard_by(after) and self._key(before) == key

    def _delete(self, key: Key, change: Delete, event: VEvent) -> None:
        self.deletes[(*key, self._shard_by(change.row))] = (change, event)

    def _shard_by(self, row: Row) -> Value:
        return row[self._sharding_column]

    def _key(self, row: Row) -> Key:
        if self._has_lists:
            return tuple([str(row[name]) for name in self._names])
        return tuple([row[name] for name in self._names])


class LastChanges:
    """Collects changes in the order of the sources; `take` returns what is left of them."""

    def __init__(self, sharding_column: Callable[[str, str], str]) -> None:
        """`sharding_column` of a (database, table)."""
        self._sharding_column = sharding_column
        self._tables: dict[tuple[str, str], _TableChanges] = {}
        self._newest: dict[str, VEvent] = {}
        self.size_bytes = 0

    def has_other_shape(self, event: VEvent) -> bool:
        """Whether the record's table has changes of another version, to be sent before."""
        table = self._tables.get((event.database, event.table))
        return table is not None and not table.is_of(event.shape)

    def add(self, change: Change, event: VEvent) -> None:
        """Add a change, the newest of its source."""
        name = (event.database, event.table)
        table = self._tables.get(name)
        if table is None:
            assert event.shape is not None  # noqa: S101 - rows have a shape
            table = self._tables[name] = _TableChanges(event.shape, self._sharding_column(*name))
        table.add(change, event)
        self._newest[event.shard] = event
        self.size_bytes += len(event.record)

    def take(self) -> list[Section]:
        """Return what is left, in the order in which it has to be applied, and start over."""
        deletes: dict[str, list[Changed]] = {source: [] for source in self._newest}
        upserts: dict[str, list[Changed]] = {source: [] for source in self._newest}
        for table in self._tables.values():
            for changed in table.deletes.values():
                deletes[changed[1].shard].append(changed)
            for changed in table.upserts.values():
                upserts[changed[1].shard].append(changed)
        newest, self._newest = self._newest, {}
        self._tables = {}
        self.size_bytes = 0
        if len(newest) == 1:
            return [Section(s, at, deletes[s] + upserts[s]) for s, at in newest.items()]
        first = [Section(s, at, deletes[s], is_last=False) for s, at in newest.items()]
        last = [Section(s, at, upserts[s]) for s, at in newest.items()]
        return [section for section in first if section.changes] + last
