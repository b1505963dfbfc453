"""Which part of a source's record belongs to a target, by keyspace ids. Pure.

A row whose sharding column changes may leave one target's range and enter another's: the first
deletes it and the second inserts it, each deciding for itself from the same record.

Typed for mypyc, and correct uncompiled too.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from databases.internal_tables import INTERNAL_DATABASE
from databases.statements import Token, TokenReader, possible_names, readings, without_setting
from event_token import KeyRange
from event_token.errors import UsageError
from resharding.errors import DefinitionChanged, DoesNotApply, TransactionSkipped
from topics.keyspace.topology import TableVindex
from topics.keyspace.vindexes import Vindex, vindex_named
from topics.records.skip_record import Skip, accept_advice
from topics.records.vevent import EventType, Row, VEvent


class _RowChange:  # noqa: PLW1641 - rows have no hash
    """A change of one row; two of one kind are equal if their fields are.

    Written out, because the constructor of a dataclass costs ten times as much, for each row.
    """

    def __init__(self, database: str, table: str, row: Row) -> None:
        self.database: str = database
        self.table: str = table
        self.row: Row = row

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _RowChange)
            and type(other) is type(self)
            and other.database == self.database
            and other.table == self.table
            and other.row == self.row
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.database!r}, {self.table!r}, {self.row!r})"


class Upsert(_RowChange):
    """Make this the only row with its keys. The image is full."""


class Delete(_RowChange):
    """Delete the row with the key and the sharding column of this image."""


Change = Upsert | Delete


_ROW: Final = EventType.ROW
# Statements that name a table or a database and leave rows and definitions as they are.
_HARMLESS: Final = frozenset(("GRANT", "REVOKE", "FLUSH", "ANALYZE", "CHECK"))
# Triggers and events change no row, and no target has any before it is opened: `switch` creates the
# triggers that the sources have by then.
_PROGRAMS: Final = re.compile(
    r"\s*(?:CREATE|ALTER|DROP)\s+(?:OR\s+REPLACE\s+)?(?:DEFINER\s*=\s*\S+\s+)?(?:TRIGGER|EVENT)\b",
    re.IGNORECASE,
)
# With USER or ROLE behind them they touch no row.
_ACCOUNT_VERBS: Final = frozenset(("CREATE", "ALTER", "DROP", "RENAME"))

# The record stays in the log, even if the source is corrected.
_CANCEL: Final = (
    "This reshard cannot pass the record: cancel it (shardstream reshard cancel), and create "
    "another one when that is fixed"
)

SEQUENCE_COLUMNS: Final = (
    *("next_not_cached_value", "minimum_value", "maximum_value", "start_value", "increment"),
    *("cache_size", "cycle_option", "cycle_count"),
)


@dataclass(frozen=True, slots=True)
class Route:
    """How the rows of one table find their target."""

    declared: TableVindex
    vindex: Vindex

    @property
    def column(self) -> str:
        """The sharding column."""
        return self.declared.columns[0]


class Routes:
    """The resharded tables, and the changes that a record means for one key range.

    A database with a table that has a vindex belongs to the keyspace: all its tables must have.
    """

    def __init__(self, vindexes: Iterable[TableVindex]) -> None:
        """UsageError on a vindex that is unknown, or over several columns."""
        self._routes: dict[tuple[str, str], Route] = {}
        for declared in vindexes:
            if len(declared.columns) != 1:
                raise UsageError(
                    f"table {declared.database}.{declared.table}: a reshard takes vindexes over "
                    f"one column, not over {', '.join(declared.columns) or 'none'}",
                )
            route = Route(declared, vindex_named(declared.vindex))
            self._routes[declared.database, declared.table] = route
        self.databases = frozenset(database for database, _ in self._routes)

    @property
    def tables(self) -> Mapping[tuple[str, str], Route]:
        """The route of each (database, table)."""
        return self._routes

    def changes(self, event: VEvent, key_range: KeyRange) -> list[Change]:
        """The changes to the target that holds `key_range`, in order; none for most records.

        DoesNotApply when a row has no keyspace id or only part of its columns.
        """
        if event.type is not _ROW:
            return []
        database, table = event.database, event.table
        route = self._routes.get((database, table))
        if route is None:
            if database not in self.databases:
                return []
            if _is_sequence(event):
                return []  # each target has its own, which `switch` sets behind the source's
            raise DoesNotApply(
                f"{place_of(event)}: table {event.database}.{event.table} has no vindex: declare "
                f"one, or drop the table. {_CANCEL}",
            )
        before, after = event.before, event.after
        leaves = _has(event, before, route, key_range)
        comes = _has(event, after, route, key_range)
        changes: list[Change] = []
        # An update in place needs no delete: the upsert replaces the row with its key.
        if leaves and before is not None and not (comes and _same_key(event)):
            changes.append(Delete(database, table, before))
        if comes and after is not None:
            changes.append(Upsert(database, table, after))
        return changes

    def check_statement(self, event: VEvent, *, is_merge: bool = False) -> None:
        """DefinitionChanged when a DDL statement names a resharded table or its database.

        `is_merge`: targets have rows of other sources, which a table's end on one leaves alone.
        """
        words = [token.text for token in readings(event.statement or "")[0] if token.can_name]
        verbs = [word.upper() for word in words[:5]]
        if not words or verbs[0] in _HARMLESS or _is_about_accounts(verbs):
            return
        if _PROGRAMS.match(event.statement or ""):
            return
        is_own = verbs[:2] == ["ALTER", "TABLE"] and words[2:3] == [INTERNAL_DATABASE]
        if is_own or (INTERNAL_DATABASE in words and verbs[0] == "CREATE"):
            return  # its columns may have the names of resharded tables
        named = possible_names(event.statement or "")
        tables = sorted(f"{d}.{t}" for d, t in self._routes if t.casefold() in named)
        whole = {"DATABASE", "SCHEMA"} & set(verbs[:4])
        databases = sorted(d for d in self.databases if whole and d.casefold() in named)
        if is_merge and (emptied := self.emptied(event)):
            raise DefinitionChanged(
                f"{place_of(event)}: a statement removes the shard's rows of "
                f"{', '.join(f'{d}.{t}' for d, t in emptied)}, which is being resharded: "
                f"{event.statement!r}. Leave the targets as they are, which have rows of other "
                f"shards, too, and go on with --accept-ddl {event.gtid}: then the applier deletes "
                f"the rows of this one"
            )
        if tables or databases:
            raise DefinitionChanged(
                f"{place_of(event)}: a statement changes {', '.join(tables or databases)}, which "
                f"is being resharded: {event.statement!r}. Make the same change on the targets, "
                f"then go on with --accept-ddl {event.gtid}",
            )

    def emptied(self, event: VEvent) -> list[tuple[str, str]]:
        """The resharded tables of which a statement leaves no row; none where that is unsure."""
        ways = [_emptied(tokens, event.database) for tokens in readings(event.statement or "")]
        if any(way != ways[0] for way in ways):
            return []
        named = {(d.casefold(), t and t.casefold()) for d, t in ways[0]}
        if ("", None) in named or any(table == "" for _, table in named):
            return []
        return [
            (d, t)
            for d, t in self._routes
            if (d.casefold(), t.casefold()) in named or (d.casefold(), None) in named
        ]


def _emptied(tokens: list[Token], database: str) -> list[tuple[str, str | None]]:
    """The tables that one reading of a statement empties, drops or creates again.

    Of a database as a whole the table is None, and a name that is not found is "".
    """
    reader = TokenReader(without_setting(tokens), database)
    if reader.take("TRUNCATE"):
        reader.take("TABLE")
        return [reader.table()]
    if reader.take("CREATE"):
        if not (reader.take("OR") and reader.take("REPLACE")):
            return []
        if reader.take("DATABASE", "SCHEMA"):
            return [(reader.name(), None)]
        return [reader.table()] if reader.take("TABLE") else []
    if not reader.take("DROP"):
        return []
    is_database = reader.take("DATABASE", "SCHEMA")
    if not is_database and not reader.take("TABLE", "TABLES"):
        return []
    if reader.take("IF"):
        reader.take("EXISTS")
    if is_database:
        return [(reader.name(), None)]
    return list(reader.tables(","))


def check_skip(event: VEvent) -> None:
    """TransactionSkipped on a SKIP record: rows of the source may be missing in its log."""
    skip = Skip.of(event)
    raise TransactionSkipped(
        f"{place_of(event)}: an operator skipped {skip.gtids} on the source ({skip.reason}), so "
        f"the targets may lack changes, or have too many. Make their rows agree, then go on with "
        f"{accept_advice(event.gtid, event.statement or '')} and verify again; or cancel the "
        f"reshard and create a new one",
    )


def _is_sequence(event: VEvent) -> bool:
    """Whether a row is that of a MariaDB sequence, which is a table without a key."""
    shape = event.shape
    return (
        shape is not None
        and not shape.primary_key
        and tuple(column.name for column in shape.columns) == SEQUENCE_COLUMNS
    )


def _is_about_accounts(verbs: list[str]) -> bool:
    """Whether a statement that begins with these words creates, changes or drops accounts."""
    rest = [word for word in verbs[1:] if word not in {"OR", "REPLACE"}]
    return verbs[0] in _ACCOUNT_VERBS and rest[:1] in (["USER"], ["ROLE"])


def _has(event: VEvent, row: Row | None, route: Route, key_range: KeyRange) -> bool:
    """Whether the target has this row image."""
    if row is None:
        return False
    check_full_image(event, row)
    assert event.shape is not None  # noqa: S101 - the check has seen it
    if not event.shape.primary_key:
        raise DoesNotApply(
            f"{place_of(event)}: table {event.database}.{event.table} has no primary key: a "
            f"reshard cannot identify its rows. {_CANCEL}",
        )
    if event.shape.row_end is not None:
        raise DoesNotApply(
            f"{place_of(event)}: table {event.database}.{event.table} has become system-versioned: "
            f"targets cannot be given the history of its rows. ALTER TABLE ... DROP SYSTEM "
            f"VERSIONING on the source before another reshard. {_CANCEL}",
        )
    if route.column not in row:
        raise DoesNotApply(
            f"{place_of(event)}: table {event.database}.{event.table} has no column "
            f"{route.column}, which its vindex names. {_CANCEL}",
        )
    try:
        return key_range.contains(route.vindex.keyspace_id(row[route.column]))
    except UsageError as error:
        raise DoesNotApply(
            f"{place_of(event)}: a row of {event.database}.{event.table} has no keyspace id: "
            f"{error}. {_CANCEL}",
        ) from error


def check_full_image(event: VEvent, row: Row) -> None:
    """DoesNotApply when a row image has only part of its columns."""
    if event.shape is None or len(row) != len(event.shape.columns):
        raise DoesNotApply(
            f"{place_of(event)}: an image of a row of {event.database}.{event.table} is not full: "
            f"a reshard needs binlog_row_image=FULL on the source. {_CANCEL}",
        )


def _same_key(event: VEvent) -> bool:
    """Whether an update keeps the primary key; comparing values is stricter than collations."""
    assert event.shape is not None  # noqa: S101 - rows have a shape
    assert event.before is not None  # noqa: S101 - an update has both
    assert event.after is not None  # noqa: S101 - likewise
    names = [event.shape.columns[i].name for i in event.shape.primary_key]
    return all(event.before[name] == event.after[name] for name in names)


def place_of(event: VEvent) -> str:
    """A record's position, for messages."""
    return f"shard {event.shard}, {event.gtid}, seq {event.seq}, offset {event.offset}"
