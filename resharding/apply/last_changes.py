"""The last change of each row since the last statements were sent. Pure.

Rows of one key keep their order, because only the last change is left. Between keys the order is
free: what the last changes leave is a state that the sources have had together, except for copied
rows that are ahead, and what is in the way of those has a change of its own still to come. So all
deletes go first, and no upsert can be undone by the delete of a key that a collation takes for the
same one.

Where sources are merged, their logs are not read in the order in which their transactions were
committed: a row may be there again before the source that it has left deletes it. But each source's
own log is exact, so the last change of a row is that of its source, and a source deletes each row
of its own by the image that its log gives: the sharding column tells whose row it is. What another
source's row excludes for a while waits aside (`merge_session`).

Typed for mypyc, and correct uncompiled too.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from resharding.routing import Change, Delete, Upsert
from topics.records.table_shape import TableShape, ValueKind
from topics.records.vevent import Row, Value, VEvent

Key = tuple[object, ...]
Changed = tuple[Change, VEvent]


@dataclass(frozen=True, slots=True)
class Section:
    """Changes of one source, to be sent behind a checkpoint of it.

    `newest`: the newest record of the source among all that were collected. `following`: how many
    more sections of the source there are.
    """

    source: str
    newest: VEvent
    changes: list[Changed]
    following: int = 0


class _TableChanges:
    """The last changes of one table of one source."""

    def __init__(self, shape: TableShape, sharding_column: str, *, is_merge: bool) -> None:
        columns = [shape.columns[i] for i in shape.primary_key]
        self._is_merge = is_merge
        self._shapes = [shape]
        self.upserts: dict[Key, Changed] = {}
        # The key, and the sharding column: a delete leaves the row of another source alone.
        self.deletes: dict[Key, Changed] = {}
        self._names = [column.name for column in columns]
        self._has_lists = any(column.kind is ValueKind.SET for column in columns)
        self._sharding_column = sharding_column

    def is_of(self, shape: TableShape | None) -> bool:
        """Whether a record's table version is this one; each source has an object of its own."""
        for known in self._shapes:
            if known is shape:
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
            if before is not None and (self._is_merge or self._is_other(before, change.row, key)):
                old = Delete(change.database, change.table, before)
                self._delete(self._key(before), old, event)
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

    def __init__(self, sharding_column_of: Callable[[VEvent], str], *, is_merge: bool) -> None:
        """`sharding_column_of`: that of a record's table. `is_merge`: there are several sources.

        In a merge every old row is deleted, since no new one replaces it.
        """
        self._sharding_column_of = sharding_column_of
        self._is_merge = is_merge
        self._tables: dict[tuple[str, str, str], _TableChanges] = {}
        self._newest: dict[str, VEvent] = {}
        self.size_bytes = 0

    def has_other_shape(self, event: VEvent) -> bool:
        """Whether the record's table has changes of another version, to be sent before."""
        table = self._tables.get((event.shard, event.database, event.table))
        return table is not None and not table.is_of(event.shape)

    def add(self, change: Change, event: VEvent) -> None:
        """Add a change, the newest of its source."""
        name = (event.shard, event.database, event.table)
        table = self._tables.get(name)
        if table is None:
            assert event.shape is not None  # noqa: S101 - rows have a shape
            column = self._sharding_column_of(event)
            table = _TableChanges(event.shape, column, is_merge=self._is_merge)
            self._tables[name] = table
        table.add(change, event)
        self._newest[event.shard] = event
        self.size_bytes += len(event.record)

    def take(self) -> list[Section]:
        """Return what is left, in the order in which it has to be applied, and start over."""
        tables, self._tables = self._tables.values(), {}
        newest, self._newest = self._newest, {}
        self.size_bytes = 0
        deletes = [changed for table in tables for changed in table.deletes.values()]
        upserts = [changed for table in tables for changed in table.upserts.values()]
        if len(newest) == 1:
            return [Section(source, at, deletes + upserts) for source, at in newest.items()]
        return _sections(_by_source(deletes) + _by_source(upserts), newest)


_Part = tuple[str, list[Changed]]


def _by_source(changes: Iterable[Changed]) -> list[_Part]:
    """Changes of each source."""
    parts: dict[str, list[Changed]] = {}
    for changed in changes:
        parts.setdefault(changed[1].shard, []).append(changed)
    return list(parts.items())


def _sections(parts: list[_Part], newest: Mapping[str, VEvent]) -> list[Section]:
    following = Counter(source for source, _ in parts)
    sections = []
    for source, changes in parts:
        following[source] -= 1
        sections.append(Section(source, newest[source], changes, following[source]))
    return sections
