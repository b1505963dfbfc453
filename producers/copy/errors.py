"""Why a table's copy stops, or a chunk is read again; both are caught where tables are kept."""

from event_token.errors import Retry, UsageError
from producers.filters.rules import FilterSettings


class CannotCopy(UsageError):  # noqa: N818 - named by what it means
    """Raised when a table cannot be copied, or not any further; its copy stops by name."""


def refuse_left_out(filters: FilterSettings, database: str, table: str) -> None:
    """CannotCopy where the filter rules leave the table out: no row of it may reach the log."""
    if not filters.includes(database, table):
        raise CannotCopy(
            f"table {database}.{table} is left out by the keyspace's filter rules (include, "
            f"exclude), so none of its rows reach the log, copied ones neither"
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
