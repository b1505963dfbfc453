"""Records that do not fit into one message: cut into parts, and joined again.

A part is a message whose header PART_HEADER says which part of how many it is. Its value is a byte
1, which no record begins with, and a piece of the record compressed by zstd. The parts of a record
have consecutive offsets, of which the last is the record's own.
"""

import json
import sys
import zlib
from typing import Final, NamedTuple, TypeAlias

from confluent_kafka import Message

from event_token.errors import UsageError
from topics.errors import CorruptRecord, LogGap, LogRepeat
from topics.kafka.client import RECORD_BYTES_OPTION
from topics.records.cursor import Cursor

if sys.version_info >= (3, 14):
    from compression.zstd import ZstdDecompressor, ZstdError, compress
else:
    from backports.zstd import ZstdDecompressor, ZstdError, compress

PART_HEADER: Final = "shardstream.part"
_PART: Final = b"\x01"
# A record's seqs then do not fit the number of its messages, so readers need not look at each one.
_PARTS_MIN: Final = 2
# A batch of one message has 61 bytes and its record some 40 beside key, value and headers; the
# header of a part has up to 110.
MESSAGE_OVERHEAD_BYTES: Final = 512

Headers: TypeAlias = list[tuple[str, bytes]]


class RecordBeyondLimit(UsageError):  # noqa: N818 - named by what is wrong
    """Raised on a record in parts that is larger than a reader may take."""


class Part(NamedTuple):
    """Which part of a record a message is: `number` of `parts`, from 1.

    `size`: bytes of the record. `crc`: its CRC-32 (as zlib's).
    """

    number: int
    parts: int
    size: int
    crc: int


def cut_record(value: bytes, key_bytes: int, message_bytes_max: int) -> list[tuple[bytes, Headers]]:
    """Return the values and headers of a record's parts, in order; at least two.

    Each fits with a key of `key_bytes` into a message of `message_bytes_max`.
    """
    room = message_bytes_max - MESSAGE_OVERHEAD_BYTES - key_bytes - len(_PART)
    if room < 1:
        raise UsageError(
            f"a key of {key_bytes} bytes leaves no room for a part of its record in a message of "
            f"{message_bytes_max} bytes: raise max.message.bytes of the topic"
        )
    packed = compress(value)
    count = max(_PARTS_MIN, -(-len(packed) // room))
    size = -(-len(packed) // count)
    whole = {"parts": count, "bytes": len(value), "crc": zlib.crc32(value)}
    found: list[tuple[bytes, Headers]] = []
    for number in range(1, count + 1):
        header = json.dumps({"part": number, **whole}).encode()
        piece = packed[(number - 1) * size : number * size]
        found.append((_PART + piece, [(PART_HEADER, header)]))
    return found


def part_of(headers: object, where: str) -> Part | None:
    """Return which part a message with these headers is, None for a whole record.

    CorruptRecord, naming `where`, when its header is not one of a part.
    """
    if not isinstance(headers, (list, tuple)):
        return None
    text = next((value for name, value in headers if name == PART_HEADER), None)
    if text is None:
        return None
    try:
        fields = json.loads(text)
        part = Part(*(int(fields[name]) for name in ("part", "parts", "bytes", "crc")))
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptRecord(f"{where}: its header {PART_HEADER} is damaged: {error}") from error
    if not (1 <= part.number <= part.parts and part.size >= 0):
        raise CorruptRecord(f"{where}: its header {PART_HEADER} is damaged: {part}")
    return part


class PartJoiner:
    """Joins the parts of a log's records, one record after the other.

    LogGap or LogRepeat (Halt) when a part is missing or comes again, CorruptRecord (Halt) when one
    is damaged, RecordBeyondLimit (UsageError) before more than `record_bytes_max` are held.
    """

    def __init__(self, topic: str, record_bytes_max: int) -> None:
        """Begin between two records."""
        self._topic = topic
        self._record_bytes_max = record_bytes_max
        self._reader = ZstdDecompressor()
        self._value = bytearray()
        self._part: Part | None = None
        self._offset = 0

    @property
    def is_open(self) -> bool:
        """Whether parts of a record have been taken, and not all of them."""
        return self._part is not None

    @property
    def last_offset(self) -> int:
        """The offset that the last part of the open record must have."""
        left = 0 if self._part is None else self._part.parts - self._part.number
        return self._offset + left

    def drop(self) -> None:
        """Forget the open record."""
        self._reader, self._value, self._part = ZstdDecompressor(), bytearray(), None

    def check_closed(self, offset: int) -> None:
        """Raise LogGap if a record is open, and something else is at `offset`."""
        if self._part is not None:
            raise LogGap(
                f"{self._topic}, offset {offset}: part {self._part.number + 1} of "
                f"{self._part.parts} of a record must be here, and is not"
            )

    def add(self, part: Part, offset: int, key: bytes | None, value: bytes) -> bytes | None:
        """Take the next part; return the record when it is the last one."""
        self._check_follows(part, offset)
        where = f"{self._topic}, offset {offset}"
        if part.size > self._record_bytes_max:
            raise RecordBeyondLimit(
                f"{where}: a record of table {table_of(key)} has {part.size} bytes, and this "
                f"reader takes at most {self._record_bytes_max}: raise [reader] record_bytes_max "
                f"(of Spark's options kafka.{RECORD_BYTES_OPTION}), and mind the memory"
            )
        if value[:1] != _PART:
            raise CorruptRecord(f"{where}: a part begins with {value[:1].hex() or 'nothing'}")
        self._part, self._offset = part, offset
        damaged = f"{where}: the record in {part.parts} parts that it is of is damaged"
        try:
            # One byte too many shows a record that is larger than its header says.
            room = part.size + 1 - len(self._value)
            self._value += self._reader.decompress(memoryview(value)[1:], room)
        except (ZstdError, EOFError) as error:
            raise CorruptRecord(f"{damaged}: {error}") from error
        if part.number < part.parts:
            return None
        joined, reader = bytes(self._value), self._reader
        self.drop()
        if not reader.eof or reader.unused_data or len(joined) != part.size:
            raise CorruptRecord(f"{damaged}: it does not have the {part.size} bytes of its header")
        if zlib.crc32(joined) != part.crc:
            raise CorruptRecord(f"{damaged}: its CRC-32 is not that of its header")
        return joined

    def _check_follows(self, part: Part, offset: int) -> None:
        before = self._part
        wanted = 1 if before is None else before.number + 1
        is_same = before is None or (before[1:] == part[1:] and offset == self._offset + 1)
        if part.number == wanted and is_same:
            return
        found = f"{self._topic}, offset {offset}: part {part.number} of {part.parts} of a record"
        if before is not None and part == before:
            raise LogRepeat(f"{found} comes again: the log repeats a message")
        of = "" if before is None else f" of {before.parts}"
        raise LogGap(
            f"{found} where part {wanted}{of} must be: parts of a record are missing from the log"
        )


class JoinedMessage:
    """A record that was in parts, as Kafka's client returns one that was not."""

    __slots__ = ("_last", "_value")

    def __init__(self, last: "Message | JoinedMessage", value: bytes) -> None:
        """`last`: the last part."""
        self._last = last
        self._value = value

    def __len__(self) -> int:
        """Return the size of the record, as that of a message is that of its value."""
        return len(self._value)

    def value(self) -> bytes:
        """Return the record."""
        return self._value

    def offset(self) -> int | None:
        """Return the offset of the last part."""
        return self._last.offset()

    def key(self) -> bytes | None:
        """Return the key that all parts have."""
        return self._last.key()

    def timestamp(self) -> tuple[int, int]:
        """Return the kind of the time, and the time in ms."""
        return self._last.timestamp()

    def headers(self) -> None:
        """A record has no headers."""


def table_of(key: bytes | None) -> str:
    """Return the table that a record's key begins with, for messages; "?" if it has none."""
    cursor = Cursor()
    cursor.open(key or b"", 0)
    try:
        return f"{cursor.take_text()}.{cursor.take_text()}"
    except (IndexError, ValueError):
        return "?"
