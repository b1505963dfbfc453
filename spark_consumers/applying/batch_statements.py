"""The statements of a batch and what they do to tables. Pure."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_consumers.applying.homes import Version
from spark_consumers.applying.shadow_tables import Swap, swap_of
from spark_consumers.applying.statements import (
    ColumnDrop,
    ColumnRename,
    column_drops,
    column_renames,
)
from spark_consumers.applying.tables import STATEMENT_TYPES, Removal, Statements
from spark_consumers.applying.unlogged import Unlogged, to_be_copied, unlogged_by
from spark_consumers.errors import ShapeConflict
from topics.records.accepted_skips import is_accepted

Name = tuple[str, str]  # database, table

_COPY_COMPLETED = "COPY_COMPLETED"
_COLUMNS = (
    *("type", "database", "table", "statement", "gtid", "shard", "seq", "timestamp_us", "token"),
)


@dataclass
class BatchStatements:
    """The DDL, skips and ends of copies in a batch, in merged order."""

    statements: Statements
    renames: list[tuple[str, int, ColumnRename]] = field(default_factory=list)  # (shard, seq, ...)
    swaps: list[tuple[Name, str]] = field(default_factory=list)  # (table, what is wrong)
    copies: dict[Name, list[str]] = field(default_factory=dict)
    drops: list[tuple[ColumnDrop, Version]] = field(default_factory=list)
    unlogged: list[Unlogged] = field(default_factory=list)

    @classmethod
    def of(cls, routed: pa.Table, accept_skip: Collection[str]) -> "BatchStatements":
        """Take what is not a row. CannotApply on a skip that was not accepted."""
        found = cls(Statements(accept_skip))
        wanted = pa.array([*STATEMENT_TYPES, _COPY_COMPLETED])
        records = routed.filter(pc.is_in(routed["type"], value_set=wanted)).select(
            [name for name in _COLUMNS if name in routed.column_names]
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
            self.statements.add(record)
            return
        place = (record["shard"], record["seq"], record["timestamp_us"])
        at = Version(*place, None, None, record.get("token"))
        if not is_accepted(self.statements.accept_skip, str(record.get("gtid")), ""):
            self.unlogged += unlogged_by(record)
        swap = swap_of(record["statement"], record["database"])
        if swap is not None:
            self._add_swap(swap, at, record["statement"])
            return
        self.statements.add(record)
        self._add_renames(record)
        drops = column_drops(record["statement"], record["database"])
        self.drops += [(each, at) for each in drops]

    def _add_swap(self, swap: Swap, at: Version, statement: str) -> None:
        for what in swap.emptied:
            self.statements.removals.setdefault(what.database, []).append(Removal(what, at))
        # A shadow table that a sink follows by name has got other rows.
        place = f"shard {at.shard}, seq {at.seq}: {statement[:200]}"
        self.statements.blocking += [(what, place) for what in swap.shadows]

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
        emptied = {
            removal.what for removals in self.statements.removals.values() for removal in removals
        }
        named = emptied | {rename.table for _, _, rename in self.renames}
        return {(n.database, n.table) for n in named if n.table is not None} | self.copies.keys()

    def check(self, tables: Collection[Name], follows: Callable[[Name], bool]) -> None:
        """Check what statements did to these tables.

        `follows`: whether a sink follows a table, be it that it is not among these yet.

        CannotApply: a change that is not logged. ShapeConflict: columns that exchange their names.
        """
        self.statements.check(tables)
        self.statements.check_received(follows)
        for name, message in self.swaps:
            if name in tables:
                raise ShapeConflict(message)

    def to_be_copied(self) -> list[Unlogged]:
        """Return the statements behind which tables must be copied again, in merged order."""
        removals = self.statements.removals.values()
        emptied = [(each.what, each.at) for of_database in removals for each in of_database]
        return to_be_copied(self.unlogged, emptied)

    def removals_of(self, name: Name) -> tuple[Removal, ...]:
        """Return the statements that emptied a table, in merged order."""
        database, table = name
        found = self.statements.removals.get(database, ())
        return tuple(removal for removal in found if removal.what.table in {None, table})

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
