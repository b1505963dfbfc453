"""The statements of a log, or of a batch, and what they do to tables. Pure."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sinks.rule.homes import Version, removes, version_at
from sinks.rule.statements import (
    ColumnDrop,
    ColumnRename,
    TableName,
    Unlogged,
    column_drops,
    column_renames,
    effect_of,
    swap_of,
    to_be_copied,
    unlogged_by,
)
from topics.errors import CannotApply, ShapeConflict
from topics.records.skip_record import accept_advice, is_accepted

Name = tuple[str, str]  # database, table

STATEMENT_COLUMNS = (
    *("type", "database", "statement", "gtid", "shard", "seq", "timestamp_us", "token"),
)
# The types of the records that `Statements` takes.
STATEMENT_TYPES = ("DDL", "SKIP")
_COPY_COMPLETED = "COPY_COMPLETED"


@dataclass
class Statements:
    """The DDL and the skips of a log, which must be known before its changes are applied.

    `accept_skip`: GTIDs of skipped transactions without which the tables are right, sets of them,
    or `reason:TEXT` for all that were skipped for one reason. `emptied`: tables, or all of a
    database, and where a statement removed their rows, in the order in which they were added.
    """

    accept_skip: Collection[str] = ()
    emptied: list[tuple[TableName, Version]] = field(default_factory=list)
    blocking: list[tuple[TableName, str]] = field(default_factory=list)
    received: list[tuple[TableName, TableName, str]] = field(default_factory=list)

    def add(self, record: Mapping[str, Any]) -> None:
        """Take a DDL or SKIP record. CannotApply on a skip that was not accepted."""
        statement = str(record["statement"])
        if record["type"] == "SKIP":
            self._check_skip(record, statement)
            return
        effect = effect_of(statement, str(record["database"]))
        at = version_at(record)
        self.emptied += [(what, at) for what in effect.emptied]
        place = _place(at, statement)
        self.blocking += [(what, place) for what in effect.changed]
        self.received += [(*names, place) for names in effect.received]

    def _check_skip(self, record: Mapping[str, Any], statement: str) -> None:
        gtid = str(record.get("gtid"))
        if not is_accepted(self.accept_skip, gtid, statement):
            raise CannotApply(
                f"shard {record['shard']}, seq {record['seq']}: an operator skipped "
                f"{gtid}, so rows may be missing or too many: {statement}. If they are "
                f"not, or once a copy has brought them, pass accept_skip=[{gtid!r}], from the "
                f"command line {accept_advice(gtid, statement)}"
            )

    def removals_of(self, name: Name) -> tuple[Version, ...]:
        """Return the places of the statements that emptied a table."""
        database, table = name
        return tuple(
            at
            for what, at in self.emptied
            if what.database == database and what.table in {None, table}
        )

    def is_removed(self, name: Name, version: Version) -> bool:
        """Tell whether a statement removed what a change of a table had left."""
        return any(removes(at, version) for at in self.removals_of(name))

    def check(self, tables: Collection[Name]) -> None:
        """CannotApply if a statement changed one of these tables in a way that is not logged."""
        for what, place in self.blocking:
            if what.table is not None and (what.database, what.table) in tables:
                raise _not_logged(what, place)


def name_of(what: TableName) -> Name:
    """Return database and table, which is empty for all tables of a database."""
    return what.database, what.table or ""


def _place(at: Version, statement: str) -> str:
    return f"shard {at.shard}, seq {at.seq}: {statement[:200]}"


def _not_logged(what: TableName, place: str) -> CannotApply:
    return CannotApply(
        f"{what.database}.{what.table}, {place}: what this statement did to rows is not in the "
        f"log. Start a new target from a copy taken after it, or leave the table out"
    )


@dataclass
class BatchStatements(Statements):
    """The DDL, skips and ends of copies in a batch, in merged order."""

    renames: list[tuple[str, int, ColumnRename]] = field(default_factory=list)  # (shard, seq, ...)
    swaps: list[tuple[Name, str]] = field(default_factory=list)  # (table, what is wrong)
    copies: dict[Name, list[str]] = field(default_factory=dict)
    drops: list[tuple[ColumnDrop, Version]] = field(default_factory=list)
    unlogged: list[Unlogged] = field(default_factory=list)

    @classmethod
    def of(cls, routed: pa.Table, accept_skip: Collection[str]) -> "BatchStatements":
        """Take what is not a row. CannotApply on a skip that was not accepted."""
        found = cls(accept_skip)
        wanted = pa.array([*STATEMENT_TYPES, _COPY_COMPLETED])
        records = routed.filter(pc.is_in(routed["type"], value_set=wanted)).select(
            [name for name in (*STATEMENT_COLUMNS, "table") if name in routed.column_names]
        )
        for record in records.sort_by(
            [("timestamp_us", "ascending"), ("shard", "ascending"), ("seq", "ascending")]
        ).to_pylist():
            if record["type"] == _COPY_COMPLETED:
                name = (record["database"], record["table"])
                found.copies.setdefault(name, []).append(record["shard"])
            else:
                found.add(record)
        return found

    def add(self, record: Mapping[str, Any]) -> None:
        """Take a DDL or SKIP record. CannotApply on a skip that was not accepted."""
        if record["type"] != "DDL":
            super().add(record)
            return
        at = version_at(record)
        if not is_accepted(self.accept_skip, str(record.get("gtid")), ""):
            self.unlogged += unlogged_by(record)
        swap = swap_of(record["statement"], record["database"])
        if swap is not None:
            self.emptied += [(what, at) for what in swap.emptied]
            # A shadow table that a sink follows by name has got other rows.
            place = _place(at, record["statement"])
            self.blocking += [(what, place) for what in swap.shadows]
            return
        super().add(record)
        self._add_renames(record)
        drops = column_drops(record["statement"], record["database"])
        self.drops += [(each, at) for each in drops]

    def _add_renames(self, record: Mapping[str, Any]) -> None:
        shard, statement = record["shard"], record["statement"]
        found = column_renames(statement, record["database"])
        names = [(each.old.lower(), each.new.lower()) for each in found]
        others = [(old, new) for old, new in names if old != new]
        if not {old for old, _ in others}.isdisjoint(new for _, new in others):
            table = found[0].table
            message = (
                f"{table.database}.{table.table}, shard {shard}: a statement gives a column the "
                f"name of another one that it renames, so by name the rows of both cannot be told "
                f"apart: {statement[:200]}. Start a new target from a copy taken after all shards "
                f"were altered"
            )
            self.swaps.append(((table.database, str(table.table)), message))
            return
        self.renames += [(shard, record["seq"], each) for each in found]

    @property
    def tables(self) -> set[Name]:
        """The tables that are named."""
        named = {what for what, _ in self.emptied}
        named |= {rename.table for _, _, rename in self.renames}
        return {(n.database, n.table) for n in named if n.table is not None} | self.copies.keys()

    def check_all(self, tables: Collection[Name], follows: Callable[[Name], bool]) -> None:
        """Check what statements did to these tables.

        `follows`: whether a sink follows a table, be it that it is not among these yet.

        CannotApply: a change that is not logged. ShapeConflict: columns that exchange their names.
        """
        self.check(tables)
        for source, into, place in self.received:
            # The sink may not know the table yet: these rows would be its first ones.
            if follows(name_of(into)) and not follows(name_of(source)):
                raise _not_logged(into, place)
        for name, message in self.swaps:
            if name in tables:
                raise ShapeConflict(message)

    def to_be_copied(self) -> list[Unlogged]:
        """Return the statements behind which tables must be copied again, in merged order."""
        return to_be_copied(self.unlogged, self.emptied)

    def ended_copies_of(self, name: Name) -> tuple[str, ...]:
        """Return the shards whose copy of a table was completed."""
        return tuple(self.copies.get(name, ()))

    def renames_of(self, name: Name) -> tuple[tuple[str, str, str], ...]:
        """Return (shard, old name, new name) of a table's columns, in merged order."""
        return tuple((shard, old, new) for shard, _, old, new in self.placed_renames_of(name))

    def placed_renames_of(self, name: Name) -> tuple[tuple[str, int, str, str], ...]:
        """Return (shard, seq, old name, new name) of a table's columns, in merged order."""
        return tuple(
            (shard, seq, rename.old, rename.new)
            for shard, seq, rename in self.renames
            if (rename.table.database, rename.table.table) == name
        )

    def drops_of(self, name: Name) -> tuple[tuple[str, Version], ...]:
        """Return the columns of a table that were dropped, and where, in merged order."""
        return tuple(
            (drop.name, at)
            for drop, at in self.drops
            if (drop.table.database, drop.table.table) == name
        )
