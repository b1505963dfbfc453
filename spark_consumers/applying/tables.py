"""Applies the changes of a log to tables, in any order. Pure."""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

from spark_consumers.applying.homes import (
    Decision,
    Version,
    add_version,
    decide,
    live_homes,
    range_of,
)
from spark_consumers.applying.statements import TableName, effect_of
from spark_consumers.errors import CannotApply
from topics.records.accepted_skips import accept_advice, is_accepted
from topics.records.vevent import Op

# A record of the log, by column names of the change log.
Change = Mapping[str, object]
Row = dict[str, object]
# (key as JSON text, what the change leaves there)
KeyedVersion = tuple[str, Version]

STATEMENT_COLUMNS = (
    *("type", "database", "statement", "gtid", "shard", "seq", "timestamp_us", "token"),
)
# The types of the records that `Statements` takes.
STATEMENT_TYPES = ("DDL", "SKIP")
CHANGE_COLUMNS = (
    *("type", "database", "table", "before", "after", "key", "old_key", "absent"),
    *("keyspace_id_before", "keyspace_id_after", "shard", "seq", "timestamp_us", "token"),
    "present_op",
)


@dataclass(frozen=True, slots=True)
class Removal:
    """A statement that emptied a table on one shard, or all tables of a database."""

    what: TableName
    at: Version


@dataclass
class Statements:
    """The DDL and the skips of a log, which must be known before its changes are applied.

    `accept_skip`: GTIDs of skipped transactions without which the tables are right, sets of them,
    or `reason:TEXT` for all that were skipped for one reason.
    """

    accept_skip: Collection[str] = ()
    removals: dict[str, list[Removal]] = field(default_factory=dict)  # by database
    blocking: list[tuple[TableName, str]] = field(default_factory=list)
    received: list[tuple[TableName, TableName, str]] = field(default_factory=list)

    def add(self, record: Change) -> None:
        """Take a DDL or SKIP record. CannotApply on a skip that was not accepted."""
        statement = str(record["statement"])
        if record["type"] == "SKIP":
            self._check_skip(record, statement)
            return
        effect = effect_of(statement, str(record["database"]))
        at = _version(record, None, None)
        for what in effect.emptied:
            self.removals.setdefault(what.database, []).append(Removal(what, at))
        place = f"shard {at.shard}, seq {at.seq}: {statement[:200]}"
        self.blocking += [(what, place) for what in effect.changed]
        self.received += [(*names, place) for names in effect.received]

    def _check_skip(self, record: Change, statement: str) -> None:
        gtid = str(record.get("gtid"))
        if not is_accepted(self.accept_skip, gtid, statement):
            raise CannotApply(
                f"shard {record['shard']}, seq {record['seq']}: an operator skipped "
                f"{gtid}, so rows may be missing or too many: {statement}. If they are "
                f"not, or once a copy has brought them, pass accept_skip=[{gtid!r}], from the "
                f"command line {accept_advice(gtid, statement)}"
            )

    def is_removed(self, database: str, table: str, version: Version) -> bool:
        """Tell whether a statement removed what a change had left."""
        return any(
            removal.what.table in {None, table} and removes(removal.at, version)
            for removal in self.removals.get(database, ())
        )

    def check(self, tables: Collection[tuple[str, str]]) -> None:
        """CannotApply if a statement changed one of these tables in a way that is not logged."""
        for what, place in self.blocking:
            if what.table is not None and (what.database, what.table) in tables:
                raise _not_logged(what, place)

    def check_received(self, follows: Callable[[tuple[str, str]], bool]) -> None:
        """CannotApply if a statement gave a table that a sink follows rows of one that it does not.

        The sink may not know the table yet: these rows would be its first ones.
        """
        for source, into, place in self.received:
            if follows(_name(into)) and not follows(_name(source)):
                raise _not_logged(into, place)


def _name(what: TableName) -> tuple[str, str]:
    return what.database, what.table or ""


def _not_logged(what: TableName, place: str) -> CannotApply:
    return CannotApply(
        f"{what.database}.{what.table}, {place}: what this statement did to rows is not in the "
        f"log. Start a new target from a copy taken after it, or leave the table out"
    )


def removes(statement: Version, version: Version) -> bool:
    """Tell whether a statement that empties a table on its shard removes a version."""
    own = range_of(statement.shard)
    if version.shard != statement.shard:
        if not own.overlaps(range_of(version.shard)):
            return False
        if version.home is not None and not own.contains(version.home):
            return False
    return statement.order > version.order and decide(version, statement) is Decision.APPLY


def of_present_rows(change: Change) -> Change | None:
    """Return what a change does to the present rows of its table; None: nothing.

    A system-versioned table ends a row by an UPDATE, and has the rows that it ended beside others.
    """
    op = change.get("present_op")
    if op == Op.NONE.value:
        return None
    if op == Op.DELETE.value:
        return {**change, "after": None, "keyspace_id_after": None}
    return change


def versions_of(change: Change) -> list[KeyedVersion]:
    """Return what a change of a keyed row leaves: an upsert, a tombstone, or both.

    An update that changes the key or the home leaves a tombstone at the old one, a change of a
    table's history nothing. CannotApply when an image has only part of its columns.
    """
    present = of_present_rows(change)
    if present is None:
        return []
    change = present
    check_whole(change)
    key = str(change["key"])
    home_before, home_after = _home(change, "before"), _home(change, "after")
    if change["after"] is None:
        return [(key, _version(change, home_before, None))]
    found = [(key, _version(change, home_after, str(change["after"])))]
    if change["old_key"] is not None:
        found.append((str(change["old_key"]), _version(change, home_before, None)))
    elif None not in {home_before, home_after} and home_before != home_after:
        found.append((key, _version(change, home_before, None)))
    return found


def check_whole(change: Change) -> None:
    """CannotApply when a row image has only part of its columns."""
    if change["absent"] is not None:
        raise CannotApply(
            f"{change['database']}.{change['table']}, shard {change['shard']}, seq "
            f"{change['seq']}: a row image has only part of its columns; applying changes needs "
            f"binlog_row_image=FULL"
        )


def _home(change: Change, image: str) -> bytes | None:
    """The keyspace id of an image; change logs of earlier releases have none."""
    found = cast("bytes | None", change.get(f"keyspace_id_{image}"))
    return None if found is None else bytes(found)  # Spark gives a bytearray


def _version(change: Change, home: bytes | None, row: str | None) -> Version:
    token = change.get("token")
    return Version(
        str(change["shard"]),
        cast("int", change["seq"]),
        cast("int", change["timestamp_us"]),
        home,
        row,
        None if token is None else str(token),
    )


@dataclass
class AppliedTable:
    """A table as the changes leave it.

    `versions`: by the JSON text of the key. `without_key`: of a table that has no primary key, how
    many rows of each JSON text.
    """

    versions: dict[str, list[Version]] = field(default_factory=dict)
    without_key: Counter[str] = field(default_factory=Counter)

    def by_key(self) -> dict[str, Version]:
        """Return the visible row of each key."""
        found = {key: live_homes(versions) for key, versions in self.versions.items()}
        return {key: homes[0] for key, homes in found.items() if homes}

    def live(self) -> list[Version]:
        """Return the rows of all live homes, also those that a newer home of their key hides."""
        return [home for versions in self.versions.values() for home in live_homes(versions)]

    def rows(self) -> list[Row]:
        """Return all visible rows, parsed."""
        texts = [str(version.row) for version in self.by_key().values()]
        return [json.loads(text) for text in (*texts, *self.without_key.elements())]


class Applier:
    """Applies the row changes of a log whose statements are known."""

    def __init__(self, statements: Statements) -> None:
        self._statements = statements
        self.tables: dict[tuple[str, str], AppliedTable] = {}

    def apply(self, changes: Iterable[Change]) -> None:
        """Apply row changes, in any order; each change once. CannotApply: see `versions_of`."""
        for change in changes:
            database, table = str(change["database"]), str(change["table"])
            into = self.tables.setdefault((database, table), AppliedTable())
            if change["key"] is None:
                self._apply_without_key(change, into)
                continue
            for key, version in versions_of(change):
                if not self._statements.is_removed(database, table, version):
                    add_version(into.versions.setdefault(key, []), version)

    def _apply_without_key(self, change: Change, into: AppliedTable) -> None:
        present = of_present_rows(change)
        if present is None:
            return
        change = present
        check_whole(change)
        database, table = str(change["database"]), str(change["table"])
        for image, count in (("before", -1), ("after", 1)):
            text = change[image]
            if text is None:
                continue
            version = _version(change, _home(change, image), str(text))
            if not self._statements.is_removed(database, table, version):
                into.without_key[str(text)] += count

    def finish(self) -> dict[tuple[str, str], AppliedTable]:
        """Return the tables. CannotApply if a statement changed one in a way that is not logged."""
        self._statements.check(self.tables.keys())
        return self.tables
