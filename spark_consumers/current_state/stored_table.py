"""A table as a task sees it: finds stored rows, and stages what a batch changes.

Nothing staged is part of the table before the driver commits it. Files of a task that failed or ran
twice stay as orphans, which `vacuum` removes.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from spark_consumers.current_state.compact import due_files
from spark_consumers.current_state.files import (
    KEY,
    Rows,
    as_schema,
    read_file,
    write_file,
)
from spark_consumers.current_state.key_index import (
    INDEXED,
    FileKeys,
    Hashes,
    IndexMemory,
    KeyCache,
    buckets_of,
    is_alive,
    joined,
    key_hashes,
)
from spark_consumers.current_state.log import DataFile, Snapshot
from spark_consumers.current_state.storage import Storage
from spark_consumers.current_state.vectors import VectorPlace, read_vectors, to_bitmap

# Some six million keys; more are read from their files in each batch.
INDEX_MEMORY_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Found:
    """Stored rows that have some keys.

    `change`: which of the keys; `file` and `row`: where, `file` an index into `paths`; `stored`:
    key, home and shard. All four have one entry per row.
    """

    paths: tuple[str, ...]
    change: Rows
    file: Rows
    row: Rows
    stored: pa.Table

    def where(self, mask: npt.NDArray[np.bool_]) -> "Found":
        """Return some of the rows."""
        stored = self.stored.filter(pa.array(mask))
        return Found(self.paths, self.change[mask], self.file[mask], self.row[mask], stored)

    def by_path(self) -> dict[str, Rows]:
        """Return the rows of each file."""
        return {self.paths[i]: self.row[self.file == i] for i in np.unique(self.file)}


@dataclass(frozen=True, slots=True)
class Staged:
    """What a task did at a version of the table, for the driver to commit.

    `deleted`: the rows that it deletes, a serialized bitmap per file. `rewritten`: files whose
    other rows are in `added`, and how many deleted rows they had.
    """

    version: int
    added: tuple[DataFile, ...]
    deleted: Mapping[str, bytes]
    rewritten: Mapping[str, int]
    data_change: bool = True


class StoredTable:
    """A table at a version, with the keys of its files."""

    def __init__(
        self, storage: Storage, snapshot: Snapshot, memory: IndexMemory | None = None
    ) -> None:
        self.storage = storage
        self.snapshot = snapshot
        # Of the rows that are read and staged; a batch may widen it before the driver does.
        self.schema = snapshot.schema
        self._keys = KeyCache(memory or IndexMemory(INDEX_MEMORY_BYTES))
        self._vectors: dict[VectorPlace, BitMap64] = {}

    def refresh(self) -> None:
        """Go to the newest version."""
        self.snapshot = self.snapshot.newest(self.storage)
        self.schema = self.snapshot.schema
        self._keys.keep(self.snapshot.files.keys())
        current = {file.vector for file in self.snapshot.files.values()}
        self._vectors = {p: rows for p, rows in self._vectors.items() if p in current}

    def find(self, keys: pa.Array | pa.ChunkedArray) -> Found:
        """Return all live rows that have one of some keys."""
        keys = pa.chunked_array([keys]) if isinstance(keys, pa.Array) else keys
        # Texts are taken from one array: from several, each call would join them.
        texts = keys.combine_chunks()
        hashes = key_hashes(keys)
        by_hash = np.argsort(hashes)  # a search in sorted hashes for sorted ones is fast
        asked: dict[tuple[int, int], tuple[Rows, Hashes, pa.Array]] = {}
        for buckets in {file.bucket[1] for file in self.snapshot.files.values()}:
            chosen = buckets_of(hashes[by_hash], buckets)
            order = np.argsort(chosen, kind="stable")
            cuts = np.searchsorted(chosen[order], np.arange(buckets + 1))
            for bucket in range(buckets):
                mine = by_hash[order[cuts[bucket] : cuts[bucket + 1]]]
                if len(mine):
                    asked[bucket, buckets] = mine, hashes[mine], texts.take(pa.array(mine))
        files = [f for f in self.snapshot.files.values() if f.bucket in asked]
        dead = self.dead(files)
        parts = []
        for i, file in enumerate(files):
            mine, wanted, keys_of_bucket = asked[file.bucket]
            of_file = self._keys_of(file)
            which, rows = of_file.matches(wanted, keys_of_bucket, dead.get(file.path))
            parts.append((i, mine[which], rows, of_file.at(rows)))
        return _found(files, parts, self.schema)

    def everything(self, buckets: Collection[int]) -> Found:
        """Return all live rows of some buckets; `change` has no meaning."""
        count = self.snapshot.buckets
        files = [
            file
            for file in self.snapshot.files.values()
            if any(bucket % file.bucket[1] == file.bucket[0] for bucket in buckets)
        ]
        dead = self.dead(files)
        parts = []
        for i, file in enumerate(files):
            rows = np.arange(file.rows, dtype=np.int64)
            rows = rows[is_alive(rows, dead.get(file.path))]
            known = self._keys_of(file).at(rows)
            if file.bucket[1] < count:
                of_bucket = buckets_of(key_hashes(known[KEY]), count)
                mine = np.isin(of_bucket, list(buckets))
                rows, known = rows[mine], known.filter(pa.array(mine))
            parts.append((i, np.full(len(rows), -1, np.int64), rows, known))
        return _found(files, parts, self.schema)

    def read(self, found: Found, columns: Collection[str] | None = None) -> pa.Table:
        """Return rows that were found, in their order."""
        schema, by_path = self.schema, found.by_path()
        names = list(schema.names if columns is None else columns)
        parts = [pa.schema([schema.field(name) for name in names]).empty_table()]
        where = [np.flatnonzero(found.file == found.paths.index(path)) for path in by_path]
        for path, rows in by_path.items():
            rows_of_file = read_file(self.storage, path, schema, names)
            parts.append(rows_of_file.take(pa.array(rows)))
        return pa.concat_tables(parts).take(pa.array(np.argsort(joined(where))))

    def stage(
        self,
        remove: Found | None,
        insert: pa.Table,
        *,
        part: tuple[int, int] = (0, 1),
        compact: bool = True,
    ) -> Staged:
        """Write rows, and tell which ones are deleted.

        `part`: (this task, number of tasks, a power of two): it has the buckets that are this task
        modulo that number. Its buckets that have too many files or deleted rows are rewritten.
        """
        snapshot = self.snapshot
        removed = remove.by_path() if remove else {}
        due = due_files(snapshot, {path: len(rows) for path, rows in removed.items()}, part)
        rewritten = [*(due if compact else ())]
        if not snapshot.has_vectors:
            rewritten += [
                snapshot.files[path] for path in removed if snapshot.files[path] not in due
            ]
        insert = as_schema(insert, self.schema)
        parts = [*self._live(rewritten, removed), insert]
        added = self._write(pa.concat_tables(parts))
        left = {
            path: rows for path, rows in removed.items() if path not in {f.path for f in rewritten}
        }
        return Staged(
            snapshot.version,
            tuple(added),
            {path: to_bitmap(rows).serialize() for path, rows in left.items()},
            {file.path: file.dead for file in rewritten},
            bool(removed or insert.num_rows),
        )

    def _write(self, rows: pa.Table) -> Iterable[DataFile]:
        buckets, rows = self.snapshot.buckets, rows.combine_chunks()
        hashes = key_hashes(rows[KEY])
        by_key = pc.sort_indices(rows[KEY]).to_numpy().astype(np.int64)
        chosen = buckets_of(hashes[by_key], buckets)
        order = by_key[np.argsort(chosen, kind="stable")]
        cuts = np.cumsum([0, *np.bincount(chosen, minlength=buckets)])
        for bucket in np.flatnonzero(np.diff(cuts)):
            mine = order[cuts[bucket] : cuts[bucket + 1]]
            ordered = rows.take(pa.array(mine))
            file = write_file(self.storage, int(bucket), buckets, ordered)
            self._keys.put(file.path, FileKeys.of(ordered, hashes[mine]))
            yield file

    def _live(self, files: list[DataFile], removed: Mapping[str, Rows]) -> Iterable[pa.Table]:
        dead = self.dead(files)
        for file in files:
            removed_too = to_bitmap(removed.get(file.path, np.empty(0, np.int64)))
            gone = dead.get(file.path, BitMap64()) | removed_too
            rows = np.arange(file.rows, dtype=np.int64)
            found = read_file(self.storage, file.path, self.schema)
            yield found.filter(pa.array(is_alive(rows, gone)))

    def _keys_of(self, file: DataFile) -> FileKeys:
        keys = self._keys.get(file.path)
        if keys is None:
            known = [name for name in INDEXED if name in self.schema.names]
            keys = FileKeys.of(read_file(self.storage, file.path, self.schema, known))
            self._keys.put(file.path, keys)
        return keys

    def dead(self, files: Iterable[DataFile]) -> dict[str, BitMap64]:
        """Return the deleted rows of files that have some."""
        places = {file.path: file.vector for file in files if file.vector}
        missing = [place for place in places.values() if place not in self._vectors]
        self._vectors |= zip(missing, read_vectors(self.storage, missing), strict=True)
        return {path: self._vectors[place] for path, place in places.items()}


def _found(
    files: list[DataFile], parts: list[tuple[int, Rows, Rows, pa.Table]], schema: pa.Schema
) -> Found:
    known = [name for name in INDEXED if name in schema.names]
    empty = pa.schema([schema.field(name) for name in known]).empty_table()
    return Found(
        tuple(file.path for file in files),
        joined(change for _, change, _, _ in parts),
        joined(np.full(len(rows), i, np.int64) for i, _, rows, _ in parts),
        joined(rows for _, _, rows, _ in parts),
        pa.concat_tables([empty, *(stored for _, _, _, stored in parts)]),
    )
