"""A version of a table, as its log tells: schema, data files, deletion vectors and marks.

The log is read here because delta-rs does not tell where a file's deletion vector lies.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import pyarrow as pa
from deltalake import Schema

from event_token.errors import Halt
from spark_consumers.current_state.storage import Storage
from spark_consumers.current_state.vectors import VectorPlace

Action = dict[str, Any]
LOG = "_delta_log"
# The first letters of files: of rows by bucket, and of rows of a history that have been closed.
BUCKET, CLOSED = "b", "c"
_NAME = re.compile(f"([{BUCKET}{CLOSED}])([0-9]+)of([0-9]+)-")
BUCKETS_SETTING = "shardstream.buckets"
# What a version consists of.
KINDS = ("add", "txn", "metaData", "protocol")
# What a table may ask of its readers and writers; delta-rs lists some that it does not use.
FEATURES = frozenset({"deletionVectors", "timestampNtz", "appendOnly", "invariants", "variantType"})
# Number of requests at once for the log of a table on an object store.
READERS = 16
# Commits that are read one after the other before the log is listed.
NEXT_MAX = 8


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
class Snapshot:
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

    @property
    def has_vectors(self) -> bool:
        """Whether rows are deleted by vectors; otherwise files are rewritten."""
        return "deletionVectors" in (self.protocol.get("writerFeatures") or ())

    def applied(self, version: int, actions: Iterable[Action]) -> "Snapshot":
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
        return Snapshot(version, metadata, protocol, files, marks, closed)

    def newest(self, storage: Storage) -> "Snapshot":
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
        raise Halt(f"the table's log does not tell how many rows {add['path']} has")
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
