"""Row images: how the columns of one table version are decoded. Typed for mypyc.

An image on the wire has all columns of its version as nullable values. A bit map says which of
them the server logged: MINIMAL images leave columns out, which is not the same as NULL.
"""

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64, u8

from topics.arrow.columns.arrow_values import ValueReader
from topics.arrow.columns.builders import ColumnBuilder, StructBuilder, TextBuilder
from topics.arrow.columns.json_values import JsonValue, write_json_string
from topics.errors import HiddenValue
from topics.records.cursor import Cursor
from topics.records.table_shape import UNSIGNED_LONG_BYTES

# What a row end says about a row image.
NO_IMAGE: Final = 0
HISTORY: Final = 1
PRESENT: Final = 2
# The row end of present rows: the end of TIMESTAMP since MariaDB 11.5 (2106-02-07 06:28:15.999999
# UTC) and before (2038-01-19 03:14:07.999999), and the greatest BIGINT UNSIGNED.
LAST_US: Final = 2**32 * 1_000_000 - 1
LAST_US_OLD: Final = 2**31 * 1_000_000 - 1
LAST_TRANSACTION: Final = b"\0" + b"\xff" * (UNSIGNED_LONG_BYTES - 1)

_QUOTE: Final = 0x22
_COMMA: Final = 0x2C
_OPEN_LIST: Final = 0x5B
_CLOSE_LIST: Final = 0x5D
_OPEN_OBJECT: Final = 0x7B
_CLOSE_OBJECT: Final = 0x7D


def whole_image(count: int) -> bytes:
    """Return the bit map of an image that has all of `count` columns."""
    whole = bytearray((count + 7) // 8)
    for column in range(count):
        whole[column >> 3] |= 1 << (column & 7)
    return bytes(whole)


def has_column(bits: bytes, column: i64) -> bool:
    """Return whether a column is in the bit map."""
    at = column >> 3
    if at >= len(bits):
        return False
    byte: i64 = bits[at]
    return (byte >> (column & 7)) & 1 == 1


class Image:
    """Decodes one image of a record."""

    def read(self, cursor: Cursor, bits: bytes, texts: dict[int, str]) -> None:
        """Read an image whose columns are `bits`; `texts`: invalid dates by column."""
        raise NotImplementedError

    def null(self) -> None:
        """Handle a record without this image."""
        raise NotImplementedError


class SkippedImage(Image):
    """Skips an image that was not requested."""

    def __init__(self, readers: list[ValueReader]) -> None:
        """Take one skipper per column."""
        self.readers: list[ValueReader] = readers

    def read(self, cursor: Cursor, bits: bytes, texts: dict[int, str]) -> None:  # noqa: ARG002 - the signature of Image
        """Skip the image."""
        for reader in self.readers:
            if cursor.take_present():
                reader.take(cursor)

    def null(self) -> None:
        """Do nothing for a record without the image."""


class NullCheck:
    """Checks that a query can distinguish the nulls of a struct that are not NULL on the server."""

    def __init__(
        self, names: list[str], is_read: list[bool], *, tells_absent: bool, tells_dates: bool
    ) -> None:
        """`names` and `is_read` per column; `tells_*`: the query has the column that says so."""
        self.names: list[str] = names
        self.is_read: list[bool] = is_read
        self.tells_absent: bool = tells_absent
        self.tells_dates: bool = tells_dates
        self.whole: bytes = whole_image(len(names))

    def check(self, bits: bytes, texts: dict[int, str]) -> None:
        """Raise HiddenValue if a column that is read is absent or invalid, and nothing says so."""
        for column, name in enumerate(self.names):
            if not self.is_read[column]:
                continue
            if not self.tells_absent and not has_column(bits, column):
                raise HiddenValue(
                    f"column '{name}' is not in the row image (binlog_row_image is not FULL), and "
                    f"NULL would hide that: add absent to option columns"
                )
            if not self.tells_dates and column in texts:
                raise HiddenValue(
                    f"column '{name}' has the invalid date {texts[column]}, and NULL would hide "
                    f"that: add invalid_dates to option columns"
                )


class TypedImage(Image):
    """Decodes an image into a struct of Arrow columns."""

    def __init__(
        self,
        readers: list[ValueReader],
        missing: list[ColumnBuilder],
        into: StructBuilder,
        nulls: NullCheck,
    ) -> None:
        """Take one reader per column of the version; `missing`: the struct's other columns."""
        self.nulls: NullCheck = nulls
        self.readers: list[ValueReader] = readers
        self.missing: list[ColumnBuilder] = missing
        self.into: StructBuilder = into

    def read(self, cursor: Cursor, bits: bytes, texts: dict[int, str]) -> None:
        """Append the image; absent columns and invalid dates become null, or raise HiddenValue."""
        nulls = self.nulls
        if texts or bits != nulls.whole:
            nulls.check(bits, texts)
        for reader in self.readers:
            if cursor.take_present():
                reader.take(cursor)
            else:
                reader.null()
        for column in self.missing:
            column.add_null()
        self.into.count_value()

    def null(self) -> None:
        """Append a null image."""
        self.into.add_null()


class JsonImage(Image):
    """Decodes an image into a JSON object."""

    def __init__(self, names: list[bytes], values: list[JsonValue], into: TextBuilder) -> None:
        """Take `"name":` and the value writer of each column."""
        self.names: list[bytes] = names
        self.values: list[JsonValue] = values
        self.into: TextBuilder = into

    def read(self, cursor: Cursor, bits: bytes, texts: dict[int, str]) -> None:
        """Append the image; absent columns are left out, invalid dates are their text."""
        out = self.into.values
        out.append(u8(_OPEN_OBJECT))
        is_first = True
        column: i64 = 0
        for value in self.values:
            present = cursor.take_present()
            if present or has_column(bits, column):
                if not is_first:
                    out.append(u8(_COMMA))
                is_first = False
                out.write(self.names[column])
                if present:
                    value.write(cursor, out)
                else:
                    _write_absent_value(out, texts, int(column))
            column += 1  # noqa: SIM113 - enumerate() would not count in native integers
        out.append(u8(_CLOSE_OBJECT))
        self.into.end_value()

    def null(self) -> None:
        """Append a null image."""
        self.into.add_null()


def _write_absent_value(out: BytesWriter, texts: dict[int, str], column: int) -> None:
    if column in texts:
        encoded = texts[column].encode("utf-8")
        write_json_string(out, encoded, 0, len(encoded))
    else:
        out.write(b"null")


class KeyColumns:
    """Extracts the primary key of one table version as a JSON array in key order."""

    def __init__(
        self, skippers: list[ValueReader], columns: list[int], values: list[JsonValue]
    ) -> None:
        """Take one skipper per column of the version, and the key's column indexes and writers."""
        # Columns after the last key column need not be read.
        self.skippers: list[ValueReader] = skippers[: max(columns) + 1]
        self.columns: list[int] = columns
        self.values: list[JsonValue] = values
        self.cursor: Cursor = Cursor()
        self.places: list[int] = [-1] * len(skippers)

    def find(self, record: bytes, at: i64) -> None:
        """Locate the column values of the image that begins at byte `at` of a record."""
        cursor = self.cursor
        cursor.open(record, at)
        column: i64 = 0
        for skipper in self.skippers:
            if cursor.take_present():
                self.places[column] = int(cursor.at)
                skipper.take(cursor)
            else:
                self.places[column] = -1
            column += 1  # noqa: SIM113 - enumerate() would not count in native integers

    def of_image(self, record: bytes, at: i64) -> bytes:
        """Return the key of the image at byte `at`; empty if one of its columns is absent."""
        if at < 0:
            return b""
        self.find(record, at)
        out = BytesWriter()
        out.append(u8(_OPEN_LIST))
        is_first = True
        for i, column in enumerate(self.columns):
            place = self.places[column]
            if place < 0:
                return b""
            if not is_first:
                out.append(u8(_COMMA))
            is_first = False
            self.cursor.at = place
            self.values[i].write(self.cursor, out)
        out.append(u8(_CLOSE_LIST))
        return out.getvalue()


class RowEndColumn:
    """Distinguishes the present rows of a system-versioned table from its history."""

    def __init__(self, skippers: list[ValueReader], column: int, *, is_counted: bool) -> None:
        """Take one skipper per column of the version.

        `column`: the one that ends a version. `is_counted`: by transactions, not by time.
        """
        self.skippers: list[ValueReader] = skippers[:column]
        self.is_counted: bool = is_counted
        self.cursor: Cursor = Cursor()

    def kind_of(self, record: bytes, at: i64, otherwise: i64) -> i64:
        """Return PRESENT or HISTORY for the image at byte `at` of a record, NO_IMAGE if `at` < 0.

        `otherwise`: for an image that lacks the column, because an UPDATE did not change it.
        ValueError if that is NO_IMAGE.
        """
        if at < 0:
            return NO_IMAGE
        cursor = self.cursor
        cursor.open(record, at)
        for skipper in self.skippers:
            if cursor.take_present():
                skipper.take(cursor)
        if not cursor.take_present():
            if otherwise == NO_IMAGE:
                raise ValueError("it lacks the column that ends the versions of its row")
            return otherwise
        if self.is_counted:
            begin = cursor.at
            is_last = record[begin : begin + UNSIGNED_LONG_BYTES] == LAST_TRANSACTION
        else:
            end_us: i64 = cursor.take_long()
            is_last = end_us in (LAST_US, LAST_US_OLD)
        return PRESENT if is_last else HISTORY
