"""What a table needs from time to time: checkpoints of its log, more buckets, a vacuum."""

import time
from collections.abc import Mapping

from deltalake import DeltaTable

from spark_consumers.current_state.log import BUCKETS_SETTING, LOG, Snapshot, removals
from spark_consumers.current_state.storage import Storage, written_by_delta_rs

# A reader replays the commits since the last checkpoint.
CHECKPOINT_COMMITS = 100
# Younger files that no version has may be of a batch that is being written.
STAGED_S_MAX = 24 * 3600
# Twice what a bucket should have: a rewrite of one then still fits a worker's memory.
BUCKET_BYTES_MAX = 128 * 1024 * 1024


def after_commit(storage: Storage, snapshot: Snapshot) -> None:
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
    newest = Snapshot().newest(storage)
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
