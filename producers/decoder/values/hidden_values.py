"""MariaDB's UUID, INET4 and INET6: BINARY in a binlog, text in the log, as a plain SELECT shows it.

The bytes are in the order of the text, whatever the version of a UUID: the server turns its own
order of storage back before it writes them to the binlog.
"""

from typing import Final, Protocol

from librt.strings import BytesWriter
from mypy_extensions import i64

from producers.decoder.tables import plan as ops
from producers.decoder.tables.plan import ColumnPlan, TablePlan
from producers.decoder.values.wire import take, write_string

# Bytes of a value, by the server's name of the type.
HIDDEN_BYTES: Final[dict[str, int]] = {"uuid": 16, "inet4": 4, "inet6": 16}
HIDDEN_OPS: Final[dict[str, int]] = {"uuid": ops.UUID, "inet4": ops.INET4, "inet6": ops.INET6}

_WORDS: Final = 8
# Zeros in front of an IPv4 address that stands in an IPv6 one: all, or all but an ffff.
_COMPATIBLE_WORDS: Final = 6
_MAPPED_WORDS: Final = 5


class HiddenTypes(Protocol):
    """What is said of columns whose type a binlog does not show."""

    def type_of(self, place: str) -> str:
        """What `database.table.column` is declared as: a type, "bytes", or "" for nothing."""

    def check(self, database: str, table: str, columns: list[str], *, is_new: bool) -> None:
        """Columns of a table version may be of such types; HiddenType where they are not as said.

        `is_new`: rows of that version are about to be read for the first time; else a statement
        may have changed the table.
        """


def may_be_hidden(plan: TablePlan) -> list[str]:
    """The columns of a table version that may be of such a type, or are declared so."""
    return [
        column.name
        for column in plan.columns
        if column.op >= ops.UUID
        or (column.op == ops.FIXED_BINARY and column.length in HIDDEN_BYTES.values())
    ]


def write_hidden(out: BytesWriter, column: ColumnPlan, buf: bytes, pos: i64, size: i64) -> None:
    """Write the text of `size` bytes and the zeros behind them that the server left out."""
    op = column.op
    length = column.length
    if size > length:
        raise ValueError(f"{size} bytes in a type of {length}")
    raw = take(buf, pos, size)
    if size < length:
        raw += b"\0" * (length - size)
    write_string(out, hidden_text(op, raw).encode("ascii"))


def hidden_text(op: i64, raw: bytes) -> str:
    """A whole value as the server prints it."""
    if op == ops.UUID:
        digits = raw.hex()
        return "-".join([digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]])
    if op == ops.INET4:
        return ".".join([str(byte) for byte in raw])
    words = [(raw[2 * i] << 8) | raw[2 * i + 1] for i in range(_WORDS)]
    begin, count = _longest_zeros(words)
    if begin == 0 and (
        count == _COMPATIBLE_WORDS or (count == _MAPPED_WORDS and words[count] == 0xFFFF)
    ):
        front = "::" if count == _COMPATIBLE_WORDS else "::ffff:"
        return front + ".".join([str(byte) for byte in raw[12:]])
    texts = [f"{word:x}" for word in words]
    if count == 0:
        return ":".join(texts)
    return f"{':'.join(texts[:begin])}::{':'.join(texts[begin + count :])}"


def _longest_zeros(words: list[int]) -> tuple[int, int]:
    """Where the first of the longest runs of zeros begins, and how long it is; one will do."""
    best_begin = 0
    best_count = 0
    count = 0
    for i, word in enumerate(words):
        count = count + 1 if word == 0 else 0
        if count > best_count:
            best_begin, best_count = i + 1 - count, count
    return best_begin, best_count
