"""Which cache keys a change of a row touches: what an application declares for its invalidator."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from event_token.errors import Halt, UsageError
from topics.records.vevent import EventType, Row, VEvent

# A row by its columns, as `Row`; Any, so that mappers may format values without checking types.
RowImage = Mapping[str, Any]
Mapper = Callable[[RowImage], Iterable[str]]

Name = tuple[str, str]


class MissingColumn(Halt):
    """Raised when a mapper asks for a column that a row image does not have."""


class MapperFailed(Halt):
    """Raised when a mapper raises, or gives something else than cache keys."""


class CannotJudge(Exception):  # noqa: N818 - what a mapper says
    """Raised by a mapper that cannot tell which keys a row touches: every key may be.

    All values of the cache are taken out of use, so it is for rare changes.
    """


class KeyMap:
    """The cache keys of each table's rows, by functions that `of` registers.

    A mapper is called with every row image, before and after: a changed key names both. It must
    give the same keys for the same image, at any time. Columns that the image lacks, such as
    those that binlog_row_image=MINIMAL leaves out, raise MissingColumn: nothing is guessed.
    """

    def __init__(self) -> None:
        """Map nothing."""
        self._mappers: dict[Name, list[Mapper]] = {}

    def of(self, *tables: str) -> Callable[[Mapper], Mapper]:
        """Register a mapper for tables, each named `database.table`."""
        names = [_name(table) for table in tables]
        if not names:
            raise UsageError("a mapper is registered for at least one table")

        def register(mapper: Mapper) -> Mapper:
            for name in names:
                self._mappers.setdefault(name, []).append(mapper)
            return mapper

        return register

    @property
    def tables(self) -> frozenset[Name]:
        """The mapped tables, as (database, table)."""
        return frozenset(self._mappers)

    def keys_of(self, event: VEvent) -> frozenset[str]:
        """Return the keys that a row event touches.

        MissingColumn and MapperFailed (Halts); CannotJudge when a mapper raises it.
        """
        mappers = self._mappers.get((event.database, event.table), ())
        images = [image for image in (event.before, event.after) if image is not None]
        if event.type is not EventType.ROW:
            return frozenset()
        return frozenset(
            key
            for image in images
            for mapper in mappers
            for key in _keys(mapper, _Image(event, image), event)
        )


class _Image(Mapping[str, Any]):
    """A row image that raises MissingColumn for what it lacks, also in `get`."""

    def __init__(self, event: VEvent, row: Row) -> None:
        self._event = event
        self._row = row

    def __getitem__(self, column: str) -> Any:
        if column in self._row:
            return self._row[column]
        event = self._event
        where = f"{_where(event)}: the row image of {event.database}.{event.table} lacks"
        names = [each.name for each in event.shape.columns] if event.shape else []
        if column in names:
            raise MissingColumn(
                f"{where} the column {column}, which its mapper needs. Set "
                f"binlog_row_image=FULL, or map the table by columns of its key"
            )
        raise MissingColumn(
            f"{where} a column {column}; it has {', '.join(names)}. Correct the mapper"
        )

    def __contains__(self, column: object) -> bool:
        return column in self._row

    def __iter__(self) -> Iterator[str]:
        return iter(self._row)

    def __len__(self) -> int:
        return len(self._row)


def _keys(mapper: Mapper, image: _Image, event: VEvent) -> list[str]:
    try:
        keys = list(mapper(image))
    except (Halt, CannotJudge):
        raise
    except Exception as error:
        raise MapperFailed(
            f"{_where(event)}: the mapper of {event.database}.{event.table} failed with "
            f"{type(error).__name__}: {error}. Correct it; a mapper that cannot tell the keys of a "
            f"row raises CannotJudge"
        ) from error
    wrong: Final = [key for key in keys if not isinstance(key, str) or not key]
    if wrong:
        raise MapperFailed(
            f"{_where(event)}: the mapper of {event.database}.{event.table} gave {wrong[0]!r}, "
            f"which is not a cache key: a key is a string that is not empty"
        )
    return keys


def _where(event: VEvent) -> str:
    return f"shard {event.shard}, {event.gtid}, offset {event.offset}"


def _name(table: str) -> Name:
    database, dot, name = table.partition(".")
    if not (database and dot and name):
        raise UsageError(f"table {table!r}: write it as database.table")
    return database, name
