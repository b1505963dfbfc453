"""Where the Delta tables of a target lie, and what their commits are marked with. Pure.

A table's visible rows, one per primary key, are in `<target>/<database>/<table>`. The other
versions of keys (live rows that a newer home hides, tombstones) are in the table of the same name
below `_shardstream`, and the history of a table is below `_shardstream_history`.
"""

from dataclasses import dataclass
from urllib.parse import quote, unquote

FRONTIERS = "_shardstream_frontiers"
HIDDEN = "_shardstream"
HISTORY = "_shardstream_history"
FRONTIER_KEY = "shardstream.frontier_us"
POSITION_KEY = "shardstream.position"
BATCH_KEY = "shardstream.batch_id"
_SHARD_MARK = "shardstream.seq."


@dataclass(frozen=True, slots=True, order=True)
class TablePlace:
    """The place of one table of the database in a target (a folder or URL without final slash)."""

    target: str
    database: str
    table: str

    @property
    def name(self) -> str:
        """The place of the visible rows below the target."""
        return f"{_folder(self.database)}/{_folder(self.table)}"

    @property
    def visible(self) -> str:
        """The table that readers see."""
        return f"{self.target}/{self.name}"

    @property
    def hidden(self) -> str:
        """The table of hidden rows and tombstones."""
        return f"{self.target}/{self.hidden_name}"

    @property
    def hidden_name(self) -> str:
        """The place of the table of hidden rows below the target."""
        return f"{HIDDEN}/{self.name}"

    @property
    def history(self) -> str:
        """The table of all versions of rows, if a history is kept."""
        return f"{self.target}/{self.history_name}"

    @property
    def history_name(self) -> str:
        """The place of the history below the target."""
        return f"{HISTORY}/{self.name}"


def place_of(target: str, name: str) -> TablePlace:
    """Return the place of a table by its name below the target."""
    database, _, table = name.partition("/")
    return TablePlace(target, _named(database), _named(table))


def _folder(name: str) -> str:
    """Return a folder for any name, percent-encoded with `@`: delta-rs decodes `%25` in paths."""
    encoded = quote(name, safe=" ").replace("~", "%7E")
    if not name.strip("."):
        encoded = encoded.replace(".", "%2E")
    if name.startswith(HIDDEN):
        encoded = f"%5F{encoded[1:]}"
    return encoded.replace("%", "@")


def _named(folder: str) -> str:
    return unquote(folder.replace("@", "%"))


def query_mark(query: str) -> str:
    """Return the name of the mark that holds a query's last batch."""
    return f"shardstream.query.{query}"


def shard_of_mark(mark: str) -> str | None:
    """Return the shard whose mark it is, None for another mark."""
    shard = mark.removeprefix(_SHARD_MARK)
    return None if shard == mark else shard


def shard_mark(shard: str) -> str:
    """Return the name of the mark that holds the last seq of a shard in the table."""
    return f"{_SHARD_MARK}{shard}"
