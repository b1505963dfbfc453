"""Why a table's copy stops, or a chunk is read again; both are caught where tables are kept."""

from event_token.errors import Retry, UsageError
from producers.filters.rules import FilterSettings


class CannotCopy(UsageError):  # noqa: N818 - named by what it means
    """Raised when a table cannot be copied, or not any further; its copy stops by name."""


def refuse_filtered(filters: FilterSettings, database: str, table: str) -> None:
    """CannotCopy where filter rules speak of the table: its rows would be copied past them."""
    if not filters.includes(database, table) or filters.rule_for(database, table) is not None:
        raise CannotCopy(
            f"table {database}.{table} has a filter rule or is left out by one, and copies do not "
            f"go by filter rules: take the rule away, or do not copy the table"
        )


class ChunkSpoiled(Retry):
    """Raised when a chunk cannot be used and is read again."""


class ChunkHeld(ChunkSpoiled):
    """Raised when the server should not be asked for a chunk now."""


class ChunkTooLarge(ChunkSpoiled):
    """Raised when a chunk has more bytes than may be held; `rows` of it came first."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        super().__init__(f"a chunk has more bytes than may be held after {rows} rows")
