"""Checks that a change log is complete. Needs no Spark; takes 24 bytes of memory per change."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from spark_consumers.change_log.delta_commit import hopped_mark, partial_mark
from spark_consumers.change_log.delta_files import PLACE_COLUMNS, open_changelog, read_batches


@dataclass(frozen=True, slots=True)
class ChangeLogReport:
    """What a check found: `lost` and `repeated` count seqs, `out_of_order` adjacent changes."""

    changes: int
    lost: int
    repeated: int
    out_of_order: int


def check_changelog(
    target: str, storage_options: Mapping[str, str] | None = None
) -> ChangeLogReport:
    """Count changes of the log that are lost, repeated or out of order.

    The seqs of each shard must have no gap and no repeat, and offsets and times must rise with
    them. Gaps are no loss after a hop without marks, where rows read before the hop are left out,
    and in a shard of which the log has a key range only.
    """
    options = storage_options or {}
    table = open_changelog(target, options)
    seqs: dict[str, list[np.ndarray]] = {}
    for batch in read_batches(table, options, PLACE_COLUMNS):
        shards = batch["shard"].to_numpy(zero_copy_only=False)
        numbers = np.stack([batch[n].to_numpy() for n in ("seq", "offset", "timestamp_us")])
        for shard in set(shards):
            seqs.setdefault(str(shard), []).append(numbers[:, shards == shard])
    changes = lost = repeated = out_of_order = 0
    for shard, parts in seqs.items():
        seq, offset, time_us = _sorted_by_seq(parts)
        step = np.diff(seq)
        changes += len(seq)
        marks = (hopped_mark(shard), partial_mark(shard))
        if all(table.transaction_version(mark) is None for mark in marks):
            lost += int((step[step > 1] - 1).sum())
        repeated += int((step == 0).sum())
        fresh = step > 0
        backwards = (np.diff(offset) <= 0) | (np.diff(time_us) < 0)
        out_of_order += int((backwards & fresh).sum())
    return ChangeLogReport(changes, lost, repeated, out_of_order)


def _sorted_by_seq(parts: list[np.ndarray]) -> np.ndarray:
    numbers = np.concatenate(parts, axis=1)
    return numbers[:, np.argsort(numbers[0], kind="stable")]
