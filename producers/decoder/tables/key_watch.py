"""What happens to a table in the log while its chunks are read: changed keys and definitions."""

from typing import Final

from mypy_extensions import i64

from topics.records.table_shape import TableShape

# Changed keys remembered per table. A chunk that needs more is read again.
KEYS_MAX: Final = 1_000_000
# Transaction ends remembered, which snapshots may name: seconds of a busy server.
ENDS_MAX: Final = 50_000


class KeyWatch:
    """Notes by seq, written by the decoder and read by the copy. Keys are whole record keys."""

    def __init__(self, database: str, table: str, next_seq: int) -> None:
        """Begin empty, before the record `next_seq`."""
        self.database: str = database
        self.table: str = table
        self.touched: dict[bytes, int] = {}
        # From this seq on every changed key is noted.
        self.complete_from: i64 = next_seq
        self.definition_seq: i64 = -1  # of the last DDL that may concern this table
        self.partial_seq: i64 = -1  # of the last row with an incomplete image
        self.body: bytes = b""  # of the last table map
        self.shape: TableShape | None = None
        self.seen_seq: i64 = -1  # of the last row, which has that shape

    def touch(self, key: bytes, seq: i64) -> None:
        """Note that the record `seq` has that key, before or after the change."""
        if len(self.touched) >= KEYS_MAX:
            self.touched.clear()
            self.complete_from = seq
        self.touched[key] = seq

    def observe_version(self, body: bytes, shape: TableShape) -> None:
        """Note the table version that rows have now."""
        self.body = body
        self.shape = shape

    def forget_before(self, seq: int) -> None:
        """Drop what was noted below `seq`, which no chunk needs any more."""
        self.touched = {key: at for key, at in self.touched.items() if at >= seq}
        self.complete_from = max(self.complete_from, i64(seq))

    def note_statement(self, statement: str, seq: i64) -> None:
        """Note a DDL that names the table, or a whole database."""
        lower = statement.lower()
        if may_change(self.table, lower):
            self.definition_seq = seq


def may_change(table: str, lower_statement: str) -> bool:
    """Tell whether a statement, in lower case, may name the table or its whole database."""
    return (
        is_named(table, lower_statement)
        or "database" in lower_statement
        or "schema" in lower_statement
    )


def is_named(table: str, lower_statement: str) -> bool:
    """Tell whether a statement, in lower case, may name the table."""
    name = table.lower()
    return name in lower_statement or name.replace("`", "``") in lower_statement


class TransactionEnds:
    """Where transactions end in the binlog, which snapshots name, and the seq that follows each."""

    def __init__(self) -> None:
        """Begin empty; nothing is noted while `is_on` is False."""
        self.is_on: bool = False
        self._next_seqs: dict[tuple[str, int], int] = {}
        self._order: list[tuple[str, int]] = []

    def note(self, file: str, pos: i64, next_seq: i64) -> None:
        """Note that a transaction ended there."""
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
        """Return the seq after the transaction that ends exactly there, -1 for none."""
        return self._next_seqs.get((file, pos), -1)

    def clear(self) -> None:
        """Forget everything, and note nothing until `is_on` is set again."""
        self.is_on = False
        self._next_seqs.clear()
        self._order = []

    def oldest_seq(self) -> int:
        """Return the least seq that `next_seq` can return, -1 for none."""
        return self._next_seqs[self._order[0]] if self._order else -1
