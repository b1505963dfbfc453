"""Removes what a target does not need any more: old tombstones, files that no version uses."""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import pyarrow.compute as pc

from event_token.errors import Retry, ShardstreamError, UsageError
from spark_consumers.applying.changes import DELETED, TIME
from spark_consumers.current_state.commit import TRIES, Entry, commit
from spark_consumers.current_state.create import open_table
from spark_consumers.current_state.query.frontiers import Frontiers
from spark_consumers.current_state.query.layout import FRONTIERS, place_of
from spark_consumers.current_state.upkeep import vacuum
from spark_consumers.errors import LakeConflict, StaleBatch

# For as long Delta's checkpoints tell which files were removed, and when.
KEEP_S_MAX = 7 * 24 * 3600
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Removed:
    """What was removed from one table; `frontiers`: from that of the frontiers alone."""

    table: str
    tombstones: int
    files: int
    frontiers: int = 0


def maintain_state(
    target: str,
    *,
    tombstones_s: int,
    keep_s: int,
    storage_options: Mapping[str, str] | None = None,
) -> list[Removed]:
    """Remove old tombstones, frontiers and files; a query may write to the target meanwhile.

    Tombstones of deletions of more than `tombstones_s` seconds ago are removed: a change from
    before such a deletion that arrives later is applied again. Frontiers go that were written
    more than `keep_s` seconds ago, but the newest, and files that no version since then has; who
    reads an older version misses them. Commits in logs go after 30 days. UsageError: there is no
    current state at `target`, or `keep_s` is longer than KEEP_S_MAX.
    """
    if keep_s > KEEP_S_MAX:
        raise UsageError(
            f"--keep {keep_s} s: at most {KEEP_S_MAX} s (7d): after that, the logs of the tables "
            f"do not tell which versions had a file"
        )
    target, storage = target.rstrip("/"), dict(storage_options or {})
    frontiers = Frontiers(target, storage)
    newest = frontiers.newest()
    if newest is None:
        raise UsageError(f"{target} holds no current state: name the target of `shardstream state`")
    since_s = time.time() - keep_s
    before_us = int((time.time() - tombstones_s) * 1_000_000)
    # Before the files that they need. The query may join the files of frontiers meanwhile.
    prune = partial(frontiers.prune, int(since_s * 1_000_000))
    pruned, joined = _tried(prune, Retry)
    if newest.written_us is not None:
        # A table may have been rewritten after it, for a column that was dropped; the times of
        # removals are whole milliseconds.
        since_s = min(since_s, newest.written_us // 1_000 / 1_000)
    found = [Removed(FRONTIERS, 0, joined, pruned)]
    for place in (place_of(target, name) for name in sorted(newest.visible)):
        # A batch, or an OPTIMIZE, may be committed meanwhile.
        remove = partial(_remove_tombstones, place.hidden, storage, before_us)
        tombstones = _tried(remove, LakeConflict, StaleBatch)
        urls = [place.hidden, place.visible]
        if place.history_name in newest.tables:
            urls.append(place.history)
        files = [path for url in urls for path in vacuum(url, storage, since_s)]
        found.append(Removed(f"{place.database}.{place.table}", tombstones, len(files)))
    return found


def _tried(attempt: Callable[[], _T], *conflicts: type[ShardstreamError]) -> _T:
    """Return what one of TRIES attempts returns: another program may write at the same moment."""
    for _ in range(TRIES - 1):
        with suppress(*conflicts):
            return attempt()
    return attempt()


def _remove_tombstones(url: str, storage: Mapping[str, str], before_us: int) -> int:
    table = open_table(url, storage)
    if table is None:
        return 0
    stored = table.everything(range(table.snapshot.buckets))
    rows = table.read(stored, (DELETED, TIME))
    is_old = pc.and_(rows[DELETED], pc.less(rows[TIME], before_us)).to_numpy()
    if is_old.any():
        gone = table.stage(stored.where(is_old), table.schema.empty_table(), compact=False)
        commit(table, [gone], Entry())
    return int(is_old.sum())
