"""The partition of a key, as Java's producers choose it; librdkafka calls it `murmur2_random`."""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_SEED: Final = 0x9747B28C
_FACTOR: Final = np.uint64(0x5BD1E995)
_LOW: Final = np.uint64(0xFFFFFFFF)


def murmur2(key: bytes) -> int:
    """Return Java's murmur2 of a key as an unsigned 32-bit number."""
    found = _hashes(np.frombuffer(key, np.uint8).reshape(1, -1))
    return int(found[0])


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of a key."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def partitions_of(keys: pa.Array, partitions: int) -> npt.NDArray[np.int32]:
    """Return the partition of each key (binary, none null)."""
    if len(keys) == 0:
        return np.zeros(0, np.int32)
    offsets = np.frombuffer(keys.buffers()[1], np.int32)[
        keys.offset : keys.offset + len(keys) + 1
    ].astype(np.int64)
    found = np.zeros(len(keys), np.uint32)
    content = np.frombuffer(keys.buffers()[2] or b"", np.uint8)
    sizes = np.diff(offsets)
    # Keys of one length are hashed together, word by word.
    for size in np.unique(sizes):
        rows = np.flatnonzero(sizes == size)
        found[rows] = _hashes(content[offsets[rows][:, None] + np.arange(size)])
    return ((found & np.uint32(0x7FFFFFFF)) % np.uint32(partitions)).astype(np.int32)


def _hashes(keys: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    """Return murmur2 of keys of one length, given as (keys, length); 32 bits each."""
    count, size = keys.shape
    whole = size // 4 * 4
    words = np.ascontiguousarray(keys[:, :whole]).view("<u4").astype(np.uint64)
    # 64 bits hold the product of two 32-bit numbers, so that no product overflows.
    h = np.full(count, _SEED ^ size, np.uint64)
    for i in range(whole // 4):
        k = words[:, i] * _FACTOR & _LOW
        k ^= k >> np.uint64(24)
        h = (h * _FACTOR & _LOW) ^ (k * _FACTOR & _LOW)
    if size > whole:
        for i in range(whole, size):
            h ^= keys[:, i].astype(np.uint64) << np.uint64(8 * (i - whole))
        h = h * _FACTOR & _LOW
    h ^= h >> np.uint64(13)
    h = h * _FACTOR & _LOW
    return h ^ h >> np.uint64(15)
