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
from dataclasses import dataclass, field, replace

from pyroaring import BitMap64

from event_token.errors import Halt
from spark_consumers.current_state.copy_on_write import commit_by_delta_rs
from spark_consumers.current_state.log import (
    Action,
    DataFile,
    Snapshot,
    commit_path,
    commits,
    parsed,
    serialized,
)
from spark_consumers.current_state.storage import Storage
from spark_consumers.current_state.stored_table import Staged, StoredTable
from spark_consumers.current_state.upkeep import after_commit
from spark_consumers.current_state.vectors import write_vectors
from spark_consumers.errors import LakeConflict, StaleBatch

# The marks that fence; the rest of the name is the id of a query.
QUERY_MARK = "shardstream.query."
COMMIT_ID = "shardstream.commit"
# Commits of others that come between are rare: more in a row are somebody who works on the table.
TRIES = 5


@dataclass(frozen=True, slots=True)
class Entry:
    """What a commit says beside its rows: marks, and texts for its `commitInfo`."""

    marks: Mapping[str, int] = field(default_factory=dict)
    info: Mapping[str, str] = field(default_factory=dict)


def commit(table: StoredTable, staged: Sequence[Staged], entry: Entry) -> int:
    """Commit what the tasks of a batch staged; return the new version, where `table` then stands.

    LakeConflict: another driver writes to the table. StaleBatch: run the batch again.
    """
    storage = table.storage
    table.refresh()
    base = min((task.version for task in staged), default=table.snapshot.version)
    commit_id = str(uuid.uuid4())
    info = {COMMIT_ID: commit_id, **entry.info}
    for _ in range(TRIES):
        snapshot = table.snapshot
        _check_fence(storage, base, snapshot, entry)
        version = snapshot.version + 1
        actions = _actions(table, staged, entry)
        if snapshot.has_vectors:
            is_done = storage.create(commit_path(version), serialized([*actions, _told(info)]))
        else:
            is_done = commit_by_delta_rs(storage, snapshot, actions, info)
        table.refresh()
        # After a lost answer the client repeats a request, and then meets our own commit.
        if is_done or _is_of(storage, version, commit_id):
            after_commit(storage, table.snapshot)
            return version
        base = snapshot.version
    raise Halt(
        f"{storage.url}: {TRIES} commits in a row by another program came before that of a batch"
    )


def _check_fence(storage: Storage, base: int, snapshot: Snapshot, entry: Entry) -> None:
    for mark, batch in entry.marks.items():
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


def _actions(table: StoredTable, staged: Sequence[Staged], entry: Entry) -> list[Action]:
    storage, snapshot = table.storage, table.snapshot
    now_ms = int(time.time() * 1000)
    actions: list[Action] = [
        {"txn": {"appId": mark, "version": version, "lastUpdated": now_ms}}
        for mark, version in entry.marks.items()
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


def _check_once(storage: Storage, staged: Sequence[Staged]) -> None:
    """No file may be rewritten by two tasks: its rows would be there twice."""
    paths = [path for task in staged for path in task.rewritten]
    touched = {path for task in staged for path in task.deleted}
    if len(paths) > len(set(paths)) or touched & set(paths):
        raise Halt(
            f"{storage.url}: tasks share files, which another program wrote: run the query once "
            f"with --partitions 1, which rewrites them"
        )


def _deleted(storage: Storage, snapshot: Snapshot, staged: Sequence[Staged]) -> dict[str, BitMap64]:
    """Return the rows that a batch deletes, by file."""
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


def _told(info: Mapping[str, str]) -> Action:
    told = {"timestamp": int(time.time() * 1000), "operation": "MERGE", **info}
    return {"commitInfo": told | {"engineInfo": "shardstream"}}


def _is_of(storage: Storage, version: int, commit_id: str) -> bool:
    actions = parsed(storage.read(commit_path(version)))
    return any(action.get("commitInfo", {}).get(COMMIT_ID) == commit_id for action in actions)
