"""Where the rows of keys are: sorted hashes of the keys of each file, in memory or read again.

A hash only narrows the search, the text of the key decides.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64
from xxhash import xxh64_intdigest

from event_token.errors import Halt
from spark_consumers.current_state.files import KEY, Rows
from spark_consumers.current_state.vectors import to_bitmap, to_rows

Hashes = npt.NDArray[np.uint64]
HOME, SHARD = "_home", "_shard"
# What is known of a stored row without reading it.
INDEXED = (KEY, HOME, SHARD)


def key_hashes(keys: pa.ChunkedArray) -> Hashes:
    """Return the hash of each key, which also chooses its bucket. Halt if a row has no key."""
    if keys.null_count:
        raise Halt(
            f"{keys.null_count} rows have no {KEY}: another program wrote them into a table of "
            f"current rows. Delete them there"
        )
    texts = keys.cast(pa.binary()).to_pylist()
    return np.fromiter(map(xxh64_intdigest, texts), np.uint64, len(texts))


def buckets_of(hashes: Hashes, buckets: int) -> Rows:
    """Return the bucket of each hash; the number of buckets is a power of two."""
    return (hashes & np.uint64(buckets - 1)).astype(np.int64)


@dataclass(frozen=True, slots=True)
class FileKeys:
    """The keys of one file: sorted hashes, and the row of each; `columns` in the file's order."""

    hashes: Hashes
    rows: npt.NDArray[np.uint32]
    columns: pa.Table

    @classmethod
    def of(cls, rows: pa.Table, hashes: Hashes | None = None) -> "FileKeys":
        """Index the rows of a file, in its order."""
        found = key_hashes(rows[KEY]) if hashes is None else hashes
        order = np.argsort(found)
        columns = rows.select([name for name in INDEXED if name in rows.schema.names])
        if SHARD in columns.schema.names:
            at = columns.schema.get_field_index(SHARD)
            columns = columns.set_column(at, SHARD, columns[SHARD].dictionary_encode())
        return cls(found[order], order.astype(np.uint32), columns.combine_chunks())

    @property
    def memory_bytes(self) -> int:
        """Bytes in memory."""
        return int(self.hashes.nbytes + self.rows.nbytes + self.columns.nbytes)

    def matches(self, hashes: Hashes, keys: pa.Array, dead: BitMap64 | None) -> tuple[Rows, Rows]:
        """Return pairs: which of some keys, and the live row of the file that has it."""
        start = np.searchsorted(self.hashes, hashes)
        # Most files have few of the keys, so the second search is for those alone.
        hits = np.flatnonzero(start < len(self.hashes))
        hits = hits[self.hashes[start[hits]] == hashes[hits]]
        start = start[hits]
        counts = np.searchsorted(self.hashes, hashes[hits], side="right") - start
        asked = np.repeat(hits, counts)
        offsets = np.arange(len(asked)) - np.repeat(np.cumsum(counts) - counts, counts)
        rows = self.rows[np.repeat(start, counts) + offsets].astype(np.int64)
        alive = is_alive(rows, dead)
        asked, rows = asked[alive], rows[alive]
        equal = pc.equal(self.columns[KEY].take(pa.array(rows)), keys.take(pa.array(asked)))
        same = equal.to_numpy().astype(bool)
        return asked[same], rows[same]

    def at(self, rows: Rows) -> pa.Table:
        """Return what is known of some rows."""
        found = self.columns.take(pa.array(rows))
        if SHARD not in found.schema.names:
            return found
        at = found.schema.get_field_index(SHARD)
        return found.set_column(at, SHARD, found[SHARD].cast(pa.string()))


def is_alive(rows: Rows, dead: BitMap64 | None) -> npt.NDArray[np.bool_]:
    """Return which rows are not deleted, without a look at all the deleted ones."""
    if not dead or not len(rows):
        return np.ones(len(rows), bool)
    return ~np.isin(rows, to_rows(to_bitmap(rows) & dead))


def is_same(a: pa.ChunkedArray, b: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    """Return which values of two arrays are equal, nulls among them."""
    equal = pc.fill_null(pc.equal(a, b), fill_value=False)
    both_null = pc.and_(pc.is_null(a), pc.is_null(b))
    return np.asarray(pc.or_(equal, both_null), bool)


@dataclass(slots=True)
class IndexMemory:
    """The memory that the keys of all tables of a process may take, and what they take."""

    bytes_max: int
    bytes: int = 0


class KeyCache:
    """The keys of a table's files, within a bound of memory; beyond it they are read each time."""

    def __init__(self, memory: IndexMemory) -> None:
        self._memory = memory
        self._files: dict[str, FileKeys] = {}

    def get(self, path: str) -> FileKeys | None:
        """Return the keys of a file if they are in memory."""
        return self._files.get(path)

    def put(self, path: str, keys: FileKeys) -> None:
        """Keep the keys of a file if there is room."""
        needed = keys.memory_bytes
        if path in self._files or self._memory.bytes + needed > self._memory.bytes_max:
            return
        self._files[path] = keys
        self._memory.bytes += needed

    def keep(self, paths: Collection[str]) -> None:
        """Forget all other files."""
        for path in self._files.keys() - set(paths):
            self._memory.bytes -= self._files.pop(path).memory_bytes


def joined(parts: Iterable[Rows]) -> Rows:
    """Return several arrays as one."""
    return np.concatenate([np.empty(0, np.int64), *parts])
