"""Row images: what a plan does with each column of one table version. Typed for mypyc.

An image on the wire has all columns of its version, each a nullable value; a bit map says which
of them the server logged (MINIMAL images leave columns out, which is not NULL).
"""

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64, u8

from spark_consumers.row_columns.arrow_values import ValueReader
from spark_consumers.row_columns.builders import ColumnBuilder, StructBuilder, TextBuilder
from spark_consumers.row_columns.json_values import JsonValue
from spark_consumers.row_columns.text import write_json_string
from topics.records.cursor import Cursor

_QUOTE: Final = 0x22
_COMMA: Final = 0x2C
_OPEN_LIST: Final = 0x5B
_CLOSE_LIST: Final = 0x5D
_OPEN_OBJECT: Final = 0x7B
_CLOSE_OBJECT: Final = 0x7D


def has_column(bits: bytes, column: i64) -> bool:
    """Tell whether the bit map has the column."""
    at = column >> 3
    if at >= len(bits):
        return False
    byte: i64 = bits[at]
    return (byte >> (column & 7)) & 1 == 1


class Image:
    """What is done with one image of a record."""

    def read(self, cursor: Cursor, bits: bytes, texts: dict[int, str]) -> None:
        """Take an image whose columns are `bits`; `texts`: off-calendar texts by column."""
        raise NotImplementedError

    def null(self) -> None:
        """Note that the record has no such image."""
        raise NotImplementedError


class SkippedImage(Image):
    """Nobody asked for this image."""

    def __init__(self, readers: list[ValueReader]) -> None:
        """Take a skipper a column."""
        self.readers: list[ValueReader] = readers

    def read(self, cursor: Cursor, bits: bytes, texts: dict[int, str]) -> None:  # noqa: ARG002 - as above
        """Pass the image."""
        for reader in self.readers:
            if cursor.take_present():
                reader.take(cursor)

    def null(self) -> None:
        """Pass a record without the image."""


class TypedImage(Image):
    """An image into a struct of Arrow columns."""

    def __init__(
        self, readers: list[ValueReader], missing: list[ColumnBuilder], into: StructBuilder
    ) -> None:
        """Take a reader a column of the version; `missing`: the struct's other columns."""
        self.readers: list[ValueReader] = readers
        self.missing: list[ColumnBuilder] = missing
        self.into: StructBuilder = into

    def read(self, cursor: Cursor, bits: bytes, texts: dict[int, str]) -> None:  # noqa: ARG002 - as above
        """Append the image; columns that are absent are null, as off-calendar dates are."""
        for reader in self.readers:
            if cursor.take_present():
                reader.take(cursor)
            else:
                reader.null()
        for column in self.missing:
            column.add_null()
        self.into.count_value()

    def null(self) -> None:
        """Append a row without the image."""
        self.into.add_null()


class JsonImage(Image):
    """An image into one JSON object."""

    def __init__(self, names: list[bytes], values: list[JsonValue], into: TextBuilder) -> None:
        """Take `"name":` and the writer of each column."""
        self.names: list[bytes] = names
        self.values: list[JsonValue] = values
        self.into: TextBuilder = into

    def read(self, cursor: Cursor, bits: bytes, texts: dict[int, str]) -> None:
        """Append the image; absent columns are absent, off-calendar dates their text."""
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
        """Append a row without the image."""
        self.into.add_null()


def _write_absent_value(out: BytesWriter, texts: dict[int, str], column: int) -> None:
    if column in texts:
        encoded = texts[column].encode("utf-8")
        write_json_string(out, encoded, 0, len(encoded))
    else:
        out.write(b"null")


class KeyColumns:
    """The primary key of one table version, as JSON arrays of its values in key order."""

    def __init__(
        self, skippers: list[ValueReader], columns: list[int], values: list[JsonValue]
    ) -> None:
        """Take a skipper a column of the version, and the key's column indexes and writers."""
        # What stands behind the last column of the key is not looked at.
        self.skippers: list[ValueReader] = skippers[: max(columns) + 1]
        self.columns: list[int] = columns
        self.values: list[JsonValue] = values
        self.cursor: Cursor = Cursor()
        self.places: list[int] = [-1] * len(skippers)

    def find(self, record: bytes, at: i64) -> None:
        """Find the columns' values in the image that begins at byte `at` of a record."""
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
        """Return the key in the image at byte `at`; empty where a column of it is absent."""
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
