"""Why a table's copy stops, or one of its chunks is read again; the copier catches both."""

from event_token.errors import Rebuild, Retry, UsageError
from producers.filters.rules import FilterSettings


class CannotCopy(UsageError):  # noqa: N818 - named by what it means
    """Raised when a table cannot be copied, or not any further; only its own copy fails."""


class RowNotCopied(Rebuild):
    """Raised when a copied row cannot be decoded: the session ends, and with the next its copy.

    Rows before it may have been produced already; only a new session aborts them.
    """

    def __init__(self, copy_id: str, text: str) -> None:
        self.copy_id = copy_id
        super().__init__(text)


def refuse_left_out(filters: FilterSettings, database: str, table: str) -> None:
    """CannotCopy if the filter rules exclude the table: none of its rows may reach the log."""
    if not filters.includes(database, table):
        raise CannotCopy(
            f"table {database}.{table} is excluded by the keyspace's filter rules (include, "
            "exclude): change the rules, or do not copy it"
        )


class ChunkSpoiled(Retry):
    """Raised when a chunk cannot be used and is read again."""


class ChunkHeld(ChunkSpoiled):
    """Raised when the server is too busy for a chunk now."""


class ChunkTooLarge(ChunkSpoiled):
    """Raised when a chunk exceeds the memory limit after `rows` rows."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        super().__init__(f"a chunk exceeds the memory limit after {rows} rows")
