"""A table as a task sees it: finds stored rows, and stages what a batch changes.

Nothing staged is part of the table before the driver commits it. Files of a task that failed or ran
twice stay as orphans, which `vacuum` removes.

A file has rows of one bucket, sorted by key. Sorted hashes of its keys, in memory or read again,
find rows. A hash only narrows the search, the text of the key decides.
"""

import io
import math
import time
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema
from pyroaring import BitMap64
from xxhash import xxh64_intdigest

from event_token.errors import Halt, UsageError
from sinks.lake.delta.log import (
    BUCKET,
    BUCKETS_SETTING,
    DELETION_VECTORS,
    Action,
    DataFile,
    TableVersion,
    VectorPlace,
    commit_path,
    read_vectors,
    serialized,
    to_bitmap,
    to_rows,
)
from sinks.lake.delta.storage import Storage, written_by_delta_rs
from sinks.rule.homes import HOME, KEY, SHARD
from sinks.rule.upserts import as_schema

Rows = npt.NDArray[np.int64]
# A reader that looks for one key reads one group of rows.
GROUP_ROWS = 128 * 1024


def write_file(
    storage: Storage, bucket: int, buckets: int, rows: pa.Table, kind: str = BUCKET
) -> DataFile:
    """Write rows of one bucket; they are sorted by key. `kind`: the first letter of its name."""
    path = f"{kind}{bucket:03}of{buckets:03}-{uuid.uuid4()}.parquet"
    content = io.BytesIO()
    # Keys and numbers hardly repeat: a dictionary would be built for nothing.
    texts = [f.name for f in rows.schema if pa.types.is_string(f.type) and f.name != KEY]
    pq.write_table(
        rows, content, compression="zstd", use_dictionary=texts, row_group_size=GROUP_ROWS
    )
    found = content.getvalue()
    storage.write(path, found)
    return DataFile(path, len(found), rows.num_rows, int(time.time() * 1000))


def read_file(
    storage: Storage, path: str, schema: pa.Schema, columns: Sequence[str] | None = None
) -> pa.Table:
    """Return all rows of a file, deleted ones too, typed as the table is now.

    Columns that the table got later are null.
    """
    wanted = schema if columns is None else pa.schema([schema.field(name) for name in columns])
    parquet = storage.parquet(path)
    present = set(parquet.schema_arrow.names)
    found = parquet.read(columns=[name for name in wanted.names if name in present])
    return as_schema(found, wanted)


Hashes = npt.NDArray[np.uint64]
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


# This many files of about one size, which is less than this part of their bucket's rows, become
# one, which is about as many times as large. A row is thus copied as often as the size of the
# bucket has digits, and a key is looked for in a few files.
SMALL_PART = 1 / 6
FILES_OF_A_SIZE_MAX = 8
# Beyond this part of deleted rows readers read too much for nothing.
DEAD_PART_MAX = 0.3
# Of a task's buckets at most this part is rewritten in a batch, and, beyond one bucket, no more
# rows than a worker has room for.
BUCKETS_PART_MAX = 1 / 4
ROWS_MAX = 500_000


def due_files(
    snapshot: TableVersion, removed: Mapping[str, int], part: tuple[int, int]
) -> list[DataFile]:
    """Return the files that a task rewrites. `removed`: how many rows a batch deletes, by file."""
    task, tasks = part
    groups: dict[tuple[int, int], list[DataFile]] = defaultdict(list)
    for file in snapshot.files.values():
        bucket, buckets = file.bucket
        if buckets >= tasks and bucket % tasks == task:
            groups[file.bucket].append(file)
    urgent = []
    for (_, buckets), files in groups.items():
        urgency, chosen = _choice(files, removed, is_split=buckets < snapshot.buckets)
        if chosen:
            urgent.append((urgency, chosen))
    urgent.sort(key=lambda found: found[0], reverse=True)
    found: list[DataFile] = []
    for _, chosen in urgent[: max(1, int(len(groups) * BUCKETS_PART_MAX))]:
        rows = sum(file.rows - file.dead for file in [*found, *chosen])
        if found and rows > ROWS_MAX:
            break
        found += chosen
    return found


def _choice(
    files: list[DataFile], removed: Mapping[str, int], *, is_split: bool
) -> tuple[float, list[DataFile]]:
    """Return the files of a bucket to rewrite, and how urgent that is."""
    rows = sum(file.rows for file in files)
    dead = sum(file.dead + removed.get(file.path, 0) for file in files) / max(rows, 1)
    if dead > DEAD_PART_MAX:
        return 1 + dead, files
    sizes: dict[int, list[DataFile]] = defaultdict(list)
    for file in files:
        if file.rows < rows * SMALL_PART:
            sizes[int(math.log(max(file.rows, 1), FILES_OF_A_SIZE_MAX))].append(file)
    full = [size for size, found in sizes.items() if len(found) >= FILES_OF_A_SIZE_MAX]
    if full:
        small = [file for size, found in sizes.items() if size <= max(full) for file in found]
        return len(small) / FILES_OF_A_SIZE_MAX, small
    return (0.0, files) if is_split else (0.0, [])


# Some six million keys; more are read from their files in each batch.
INDEX_MEMORY_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class FoundRows:
    """Stored rows that have some keys.

    `change`: which of the keys; `file` and `row`: where, `file` an index into `paths`; `stored`:
    key, home and shard. All four have one entry per row.
    """

    paths: tuple[str, ...]
    change: Rows
    file: Rows
    row: Rows
    stored: pa.Table

    def where(self, mask: npt.NDArray[np.bool_]) -> "FoundRows":
        """Return some of the rows."""
        stored = self.stored.filter(pa.array(mask))
        return FoundRows(self.paths, self.change[mask], self.file[mask], self.row[mask], stored)

    def by_path(self) -> dict[str, Rows]:
        """Return the rows of each file."""
        return {self.paths[i]: self.row[self.file == i] for i in np.unique(self.file)}


@dataclass(frozen=True, slots=True)
class StagedFiles:
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
        self, storage: Storage, snapshot: TableVersion, memory: IndexMemory | None = None
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

    def find(self, keys: pa.Array | pa.ChunkedArray) -> FoundRows:
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

    def everything(self, buckets: Collection[int]) -> FoundRows:
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

    def read(self, found: FoundRows, columns: Collection[str] | None = None) -> pa.Table:
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
        remove: FoundRows | None,
        insert: pa.Table,
        *,
        part: tuple[int, int] = (0, 1),
        compact: bool = True,
    ) -> StagedFiles:
        """Write rows, and return which ones are deleted.

        `part`: (this task, number of tasks, a power of two): it has the buckets that are this task
        modulo that number. Its buckets that have too many files or deleted rows are rewritten.
        """
        snapshot = self.snapshot
        removed = remove.by_path() if remove else {}
        due = due_files(snapshot, {path: len(rows) for path, rows in removed.items()}, part)
        rewritten = due if compact else []
        insert = as_schema(insert, self.schema)
        parts = [*self._live(rewritten, removed), insert]
        added = self._write(pa.concat_tables(parts))
        left = {
            path: rows for path, rows in removed.items() if path not in {f.path for f in rewritten}
        }
        return StagedFiles(
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
) -> FoundRows:
    known = [name for name in INDEXED if name in schema.names]
    empty = pa.schema([schema.field(name) for name in known]).empty_table()
    return FoundRows(
        tuple(file.path for file in files),
        joined(change for _, change, _, _ in parts),
        joined(np.full(len(rows), i, np.int64) for i, _, rows, _ in parts),
        joined(rows for _, _, rows, _ in parts),
        pa.concat_tables([empty, *(stored for _, _, _, stored in parts)]),
    )


# The versions of the protocol that list features by name.
FEATURES_PROTOCOL = {"minReaderVersion": 3, "minWriterVersion": 7}
# What this process has read of the logs of tables: the next batch reads on from there.
_newest: dict[str, TableVersion] = {}


def create_table(url: str, options: Mapping[str, str], schema: pa.Schema, buckets: int) -> None:
    """Create a table unless there is one. UsageError on columns or buckets that it cannot have."""
    storage = Storage(url, options)
    if TableVersion().newest(storage).version >= 0:
        return
    first = _first(schema, buckets)
    actions: list[Action] = [
        {"protocol": first.protocol},
        {"metaData": first.metadata},
        {"commitInfo": {"timestamp": int(time.time() * 1000), "operation": "CREATE TABLE"}},
    ]
    storage.create(commit_path(0), serialized(actions))


def open_table(
    url: str, options: Mapping[str, str], memory: IndexMemory | None = None
) -> StoredTable | None:
    """Return the newest version of a table, None if there is none.

    `memory`: for its keys, which tables may share; None: some of its own.
    """
    storage = Storage(url, options)
    snapshot = _newest.get(url, TableVersion()).newest(storage)
    _newest[url] = snapshot
    return StoredTable(storage, snapshot, memory) if snapshot.version >= 0 else None


def new_table(url: str, options: Mapping[str, str], schema: pa.Schema, buckets: int) -> StoredTable:
    """Return a table that is yet to be created: rows can be staged for it."""
    return StoredTable(Storage(url, options), _first(schema, buckets))


def _first(schema: pa.Schema, buckets: int) -> TableVersion:
    if KEY not in schema.names:
        raise UsageError(f"a table of current rows needs a column {KEY}")
    if buckets < 1 or buckets & (buckets - 1):
        raise UsageError(f"the number of buckets must be a power of two, not {buckets}")
    metadata: dict[str, Any] = {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": Schema.from_arrow(schema).to_json(),
        "partitionColumns": [],
        "createdTime": int(time.time() * 1000),
        "configuration": {
            "delta.enableDeletionVectors": "true",
            BUCKETS_SETTING: str(buckets),
        },
    }
    features = [DELETION_VECTORS]
    if any(pa.types.is_timestamp(f.type) and f.type.tz is None for f in schema):
        features.append("timestampNtz")
    protocol = {**FEATURES_PROTOCOL, "readerFeatures": features, "writerFeatures": features}
    return TableVersion(-1, metadata, protocol)


def add_columns(url: str, options: Mapping[str, str], schema: pa.Schema) -> None:
    """Add the columns that a table lacks; rows that it has get nulls."""
    table = DeltaTable(url, storage_options=dict(options))
    present = {field.name for field in table.schema().fields}
    missing = [f for f in Schema.from_arrow(schema).fields if f.name not in present]
    if missing:
        with written_by_delta_rs(url):
            table.alter.add_columns(missing)
