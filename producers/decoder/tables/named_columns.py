"""The columns of a table as the catalog names them, compared with a table map that has no names."""

from producers.decoder.tables.column_types import ENUM, SET, ColumnType


class NamedColumns:
    """All columns of a table, each as a full table map would describe it, and its key."""

    def __init__(self, columns: list[ColumnType], key: list[int]) -> None:
        """`key`: the columns of the primary key, or of the one that the server takes for it."""
        self.columns: list[ColumnType] = columns
        self.key: list[int] = key


def difference(columns: list[ColumnType], named: list[ColumnType]) -> str:
    """Return in what the columns of a table map are not those that are named; "" if in nothing."""
    if len(columns) != len(named):
        return f"its rows have {len(columns)} columns, and the catalog shows {len(named)}"
    for column, there in zip(columns, named, strict=True):
        what, one, other = _first_difference(column, there)
        if what:
            return (
                f"column {column.index + 1} has another {what} in its rows ({one}) than "
                f"{there.name!r} in the catalog ({other})"
            )
    return ""


def _first_difference(column: ColumnType, named: ColumnType) -> tuple[str, int, int]:
    """Return what differs, and both values; "" for nothing."""
    pairs = [
        ("type", column.type_code, named.type_code),
        ("NULL", int(column.nullable), int(named.nullable)),
        ("size", column.meta_1, named.meta_1),
        ("geometry", column.geometry, named.geometry),
    ]
    # MINIMAL metadata has no collation of labels, and their type stands in place of a size.
    if column.type_code not in (ENUM, SET):
        pairs.append(("size", column.meta_0, named.meta_0))
        pairs.append(("collation", column.collation, named.collation))
    # A YEAR may have one, by the server's version.
    if column.is_numeric():
        pairs.append(("sign", int(column.unsigned), int(named.unsigned)))
    for what, one, other in pairs:
        if one != other:
            return what, one, other
    return "", 0, 0


def take_names(column: ColumnType, named: ColumnType) -> None:
    """Give a column of a table map what it lacks."""
    column.name = named.name
    column.dimension = named.dimension
    if column.type_code in (ENUM, SET):
        column.labels = named.labels
        column.charset = named.charset
        column.collation = named.collation
