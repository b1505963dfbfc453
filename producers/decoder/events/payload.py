"""TRANSACTION_PAYLOAD: a transaction's events in one zstd frame, decompressed as they arrive.

Neither the compressed event nor its content is ever whole in memory: packets go in one by one, and
events come out chunk by chunk.
"""

import sys
import zlib
from collections.abc import Callable
from typing import Final

from producers.decoder.events.format_event import CHECKSUM_BYTES, HEADER_BYTES
from producers.decoder.values.hidden_values import PLAIN_BYTES_MAX
from producers.decoder.values.wire import packed_size, read_packed, read_u16, read_u32, take

if sys.version_info >= (3, 14):
    from compression.zstd import ZstdDecompressor, ZstdError
else:
    from backports.zstd import ZstdDecompressor, ZstdError


# The most that the decompressor returns at once; longer events are joined from several pieces.
_PLAIN_BYTES_MAX: Final = 1024 * 1024
# The most that it is given at once: it copies what it does not use immediately.
_PIECE_BYTES: Final = 256 * 1024
# The servers' largest max_allowed_packet and some room for headers: no event is longer.
EVENT_BYTES_MAX: Final = 1024 * 1024 * 1024 + 64 * 1024
# The event's fields: a number, a length and the value, each length-encoded.
_END: Final = 0
_PAYLOAD_BYTES: Final = 1
_ALGORITHM: Final = 2
_PLAIN_BYTES: Final = 3
_ZSTD: Final = 0
_NONE: Final = 255

TakeEvent = Callable[[bytes, int, int], None]


class _EventCutter:
    """Splits a stream of plain bytes into events, which have no checksums."""

    def __init__(self, take_event: TakeEvent) -> None:
        self.bytes_taken: int = 0
        self._take_event: TakeEvent = take_event
        self._pieces: list[bytes] = []
        self._held: int = 0
        self._needed: int = HEADER_BYTES

    def add(self, plain: bytes) -> None:
        """Take the events that end in this piece."""
        self.bytes_taken += len(plain)
        self._pieces.append(plain)
        self._held += len(plain)
        if self._held < self._needed:
            return
        whole = b"".join(self._pieces)
        pos: int = 0
        needed = HEADER_BYTES
        while len(whole) - pos >= HEADER_BYTES:
            needed = read_u32(whole, pos + 9)
            if not HEADER_BYTES <= needed <= EVENT_BYTES_MAX:
                raise ValueError(f"an event of {needed} bytes in a compressed transaction")
            if pos + needed > len(whole):
                break
            self._take_event(whole, pos, pos + needed)
            pos += needed
            needed = HEADER_BYTES
        rest = whole[pos:]
        self._pieces = [rest]
        self._held = len(rest)
        self._needed = needed

    def is_between_events(self) -> bool:
        return self._held == 0


class CompressedTransaction:
    """One TRANSACTION_PAYLOAD event. Raises ValueError where its bytes contradict its fields."""

    def __init__(self, event: bytes, begin: int, end: int, take_event: TakeEvent) -> None:
        """`event[begin:end]`: what follows its header, or as much of it as the first packet has."""
        fields: dict[int, int] = {}
        pos = begin
        while True:
            field = read_packed(event, pos)
            pos += packed_size(event, pos)
            if field == _END:
                break
            size = read_packed(event, pos)
            pos += packed_size(event, pos)
            fields[field] = read_packed(take(event, pos, size), 0)
            pos += size
        algorithm = fields.get(_ALGORITHM, _NONE)
        if algorithm not in (_ZSTD, _NONE):
            raise ValueError(f"a transaction is compressed by the unknown algorithm {algorithm}")
        self._zstd: ZstdDecompressor | None = ZstdDecompressor() if algorithm == _ZSTD else None
        self._plain_bytes: int = fields.get(_PLAIN_BYTES, fields[_PAYLOAD_BYTES])
        self._payload_left: int = fields[_PAYLOAD_BYTES]
        self._events: _EventCutter = _EventCutter(take_event)
        self.add(event, pos, end)

    def add(self, packet: bytes, begin: int, end: int) -> None:
        """Take the next piece of the event, and ignore what follows its payload."""
        end = min(end, begin + self._payload_left)
        self._payload_left -= end - begin
        for pos in range(begin, end, _PIECE_BYTES):
            self._piece(packet[pos : min(pos + _PIECE_BYTES, end)])

    def _piece(self, piece: bytes) -> None:
        if self._zstd is None:
            self._events.add(piece)
            return
        while True:
            try:
                plain = self._zstd.decompress(piece, _PLAIN_BYTES_MAX)
            except ZstdError as error:
                raise ValueError(f"a compressed transaction is damaged: {error}") from error
            if plain:
                self._events.add(plain)
            if self._events.bytes_taken > self._plain_bytes:
                raise ValueError(f"a compressed transaction is longer than {self._plain_bytes}")
            piece = b""
            if self._zstd.eof:
                piece = self._zstd.unused_data
                if not piece:
                    return
                self._zstd = ZstdDecompressor()
            elif self._zstd.needs_input:
                return

    def end(self) -> None:
        """Check that all pieces were taken."""
        taken = self._events.bytes_taken
        is_whole = self._payload_left == 0 and taken == self._plain_bytes
        if not is_whole or not self._events.is_between_events():
            raise ValueError(
                f"a compressed transaction of {self._plain_bytes} bytes ends after {taken}"
            )


class PacketedTransaction:
    """A TRANSACTION_PAYLOAD event that comes in several packets, each taken as it arrives."""

    def __init__(
        self, packet: bytes, begin: int, has_checksum: bool, verify: bool, take_event: TakeEvent
    ) -> None:
        """`packet`: the first one, with the event's header at `begin`."""
        size = read_u32(packet, begin + 9)
        self._bytes_left: int = size
        self._unsummed: int = size - CHECKSUM_BYTES if has_checksum else size
        self._sum: int = 0
        self._stored_sum: bytes = b""
        self._verify: bool = verify
        self._count(packet, begin)
        self._payload: CompressedTransaction = CompressedTransaction(
            packet, begin + HEADER_BYTES, len(packet), take_event
        )

    def add(self, packet: bytes) -> None:
        """Take another packet."""
        self._count(packet, 0)
        self._payload.add(packet, 0, len(packet))

    def end(self) -> None:
        """Check the event after its last packet. Raises ValueError."""
        self._payload.end()
        if self._bytes_left:
            raise ValueError(f"an event lacks its last {self._bytes_left} bytes")
        if self._verify and int.from_bytes(self._stored_sum, "little") != self._sum:
            raise ValueError("the checksum of a compressed transaction does not match its bytes")

    def _count(self, packet: bytes, begin: int) -> None:
        size = len(packet) - begin
        self._bytes_left -= size
        if self._bytes_left < 0:
            raise ValueError("an event is longer than its header says")
        if self._verify:
            summed = min(self._unsummed, size)
            self._sum = zlib.crc32(memoryview(packet)[begin : begin + summed], self._sum)
            self._stored_sum += packet[begin + summed :]
            self._unsummed -= summed


_ZLIB: Final = 0


def uncompress_query(body: bytes) -> bytes:
    """Return the body of the plain query event."""
    begin = 13 + body[8] + 1 + read_u16(body, 11)
    return take(body, 0, begin) + _uncompress(body, begin)


def uncompress_rows(body: bytes, is_update: bool, has_extra: bool) -> bytes:
    """Return the body of the plain row event. Its table id and bitmaps are never compressed."""
    pos: int = 8
    if has_extra:
        pos += read_u16(body, pos)
    bitmap_bytes = (read_packed(body, pos) + 7) // 8
    pos += packed_size(body, pos) + (2 if is_update else 1) * bitmap_bytes
    return take(body, 0, pos) + _uncompress(body, pos)


def _uncompress(body: bytes, pos: int) -> bytes:
    """Uncompress from `pos`: a byte with the algorithm and the width of the plain length."""
    head = body[pos]
    algorithm = head >> 4 & 7
    if algorithm != _ZLIB:
        raise ValueError(f"an event is compressed by the unknown algorithm {algorithm}")
    width = head & 7
    size = int.from_bytes(take(body, pos + 1, width), "big")
    if size > PLAIN_BYTES_MAX:
        raise ValueError(f"a compressed event claims to hold {size} bytes")
    plain = zlib.decompressobj().decompress(body[pos + 1 + width :], size + 1)
    if len(plain) != size:
        raise ValueError(f"a compressed event should have {size} bytes and has another length")
    return plain
