"""The envelope columns that a query asked for, the texts in them, and what filters records by them.

A key range follows the rule of `topics.reading.row_filters`: an update that crosses the border
becomes a DELETE or an INSERT, and an image without its keyspace id stops the reader. Behind a hop
without marks, `ReadBeforeHop` is applied once per token, and never to changes that were made here
after the reshard. Typed for mypyc.
"""

from binascii import crc32
from collections.abc import Callable
from typing import Final

from librt.strings import BytesWriter, read_i64_be
from mypy_extensions import i64, u8
from xxhash import xxh64_digest

from topics.arrow.columns.builders import (
    BooleanBuilder,
    ColumnBuilder,
    Int64Builder,
    TextBuilder,
)
from topics.arrow.columns.images import has_column
from topics.arrow.columns.json_values import write_json_string
from topics.errors import RowImageMissing
from topics.records.envelope import EnvelopeReader
from topics.records.vevent import TokenText


class EnvelopeColumns:
    """One builder per envelope column; None for columns that were not requested."""

    def __init__(self) -> None:
        """Start without requested columns."""
        self.type: TextBuilder | None = None
        self.database: TextBuilder | None = None
        self.table: TextBuilder | None = None
        self.op: TextBuilder | None = None
        self.statement: TextBuilder | None = None
        self.key: TextBuilder | None = None
        self.old_key: TextBuilder | None = None
        self.absent: TextBuilder | None = None
        self.invalid_dates: TextBuilder | None = None
        self.shard: TextBuilder | None = None
        self.seq: Int64Builder | None = None
        self.offset: Int64Builder | None = None
        self.timestamp_us: Int64Builder | None = None
        self.commit_us: Int64Builder | None = None
        self.gtid: TextBuilder | None = None
        self.token: TextBuilder | None = None
        self.row_index: Int64Builder | None = None
        self.last: BooleanBuilder | None = None
        self.late: BooleanBuilder | None = None
        self.possible_duplicate: BooleanBuilder | None = None
        self.schema_id: Int64Builder | None = None
        self.keyspace_id_before: TextBuilder | None = None
        self.keyspace_id_after: TextBuilder | None = None
        self.present_op: TextBuilder | None = None
        self.record: TextBuilder | None = None
        self.key_hash: Int64Builder | None = None
        self.old_key_hash: Int64Builder | None = None
        # Fields that versions after 1 have added to the envelope, by name.
        self.added: dict[str, ColumnBuilder] = {}

    def has_keys(self) -> bool:
        """Return whether primary keys are needed."""
        return (
            self.key is not None
            or self.old_key is not None
            or self.key_hash is not None
            or self.old_key_hash is not None
        )

    def add_keys(self, key: bytes, old_key: bytes) -> None:
        """Append a row's primary key and the one it had before, as JSON; empty: none."""
        _add_key(self.key, self.key_hash, key)
        _add_key(self.old_key, self.old_key_hash, old_key)


def _add_key(text: TextBuilder | None, number: Int64Builder | None, key: bytes) -> None:
    if text is not None:
        if key:
            text.add(key)
        else:
            text.add_null()
    if number is not None:
        if key:
            number.add(read_i64_be(xxh64_digest(key), 0))
        else:
            number.add_null()


_URL_SAFE: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


def _url_safe(sealed: bytes) -> bytes:
    """Return bytes in URL-safe base64 without padding, as `event_token.opaque.seal` does."""
    out = BytesWriter()
    size: i64 = len(sealed)
    at: i64 = 0
    while at < size:
        left = size - at
        bits: i64 = i64(sealed[at]) << 16
        if left > 1:
            bits |= i64(sealed[at + 1]) << 8
        if left > 2:
            bits |= i64(sealed[at + 2])
        out.append(u8(_URL_SAFE[bits >> 18]))
        out.append(u8(_URL_SAFE[(bits >> 12) & 0x3F]))
        if left > 1:
            out.append(u8(_URL_SAFE[(bits >> 6) & 0x3F]))
        if left > 2:
            out.append(u8(_URL_SAFE[bits & 0x3F]))
        at += 3
    return out.getvalue()


def opaque_token(envelope: EnvelopeReader, token_version: i64) -> bytes:
    """Write the token of an envelope as `event_token.EventToken.to_string` does."""
    out = BytesWriter()
    out.append(u8(token_version))
    _write_token(
        out, envelope.timestamp_us, envelope.shard, envelope.position(), envelope.has_origin
    )
    if envelope.has_origin:
        timestamp_us, shard, position = envelope.origin()
        _write_token(out, timestamp_us, shard, position, False)
    checksum: i64 = crc32(out.getvalue())
    for shift in (24, 16, 8, 0):
        out.append(u8((checksum >> shift) & 0xFF))
    return _url_safe(out.getvalue())


def _write_token(
    out: BytesWriter, timestamp_us: i64, shard: bytes, position: bytes, has_origin: bool
) -> None:
    """Append a token's fields as `event_token.token.write_token` does."""
    # Only MySQL's positions have colons (`uuid:1-5`); MariaDB's are `0-1-5`.
    flags: i64 = 1 | (2 if has_origin else 0) | (0 if b":" in position else 4)
    out.append(u8(flags))
    _write_unsigned(out, timestamp_us)
    _write_unsigned(out, len(shard))
    out.write(shard)
    _write_unsigned(out, len(position))
    out.write(position)


def _write_unsigned(out: BytesWriter, value: i64) -> None:
    if value < 0:
        raise ValueError(f"{value} in a token is negative")
    while value > 0x7F:
        out.append(u8(0x80 | (value & 0x7F)))
        value = value >> 7
    out.append(u8(value))


def _write_name(out: BytesWriter, name: str) -> None:
    encoded = name.encode("utf-8")
    write_json_string(out, encoded, 0, len(encoded))


def write_texts(out: BytesWriter, names: list[str], texts: dict[int, str]) -> None:
    """Write the texts of invalid dates as a JSON object by column name."""
    out.write(b"{")
    is_first = True
    for column in sorted(texts):
        if not is_first:
            out.write(b",")
        is_first = False
        _write_name(out, names[column])
        out.write(b":")
        _write_name(out, texts[column])
    out.write(b"}")


def write_absent(out: BytesWriter, names: list[str], bits: bytes) -> None:
    """Write the names of columns missing from a bit map as a JSON list; no bits: no image."""
    out.write(b"[")
    is_first = True
    column: i64 = 0
    for name in names:
        if bits and not has_column(bits, column):
            if not is_first:
                out.write(b",")
            is_first = False
            _write_name(out, name)
        column += 1  # noqa: SIM113 - enumerate() would not count in native integers
    out.write(b"]")


# What is seen of a row, as bits.
BEFORE: Final = 1
AFTER: Final = 2


class KeyRangeFilter:
    """Looks at a record's keyspace ids."""

    def __init__(self, contains: Callable[[bytes], bool]) -> None:
        """`contains` returns whether a keyspace id lies in the range."""
        self.contains: Callable[[bytes], bool] = contains

    def seen(self, envelope: EnvelopeReader, whole: bytes) -> i64:
        """Return BEFORE, AFTER, both or 0 for an envelope that has been read to its end.

        `whole` is the bit map of an image with all columns. RowImageMissing, naming the table,
        when an image lacks its keyspace id or columns.
        """
        id_before = envelope.keyspace_id_at(envelope.keyspace_id_before_at)
        id_after = envelope.keyspace_id_at(envelope.keyspace_id_after_at)
        problem = _problem("before", id_before, envelope.columns_before, whole) or _problem(
            "after", id_after, envelope.columns_after, whole
        )
        if problem:
            database = envelope.text_at(envelope.database_at)
            raise RowImageMissing(f"{database}.{envelope.text_at(envelope.table_at)}: {problem}")
        found: i64 = 0
        if id_before is not None and self.contains(id_before):
            found |= BEFORE
        if id_after is not None and self.contains(id_after):
            found |= AFTER
        return found


def _problem(image: str, keyspace_id: bytes | None, bits: bytes, whole: bytes) -> str:
    """Why it is unknown whether the image is inside the range; "" if known, or without image."""
    if not bits:
        return ""
    if bits != whole:
        return (
            f"the {image} image of a row lacks columns; a range that is not made of whole shards "
            "needs full row images: set binlog_row_image=FULL, or read whole shards"
        )
    if keyspace_id is None:
        return (
            f"the {image} image of a row has no keyspace id: the table had no vindex when it was "
            "logged. Give it one in the settings of the keyspace and start after this, or read "
            "whole shards"
        )
    return ""


# What is known of a record.
NEW: Final = 0
READ_BEFORE: Final = 1
DOUBTFUL: Final = 2


class HopFilter:
    """Looks at a record's token."""

    def __init__(
        self, new_from_us: i64, was_read: Callable[[int, TokenText | None], bool | None]
    ) -> None:
        """`was_read` gets a record's time and origin.

        From `new_from_us` on, a record without origin is new.
        """
        self.new_from_us: i64 = new_from_us
        self.was_read: Callable[[int, TokenText | None], bool | None] = was_read
        self._token_number: i64 = 0  # of the token that the verdict is on
        self._verdict: i64 = NEW

    def verdict(self, envelope: EnvelopeReader) -> i64:
        """Return NEW, READ_BEFORE or DOUBTFUL; the envelope's token has been taken."""
        if not envelope.has_origin and envelope.timestamp_us >= self.new_from_us:
            return NEW
        if envelope.token_number != self._token_number:
            was_read = self.was_read(int(envelope.timestamp_us), envelope.token_text().origin)
            self._token_number = envelope.token_number
            self._verdict = DOUBTFUL if was_read is None else READ_BEFORE if was_read else NEW
        return self._verdict
