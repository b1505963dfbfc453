"""Writes the envelope's token, absent columns and invalid dates as text. Typed for mypyc."""

from binascii import crc32
from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64, u8

from spark_consumers.row_columns.images import has_column
from spark_consumers.row_columns.text import write_json_string
from topics.records.envelope import EnvelopeReader

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
