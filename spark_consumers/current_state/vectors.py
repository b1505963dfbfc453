"""Deletion vectors: which rows of a data file are deleted, as Delta's format writes them.

A file of vectors begins with byte 1. A vector in it is its length, a magic number with the Roaring
bitmap of row numbers, and a CRC-32. Ours lie in a folder whose name begins with `_`: `vacuum` of
delta-rs does not know that vectors are in use, and deletes them in other folders.
"""

import base64
import struct
import uuid
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from event_token.errors import Halt
from spark_consumers.current_state.storage import Storage

VECTORS_FOLDER = "_vectors"
_FORMAT = b"\x01"
_MAGIC = struct.pack("<i", 1681511377)
_LENGTH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_UUID_TEXT = 20  # characters of a UUID in Z85

# Z85 is Python's base 85 in other characters.
_B85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_TO_Z85 = bytes.maketrans(_B85, _Z85)
_FROM_Z85 = bytes.maketrans(_Z85, _B85)


@dataclass(frozen=True, slots=True)
class VectorPlace:
    """Where a vector lies, as in the table's log. `cardinality`: number of deleted rows."""

    storage: str
    place: str
    offset: int
    size: int
    cardinality: int

    @property
    def path(self) -> str:
        """The file of the vector, relative to the table."""
        folder, text = self.place[:-_UUID_TEXT], self.place[-_UUID_TEXT:]
        name = f"deletion_vector_{uuid.UUID(bytes=from_z85(text))}.bin"
        return f"{folder}/{name}" if folder else name


def to_bitmap(rows: npt.NDArray[np.int64]) -> BitMap64:
    """Return row numbers as a set."""
    return BitMap64(rows.astype(np.uint64))


def to_rows(bitmap: BitMap64) -> npt.NDArray[np.int64]:
    """Return the row numbers of a set, ascending."""
    return np.frombuffer(bitmap.to_array(), np.uint64).astype(np.int64)


def to_z85(value: bytes) -> str:
    """Return bytes, a multiple of four, as text."""
    return base64.b85encode(value).translate(_TO_Z85).decode("ascii")


def from_z85(text: str) -> bytes:
    """Return the bytes of a text."""
    return base64.b85decode(text.encode("ascii").translate(_FROM_Z85))


def encoded(rows: BitMap64) -> bytes:
    """Return a vector as a file holds it, between its length and its CRC."""
    return _MAGIC + bytes(rows.serialize())


def decoded(vector: bytes) -> BitMap64:
    """Return the rows of a vector. Halt if it is none."""
    if vector[: len(_MAGIC)] != _MAGIC:
        raise Halt("a deletion vector does not begin with the magic number of its format")
    return BitMap64.deserialize(vector[len(_MAGIC) :])


def write_vectors(storage: Storage, vectors: Mapping[str, BitMap64]) -> dict[str, VectorPlace]:
    """Write one file of vectors, which are given by data file; return their places."""
    name = uuid.uuid4()
    content = bytearray(_FORMAT)
    places = {}
    for path, rows in vectors.items():
        vector = encoded(rows)
        place = VECTORS_FOLDER + to_z85(name.bytes)
        places[path] = VectorPlace("u", place, len(content), len(vector), len(rows))
        content += _LENGTH.pack(len(vector)) + vector + _CRC.pack(zlib.crc32(vector))
    if places:
        storage.write(next(iter(places.values())).path, bytes(content))
    return places


def read_vectors(storage: Storage, places: Sequence[VectorPlace]) -> list[BitMap64]:
    """Read vectors, in the order of their places. Halt if one is missing or damaged."""
    found: dict[VectorPlace, BitMap64] = {}
    by_file: dict[str, list[VectorPlace]] = defaultdict(list)
    for place in places:
        if place.storage == "i":
            found[place] = decoded(from_z85(place.place)[: place.size])
        elif place.storage == "u":
            by_file[place.path].append(place)
        else:
            raise Halt(f"{storage.url}: a deletion vector lies outside of the table: {place.place}")
    for path, wanted in by_file.items():
        starts = [place.offset for place in wanted]
        ends = [p.offset + _LENGTH.size + p.size + _CRC.size for p in wanted]
        try:
            parts = storage.read_ranges(path, starts, ends)
        except FileNotFoundError as error:
            raise Halt(
                f"{storage.url}/{path} is missing, which says what rows are deleted: another "
                f"program's vacuum removed it. Restore the file, or write the table again"
            ) from error
        for place, part in zip(wanted, parts, strict=True):
            vector = part[_LENGTH.size : -_CRC.size]
            is_whole = _LENGTH.unpack_from(part)[0] == place.size
            if not is_whole or _CRC.unpack_from(part, len(part) - _CRC.size)[0] != zlib.crc32(
                vector
            ):
                raise Halt(f"{storage.url}/{path} is damaged at byte {place.offset}")
            found[place] = decoded(vector)
    return [found[place] for place in places]
