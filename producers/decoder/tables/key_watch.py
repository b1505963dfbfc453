"""What the log says of a table while chunks of it are read: changed keys and definitions."""

from typing import Final

from mypy_extensions import i64

from topics.records.table_shape import TableShape

# Changed keys remembered for one table; a chunk that needs more is read again.
KEYS_MAX: Final = 1_000_000
# Ends of transactions that a snapshot may still name: seconds of a busy server.
ENDS_MAX: Final = 50_000


class KeyWatch:
    """Notes by seq; the decoder writes them, the copy asks. Keys are whole record keys."""

    def __init__(self, database: str, table: str, next_seq: int) -> None:
        """Begin without a note, before the record `next_seq`."""
        self.database: str = database
        self.table: str = table
        self.touched: dict[bytes, int] = {}
        # From this seq on no key was let go.
        self.complete_from: i64 = next_seq
        self.definition_seq: i64 = -1  # of the last DDL that may be this table's
        self.partial_seq: i64 = -1  # of the last row whose image lacks columns
        self.body: bytes = b""  # of the last table map
        self.shape: TableShape | None = None
        self.seen_seq: i64 = -1  # of the last row, which is of that shape

    def touch(self, key: bytes, seq: i64) -> None:
        """A row of that key is in the record `seq`, before or after the change."""
        if len(self.touched) >= KEYS_MAX:
            self.touched.clear()
            self.complete_from = seq
        self.touched[key] = seq

    def see(self, body: bytes, shape: TableShape) -> None:
        """Rows are of this table version now."""
        self.body = body
        self.shape = shape

    def forget_before(self, seq: int) -> None:
        """No chunk asks any more for what was noted below `seq`."""
        self.touched = {key: at for key, at in self.touched.items() if at >= seq}
        self.complete_from = max(self.complete_from, i64(seq))

    def note_statement(self, statement: str, seq: i64) -> None:
        """Note a DDL that names the table, or a database as a whole."""
        lower = statement.lower()
        if is_named(self.table, lower) or "database" in lower or "schema" in lower:
            self.definition_seq = seq


def is_named(table: str, lower_statement: str) -> bool:
    """Tell whether a statement in lower case may mean the table."""
    name = table.lower()
    return name in lower_statement or name.replace("`", "``") in lower_statement


class TransactionEnds:
    """Where transactions end in the binlog, and the seq that follows each: what snapshots name."""

    def __init__(self) -> None:
        """Begin without an end; nothing is noted while `is_on` is False."""
        self.is_on: bool = False
        self._next_seqs: dict[tuple[str, int], int] = {}
        self._order: list[tuple[str, int]] = []

    def note(self, file: str, pos: i64, next_seq: i64) -> None:
        """A transaction ended there."""
        if not self.is_on:
            return
        place = (file, int(pos))
        self._next_seqs[place] = next_seq
        self._order.append(place)
        if len(self._order) >= 2 * ENDS_MAX:
            for old in self._order[:ENDS_MAX]:
                self._next_seqs.pop(old, None)
            self._order = self._order[ENDS_MAX:]

    def next_seq(self, file: str, pos: int) -> int:
        """The seq that follows the transaction that ends there exactly, -1 for none."""
        return self._next_seqs.get((file, pos), -1)

    def clear(self) -> None:
        """Forget all, and note nothing until it is wanted again."""
        self.is_on = False
        self._next_seqs.clear()
        self._order = []

    def oldest_seq(self) -> int:
        """The least seq that `next_seq` can answer, -1 for none."""
        return self._next_seqs[self._order[0]] if self._order else -1
