"""Reads Avro values from the bytes of a record. Typed for mypyc, and correct uncompiled too.

Reading beyond the record raises IndexError or ValueError; the caller adds the place.
"""

from typing import Final

from librt.strings import read_i64_be
from mypy_extensions import i64

# A 64-bit number takes at most ten bytes of seven bits.
VARINT_SHIFT_MAX: Final = 63
# Clears the sign that an arithmetic shift of a native 64-bit integer extends; has no effect on the
# unbounded integers of uncompiled code.
POSITIVE_MASK: Final = 0x7FFFFFFFFFFFFFFF


class Cursor:
    """A position in the bytes of one record."""

    def __init__(self) -> None:
        """Begin without a record."""
        self.record: bytes = b""
        self.at: i64 = 0
        self.end: i64 = 0

    def open(self, record: bytes, at: i64) -> None:
        """Move to byte `at` of a record."""
        self.record = record
        self.at = at
        self.end = len(record)

    def close(self) -> None:
        """Release the record, which may be large."""
        self.open(b"", 0)

    def check_end(self) -> None:
        """ValueError unless everything has been read."""
        if self.at != self.end:
            raise ValueError(f"{self.end - self.at} bytes are left after its last field")

    def take_long(self) -> i64:
        """Read an int or a long: zigzag, seven bits per byte, lowest first."""
        record = self.record
        at = self.at
        byte: i64 = record[at]
        at += 1
        value: i64 = byte & 0x7F
        shift: i64 = 7
        while byte & 0x80:
            if shift > VARINT_SHIFT_MAX:
                raise ValueError("a number does not end")
            byte = record[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
        self.at = at
        return ((value >> 1) & POSITIVE_MASK) ^ -(value & 1)

    def take_byte(self) -> i64:
        """Read one byte."""
        at = self.at
        byte: i64 = self.record[at]
        self.at = at + 1
        return byte

    def take_present(self) -> bool:
        """Read the branch of a ["null", T] union: whether a value follows."""
        byte = self.take_byte()
        if byte == 2:
            return True
        if byte != 0:
            raise ValueError(f"{byte} is not a branch of a nullable value")
        return False

    def take_flag(self) -> bool:
        """Read a boolean."""
        byte = self.take_byte()
        if byte > 1:
            raise ValueError(f"{byte} is not a boolean")
        return byte == 1

    def take_size(self) -> i64:
        """Read the length of a string, bytes or block, which must end within the record."""
        size = self.take_long()
        if size < 0 or size > self.end - self.at:
            raise ValueError(f"a value of {size} bytes does not fit into the record")
        return size

    def take_bytes(self) -> bytes:
        """Read a string or bytes, as bytes."""
        size = self.take_size()
        at = self.at
        self.at = at + size
        return self.record[at : at + size]

    def take_text(self) -> str:
        """Read a string; UnicodeDecodeError (a ValueError) unless it is UTF-8."""
        return self.take_bytes().decode("utf-8")

    def skip_bytes(self) -> None:
        """Skip a string or bytes."""
        size = self.take_size()
        self.at += size

    def skip(self, size: i64) -> None:
        """Skip `size` bytes."""
        if size > self.end - self.at:
            raise ValueError(f"a value of {size} bytes does not fit into the record")
        self.at += size

    def take_block_count(self) -> i64:
        """Read the count at the start of an array block; 0 ends the array."""
        count = self.take_long()
        if count < 0:
            self.take_long()  # the block's size in bytes, for readers that skip it
            return -count
        return count

    def take_big_endian(self, size: i64) -> i64:
        """Read a big-endian two's complement number of at most eight bytes."""
        at = self.at
        if size > self.end - at:
            raise ValueError(f"a number of {size} bytes does not fit into the record")
        self.at = at + size
        if size == 8:
            return read_i64_be(self.record, at)
        value: i64 = 0
        if size > 0 and self.record[at] >= 0x80:
            value = -1
        end = at + size
        while at < end:
            byte: i64 = self.record[at]
            value = (value << 8) | byte
            at += 1
        return value
