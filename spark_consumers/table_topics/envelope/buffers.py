"""Arrow arrays from and to numpy, where Arrow has no function for a conversion."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]


def numbers_of(values: pa.Array) -> Numbers:
    """Return integers or times as int64; a null is 0."""
    plain = values if pa.types.is_integer(values.type) else values.cast(pa.int64())
    found: Numbers = plain.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def decimal_words(values: pa.Array) -> Numbers:
    """Return the unscaled values of decimal128 as (rows, 2): the low and the high 64 bits."""
    words = np.frombuffer(values.buffers()[1], np.int64).reshape(-1, 2)
    return words[values.offset : values.offset + len(values)]


def fit_64_bits(words: Numbers) -> bool:
    """Tell whether all of `decimal_words` are signed 64-bit numbers."""
    return bool(np.all(words[:, 1] == words[:, 0] >> 63))


def binary_array(rows: Bytes, kept: npt.NDArray[np.bool_], like: pa.Array) -> pa.Array:
    """Return row by row the bytes of a matrix that are kept; null where `like` is null."""
    offsets = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(kept.sum(axis=1, dtype=np.int32), out=offsets[1:])
    made = pa.Array.from_buffers(
        pa.binary(), len(rows), [None, pa.py_buffer(offsets), pa.py_buffer(rows[kept])]
    )
    return with_nulls_of(made, like)


def with_nulls_of(values: pa.Array, like: pa.Array) -> pa.Array:
    """Return the values, null where `like` is null."""
    if like.null_count == 0:
        return values
    return pa.compute.if_else(like.is_valid(), values, pa.scalar(None, values.type))


def content_of(values: pa.Array) -> Bytes:
    """Return the bytes of all strings or binary values, without their borders."""
    _, offsets, content = values.buffers()
    if content is None:
        return np.zeros(0, np.uint8)
    bounds = np.frombuffer(offsets, np.int32)
    first, end = bounds[values.offset], bounds[values.offset + len(values)]
    return np.frombuffer(content, np.uint8)[first:end]
