"""The framing of opaque strings: URL-safe base64 of a version byte, fields and a checksum.

CRC-32 detects every burst error of up to 32 bits, and with it the change of any one character. It
protects against accidents, not against forgery.
"""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import crc32

from event_token.errors import UsageError

# Beyond any token or position of a real keyspace; a longer text is a bug of the caller.
OPAQUE_CHARS_MAX = 64 * 1024 * 1024

_CHECKSUM_BYTES = 4
_URL_SAFE = re.compile(r"[A-Za-z0-9_-]+")
_UNSIGNED_BITS_MAX = 64


class OpaqueError(UsageError):
    """Raised on a broken opaque string; tokens and positions raise their own error from it."""


def seal(version: int, fields: bytes) -> str:
    """Return the version byte and the fields as one URL-safe string."""
    body = bytes([version]) + fields
    framed = body + crc32(body).to_bytes(_CHECKSUM_BYTES)
    text = urlsafe_b64encode(framed).rstrip(b"=").decode("ascii")
    if len(text) > OPAQUE_CHARS_MAX:
        raise OpaqueError(f"{len(text)} characters, over {OPAQUE_CHARS_MAX}")
    return text


def unseal(version: int, text: str) -> bytes:
    """Return the fields of a string made by `seal`; OpaqueError on anything else."""
    body = _unsealed(text)
    if body[0] != version:
        raise OpaqueError(
            f"its version byte is {body[0]}, not {version}: it is of another kind or release"
        )
    return body[1:]


def version_of(text: str) -> int:
    """Return the version byte of a string made by `seal`, which says what it is of."""
    return _unsealed(text)[0]


def _unsealed(text: str) -> bytes:
    if len(text) > OPAQUE_CHARS_MAX:
        raise OpaqueError(f"{len(text)} characters, over {OPAQUE_CHARS_MAX}")
    if _URL_SAFE.fullmatch(text) is None:
        raise OpaqueError("it has characters other than letters, digits, '-' and '_'")
    if len(text) % 4 == 1:
        raise OpaqueError("it is truncated")
    framed = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    # The checksum does not cover the spare bits of the last character, so they must be zero.
    if urlsafe_b64encode(framed).rstrip(b"=").decode("ascii") != text:
        raise OpaqueError("its last character has been changed")
    if len(framed) <= _CHECKSUM_BYTES:
        raise OpaqueError("it is truncated")
    body, checksum = framed[:-_CHECKSUM_BYTES], framed[-_CHECKSUM_BYTES:]
    if crc32(body).to_bytes(_CHECKSUM_BYTES) != checksum:
        raise OpaqueError("its checksum is wrong: it was truncated or changed")
    return body


class FieldWriter:
    """Appends fields to a byte string."""

    def __init__(self) -> None:
        """Start with no fields."""
        self._written = bytearray()

    def unsigned(self, value: int) -> None:
        """Append an integer of at most 64 bits, seven bits per byte, lowest first."""
        if 0 <= value <= 0x7F:
            self._written.append(value)
            return
        if not 0 <= value < 1 << _UNSIGNED_BITS_MAX:
            raise OpaqueError(f"{value} is not an unsigned 64-bit number")
        left = value
        while left > 0x7F:
            self._written.append(0x80 | (left & 0x7F))
            left >>= 7
        self._written.append(left)

    def text(self, value: str) -> None:
        """Append a string: its length in bytes, then UTF-8."""
        try:
            encoded = value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise OpaqueError(f"text that UTF-8 cannot encode: {value!r}") from error
        self.unsigned(len(encoded))
        self._written += encoded

    def raw(self, written: bytes) -> None:
        """Append fields that another writer has written."""
        self._written += written

    def getvalue(self) -> bytes:
        """Return everything appended."""
        return bytes(self._written)


class FieldReader:
    """Reads the fields back in the order in which they were appended."""

    def __init__(self, fields: bytes) -> None:
        """Start at the first field."""
        self._fields = fields
        self._at = 0

    def unsigned(self) -> int:
        """Read an integer; OpaqueError if there is none."""
        value = 0
        for shift in range(0, _UNSIGNED_BITS_MAX, 7):
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << shift
            if not byte & 0x80:
                break
        else:
            raise OpaqueError("a number in it does not end")
        if value >> _UNSIGNED_BITS_MAX:
            raise OpaqueError("a number in it has over 64 bits")
        return value

    def text(self) -> str:
        """Read a string; OpaqueError if there is none."""
        try:
            return self._take(self.unsigned()).decode("utf-8")
        except UnicodeDecodeError as error:
            raise OpaqueError("a text in it is not UTF-8") from error

    def rest(self) -> bytes:
        """Return the bytes behind the last field read; nothing is left after it."""
        return self._take(len(self._fields) - self._at)

    def finish(self) -> None:
        """Raise OpaqueError if bytes are left."""
        if self._at != len(self._fields):
            raise OpaqueError(f"{len(self._fields) - self._at} unexpected bytes at its end")

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._fields):
            raise OpaqueError("a field is missing in it")
        taken = self._fields[self._at : end]
        self._at = end
        return taken
