"""Changes of a target's rows. Pure, typed for mypyc, and correct uncompiled too.

Written out, as the constructor of a dataclass costs ten times as much, once for each row.
"""

from topics.records.vevent import Row


class _RowChange:  # noqa: PLW1641 - rows have no hash
    """A change of one row; two of one kind are equal if their fields are."""

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
