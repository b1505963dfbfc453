"""A version of a table, as its log has it: schema, data files, deletion vectors and marks.

The log is read here because delta-rs does not say where a file's deletion vector lies.

A file of vectors begins with byte 1. A vector in it is its length, a magic number with the Roaring
bitmap of row numbers, and a CRC-32. Ours lie in a folder whose name begins with `_`: `vacuum` of
delta-rs does not know that vectors are in use, and deletes them in other folders.
"""

import base64
import json
import re
import struct
import uuid
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from deltalake import Schema
from pyroaring import BitMap64

from event_token.errors import Halt
from event_token.position import StreamPosition
from sinks.lake.delta.storage import Storage

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


Action = dict[str, Any]
LOG = "_delta_log"
# The first letters of files: of rows by bucket, and of rows of a history that have been closed.
BUCKET, CLOSED = "b", "c"
_NAME = re.compile(f"([{BUCKET}{CLOSED}])([0-9]+)of([0-9]+)-")
BUCKETS_SETTING = "shardstream.buckets"
# What a version consists of.
KINDS = ("add", "txn", "metaData", "protocol")
# What a table may ask of its readers and writers; delta-rs lists some that it does not use.
DELETION_VECTORS = "deletionVectors"
FEATURES = frozenset({DELETION_VECTORS, "timestampNtz", "appendOnly", "invariants", "variantType"})
# Number of requests at once for the log of a table on an object store.
READERS = 16
# Commits that are read one after the other before the log is listed.
NEXT_MAX = 8

# Marks are Delta's application transactions, and survive the clean-up of logs: the last batch of a
# query, the last seq of a shard in the table, and the format of a target.
QUERY_MARK = "shardstream.query."
SHARD_MARK = "shardstream.seq."
FORMAT_MARK = "shardstream.format"
# In the information of a commit: the batch, and where it ends.
BATCH_KEY = "shardstream.batch_id"
FRONTIER_KEY = "shardstream.frontier_us"
POSITION_KEY = "shardstream.position"


def query_mark(query: str) -> str:
    """Return the name of the mark that holds a query's last batch."""
    return f"{QUERY_MARK}{query}"


def shard_mark(shard: str) -> str:
    """Return the name of the mark that holds the last seq of a shard in the table."""
    return f"{SHARD_MARK}{shard}"


def batch_info(batch_id: int, end: StreamPosition | None) -> dict[str, str]:
    """Return the information of the commit of a batch; `end` is None where it is not known."""
    found = {BATCH_KEY: str(batch_id)}
    if end is not None:
        found |= {FRONTIER_KEY: str(end.frontier_us), POSITION_KEY: end.to_string()}
    return found


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file of a table. `rows` counts deleted ones too."""

    path: str
    size: int
    rows: int
    modified_ms: int
    vector: VectorPlace | None = None

    @property
    def bucket(self) -> tuple[int, int]:
        """Its bucket and the number of buckets when it was written: (0, 1) of a foreign file.

        Of closed rows: the task that wrote it, and the number of tasks.
        """
        found = _NAME.match(self.path)
        return (int(found[2]), int(found[3])) if found else (0, 1)

    @property
    def is_closed(self) -> bool:
        """Whether the file has closed rows of a history, which no change touches."""
        found = _NAME.match(self.path)
        return found is not None and found[1] == CLOSED

    @property
    def dead(self) -> int:
        """The number of deleted rows."""
        return self.vector.cardinality if self.vector else 0

    def action(self, *, data_change: bool) -> Action:
        """Return what adds the file to the table."""
        stats = json.dumps({"numRecords": self.rows})
        added = {"path": self.path, "size": self.size, "partitionValues": {}, "stats": stats}
        added |= {"modificationTime": self.modified_ms, "dataChange": data_change}
        return {"add": added | self._vector()}

    def removal(self, now_ms: int, *, data_change: bool) -> Action:
        """Return what removes the file from the table."""
        removed = {"path": self.path, "size": self.size, "partitionValues": {}}
        removed |= {"deletionTimestamp": now_ms, "dataChange": data_change}
        return {"remove": removed | {"extendedFileMetadata": True} | self._vector()}

    def _vector(self) -> Action:
        if self.vector is None:
            return {}
        found = {"storageType": self.vector.storage, "pathOrInlineDv": self.vector.place}
        if self.vector.storage != "i":
            found["offset"] = self.vector.offset  # type: ignore[assignment]
        sizes = {"sizeInBytes": self.vector.size, "cardinality": self.vector.cardinality}
        return {"deletionVector": found | sizes}


@dataclass(frozen=True, slots=True)
class TableVersion:
    """One version; -1 is that before the first. `written`: when its commit was, by the storage.

    `files`: by path; those of a history's closed rows are in `closed`, and nowhere else.
    """

    version: int = -1
    metadata: Mapping[str, Any] = field(default_factory=dict)
    protocol: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, DataFile] = field(default_factory=dict)
    marks: Mapping[str, int] = field(default_factory=dict)
    closed: Mapping[str, DataFile] = field(default_factory=dict)
    written: datetime | None = None

    @property
    def settings(self) -> Mapping[str, str]:
        """The table's properties."""
        return dict(self.metadata["configuration"])

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return pa.schema(Schema.from_json(self.metadata["schemaString"]).to_arrow())

    @property
    def buckets(self) -> int:
        """The number of buckets."""
        return int(self.settings[BUCKETS_SETTING])

    def applied(self, version: int, actions: Iterable[Action]) -> "TableVersion":
        """Return the version that some actions make."""
        files, closed, marks = dict(self.files), dict(self.closed), dict(self.marks)
        metadata, protocol = self.metadata, self.protocol
        added = []
        for action in actions:
            match action:
                case {"add": dict(add)}:
                    added.append(_data_file(add))
                case {"remove": dict(remove)}:
                    files.pop(remove["path"], None)
                    closed.pop(remove["path"], None)
                case {"txn": dict(mark)}:
                    marks[mark["appId"]] = mark["version"]
                case {"metaData": dict(found)}:
                    metadata = found
                case {"protocol": dict(found)}:
                    protocol = found
        files |= {file.path: file for file in added if not file.is_closed}
        closed |= {file.path: file for file in added if file.is_closed}
        return TableVersion(version, metadata, protocol, files, marks, closed)

    def newest(self, storage: Storage) -> "TableVersion":
        """Return the newest version; Halt if the table asks for what is not known here."""
        found, newer = self, next_commits
        if found.written is None or storage.written(commit_path(found.version)) != found.written:
            # Nothing is known yet, or the table has been replaced by another one.
            found = replace(self, version=-1, files={}, closed={}, marks={}).applied(
                *_checkpoint(storage)
            )
            newer = commits
        for version, actions in newer(storage, found.version):
            if version != found.version + 1:
                raise Halt(f"{storage.url}: version {found.version + 1} is not in the table's log")
            found = found.applied(version, actions)
        features = {
            *(found.protocol.get("readerFeatures") or ()),
            *(found.protocol.get("writerFeatures") or ()),
        }
        if not features <= FEATURES:
            unknown = ", ".join(sorted(features - FEATURES))
            raise Halt(f"{storage.url} uses features of Delta that are not supported: {unknown}")
        if found.version >= 0 and DELETION_VECTORS not in features:
            raise Halt(
                f"{storage.url} lacks Delta's feature {DELETION_VECTORS}: another program wrote "
                f"the table or dropped the feature. Restore an earlier version, or use a new target"
            )
        if found.version in {self.version, -1}:
            return found
        return replace(found, written=storage.written(commit_path(found.version)))


def commit_path(version: int) -> str:
    """Return the file of a commit."""
    return f"{LOG}/{version:020}.json"


def serialized(actions: Iterable[Action]) -> bytes:
    """Return a commit as its file holds it."""
    return b"".join(json.dumps(a, separators=(",", ":")).encode() + b"\n" for a in actions)


def parsed(content: bytes) -> list[Action]:
    """Return the actions of a commit."""
    return [json.loads(line) for line in content.splitlines() if line]


def commits(storage: Storage, after: int) -> Iterator[tuple[int, list[Action]]]:
    """Yield each commit after a version: (version, actions)."""
    start = commit_path(after) if after >= 0 else None
    names = (path.removeprefix(f"{LOG}/") for path, _ in storage.names(LOG, start))
    versions = sorted(int(name[:20]) for name in names if len(name) == 25 and name[:20].isdecimal())
    if len(versions) <= 1:
        yield from ((version, parsed(storage.read(commit_path(version)))) for version in versions)
        return
    with ThreadPoolExecutor(READERS) as pool:
        contents = pool.map(lambda version: storage.read(commit_path(version)), versions)
        yield from zip(versions, map(parsed, contents), strict=True)


def next_commits(storage: Storage, after: int) -> Iterator[tuple[int, list[Action]]]:
    """Yield what `commits` does; `after` is a version that the log has.

    There are hardly ever more than a few: these are asked for by name, because a file system lists
    the whole folder of a log, with a file for each commit of the last weeks.
    """
    for version in range(after + 1, after + 1 + NEXT_MAX):
        try:
            content = storage.read(commit_path(version))
        except FileNotFoundError:
            return
        yield version, parsed(content)
    yield from commits(storage, after + NEXT_MAX)


def _checkpoint(storage: Storage, kinds: Sequence[str] = KINDS) -> tuple[int, list[Action]]:
    try:
        last = json.loads(storage.read(f"{LOG}/_last_checkpoint"))["version"]
    except FileNotFoundError:
        return -1, []
    prefix = f"{LOG}/{last:020}.checkpoint."
    paths = [
        path
        for path, _ in storage.names(LOG, commit_path(last - 1))
        if path.startswith(prefix) and path.endswith(".parquet")
    ]
    if not paths:
        raise Halt(f"{storage.url}: checkpoint {last} of the table's log is missing")
    actions: list[Action] = []
    for path in paths:
        part = storage.parquet(path).read(columns=list(kinds))
        for kind in kinds:
            found = part[kind].drop_null().to_pylist(maps_as_pydicts="strict")
            actions += ({kind: action} for action in found)
    return last, actions


def _data_file(add: Mapping[str, Any]) -> DataFile:
    stats = json.loads(add.get("stats") or "{}")
    if "numRecords" not in stats:
        raise Halt(f"the table's log does not have the number of rows of {add['path']}")
    file = DataFile(add["path"], add["size"], stats["numRecords"], add["modificationTime"])
    return replace(file, vector=_vector(add))


def _vector(action: Mapping[str, Any]) -> VectorPlace | None:
    vector = action.get("deletionVector")
    if not vector:
        return None
    return VectorPlace(
        vector["storageType"],
        vector["pathOrInlineDv"],
        vector.get("offset") or 0,
        vector["sizeInBytes"],
        vector["cardinality"],
    )


def removals(storage: Storage) -> dict[str, int]:
    """Return data files and files of vectors that commits removed, and when last, in ms.

    Those that were removed a week before the newest checkpoint are no longer in the log.
    """
    version, actions = _checkpoint(storage, ["remove"])
    found: dict[str, int] = {}
    for _, more in [(version, actions), *commits(storage, version)]:
        for action in more:
            if remove := action.get("remove"):
                vector, when = _vector(remove), remove.get("deletionTimestamp") or 0
                paths = [remove["path"]]
                if vector and vector.storage == "u":
                    paths.append(vector.path)
                for path in paths:  # a checkpoint has them in any order
                    found[path] = max(when, found.get(path, 0))
    return found
