"""Commits what tasks staged: one file of vectors, one entry in the table's log.

The entry is written only if there is none of its version. The marks (`txn`) of queries fence: where
one has moved since the tasks read the table, another driver writes to it. A commit that moves none
is built upon (ALTER TABLE), or, where it rewrote a file that the batch changes (OPTIMIZE), the
batch runs again.
"""

import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from deltalake import DeltaTable
from pyroaring import BitMap64

from event_token.errors import Halt
from sinks.errors import LakeConflict, StaleBatch
from sinks.lake.delta.log import (
    BUCKETS_SETTING,
    LOG,
    QUERY_MARK,
    Action,
    DataFile,
    TableVersion,
    commit_path,
    commits,
    parsed,
    removals,
    serialized,
    write_vectors,
)
from sinks.lake.delta.storage import Storage, written_by_delta_rs
from sinks.lake.delta.stored_table import StagedFiles, StoredTable

# A reader replays the commits since the last checkpoint.
CHECKPOINT_COMMITS = 100
# Younger files that no version has may be of a batch that is being written.
STAGED_S_MAX = 24 * 3600
# Twice what a bucket should have: a rewrite of one then still fits a worker's memory.
BUCKET_BYTES_MAX = 128 * 1024 * 1024


def after_commit(storage: Storage, snapshot: TableVersion) -> None:
    """Write a checkpoint when it is due, and double the buckets of a table that has grown."""
    if snapshot.version % CHECKPOINT_COMMITS:
        return
    options = storage.options
    table = DeltaTable(storage.url, snapshot.version, storage_options=options)
    with written_by_delta_rs(storage.url):
        table.create_checkpoint()
    live_bytes = sum(f.size * (f.rows - f.dead) // max(f.rows, 1) for f in snapshot.files.values())
    if live_bytes > BUCKET_BYTES_MAX * snapshot.buckets:
        double_buckets(storage.url, options)


def double_buckets(url: str, options: Mapping[str, str]) -> None:
    """Double the number of buckets; files are divided when they are rewritten next."""
    table = DeltaTable(url, storage_options=dict(options))
    buckets = int(table.metadata().configuration[BUCKETS_SETTING])
    doubled = {BUCKETS_SETTING: str(2 * buckets)}
    with written_by_delta_rs(url):
        table.alter.set_table_properties(doubled, raise_if_not_exists=False)


def vacuum(url: str, options: Mapping[str, str], since_s: float) -> list[str]:
    """Delete files that no version since a time has; return their paths.

    It is at most a week ago: see `log.removals`. Commits go that are older than the table's setting
    `delta.logRetentionDuration`, 30 days by default. Readers of older versions would miss what is
    deleted. Files that no version ever had are deleted once they are STAGED_S_MAX old as well.
    """
    storage = Storage(url, options)
    removed = removals(storage)
    in_use = {path for path, when in removed.items() if when / 1000 >= since_s}
    staged_since_s = min(since_s, time.time() - STAGED_S_MAX)
    newest = TableVersion().newest(storage)
    if newest.version < 0:
        return []
    for file in (*newest.files.values(), *newest.closed.values()):
        in_use.add(file.path)
        if file.vector and file.vector.storage == "u":
            in_use.add(file.vector.path)
    unused = [
        path
        for path, modified in storage.names()
        if path not in in_use
        and not path.startswith(f"{LOG}/")
        and modified.timestamp() < (since_s if path in removed else staged_since_s)
    ]
    storage.delete(unused)
    with written_by_delta_rs(url):
        DeltaTable(url, storage_options=dict(options)).cleanup_metadata()
    return unused


COMMIT_ID = "shardstream.commit"
# Commits of others that come between are rare: more in a row are somebody who works on the table.
TRIES = 5


def commit(
    table: StoredTable,
    staged: Sequence[StagedFiles],
    marks: Mapping[str, int] | None = None,
    info: Mapping[str, str] | None = None,
) -> int:
    """Commit what the tasks of a batch staged; return the new version, where `table` then stands.

    `marks`: those that the commit moves. `info`: texts for its `commitInfo`.

    LakeConflict: another driver writes to the table. StaleBatch: run the batch again.
    """
    storage = table.storage
    table.refresh()
    base = min((task.version for task in staged), default=table.snapshot.version)
    commit_id = str(uuid.uuid4())
    info = {COMMIT_ID: commit_id, **(info or {})}
    marks = marks or {}
    for _ in range(TRIES):
        snapshot = table.snapshot
        _check_fence(storage, base, snapshot, marks)
        version = snapshot.version + 1
        actions = _actions(table, staged, marks)
        is_done = storage.create(commit_path(version), serialized([*actions, _commit_info(info)]))
        table.refresh()
        # After a lost answer the client repeats a request, and then meets our own commit.
        if is_done or _is_of(storage, version, commit_id):
            after_commit(storage, table.snapshot)
            return version
        base = snapshot.version
    raise Halt(
        f"{storage.url}: {TRIES} commits in a row by another program came before that of a batch"
    )


def _check_fence(
    storage: Storage, base: int, snapshot: TableVersion, marks: Mapping[str, int]
) -> None:
    for mark, batch in marks.items():
        stored = snapshot.marks.get(mark)
        if mark.startswith(QUERY_MARK) and stored is not None and stored >= batch:
            raise LakeConflict(
                f"{storage.url}: batch {batch} of query {mark.removeprefix(QUERY_MARK)} is in the "
                f"table already: another driver runs the same query, or its checkpoint was restored"
            )
    # Nearly always nothing came between, and a long log is not listed.
    newer = commits(storage, base) if snapshot.version > base else ()
    for version, actions in newer:
        for mark in (action["txn"]["appId"] for action in actions if "txn" in action):
            if mark.startswith(QUERY_MARK):
                raise LakeConflict(
                    f"{storage.url}: query {mark.removeprefix(QUERY_MARK)} committed version "
                    f"{version} while a batch was planned: only one query may write to a table"
                )


def _actions(
    table: StoredTable, staged: Sequence[StagedFiles], marks: Mapping[str, int]
) -> list[Action]:
    storage, snapshot = table.storage, table.snapshot
    now_ms = int(time.time() * 1000)
    actions: list[Action] = [
        {"txn": {"appId": mark, "version": version, "lastUpdated": now_ms}}
        for mark, version in marks.items()
    ]
    _check_once(storage, staged)
    for task in staged:
        for path, dead in task.rewritten.items():
            file = snapshot.files.get(path) or snapshot.closed.get(path)
            if file is None or file.dead != dead:
                raise StaleBatch(f"{storage.url}: another program changed {path} meanwhile")
            actions.append(file.removal(now_ms, data_change=task.data_change))
        actions += [file.action(data_change=task.data_change) for file in task.added]
    deleted = _deleted(storage, snapshot, staged)
    files = [snapshot.files[path] for path in deleted]
    actions += [file.removal(now_ms, data_change=True) for file in files]
    left = _with_vectors(table, files, deleted)
    return actions + [file.action(data_change=True) for file in left]


def _check_once(storage: Storage, staged: Sequence[StagedFiles]) -> None:
    """No file may be rewritten by two tasks: its rows would be there twice."""
    paths = [path for task in staged for path in task.rewritten]
    touched = {path for task in staged for path in task.deleted}
    if len(paths) > len(set(paths)) or touched & set(paths):
        raise Halt(
            f"{storage.url}: tasks share files, which another program wrote: run the query once "
            f"with --partitions 1, which rewrites them"
        )


def _deleted(
    storage: Storage, snapshot: TableVersion, staged: Sequence[StagedFiles]
) -> dict[str, BitMap64]:
    found: dict[str, BitMap64] = defaultdict(BitMap64)
    for task in staged:
        for path, rows in task.deleted.items():
            if path not in snapshot.files:
                raise StaleBatch(f"{storage.url}: another program rewrote {path} meanwhile")
            found[path] |= BitMap64.deserialize(rows)
    return found


def _with_vectors(
    table: StoredTable, files: Sequence[DataFile], deleted: Mapping[str, BitMap64]
) -> Iterator[DataFile]:
    """Return the files with vectors of their deleted rows; a file without live rows is left out."""
    before = table.dead(files)
    dead = {f.path: before.get(f.path, BitMap64()) | deleted[f.path] for f in files}
    left = [file for file in files if len(dead[file.path]) < file.rows]
    vectors = write_vectors(table.storage, {file.path: dead[file.path] for file in left})
    return (replace(file, vector=vectors[file.path]) for file in left)


def _commit_info(info: Mapping[str, str]) -> Action:
    common = {"timestamp": int(time.time() * 1000), "operation": "MERGE"}
    return {"commitInfo": {**common, **info, "engineInfo": "shardstream"}}


def _is_of(storage: Storage, version: int, commit_id: str) -> bool:
    actions = parsed(storage.read(commit_path(version)))
    return any(action.get("commitInfo", {}).get(COMMIT_ID) == commit_id for action in actions)
