"""The merge of a batch record by record, for tests of the order alone."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TypeVar

from topics.reading.merge import RawRecord, Run, RunMerge, Stretch, check_time

Item = TypeVar("Item")


def items_of(stretches: Iterable[Stretch[Sequence[Item]]]) -> list[Item]:
    """The rows of stretches that are sequences of objects."""
    return [item for rows, begin, end in stretches for item in rows[begin:end]]


def merge(streams: Iterable[Iterator[RawRecord]], frontier_us: int) -> Iterator[RawRecord]:
    """Yield the records of a batch in the merged order; each stream is the range of one shard.

    ProgressBroken as of `check_time`.
    """
    runs: dict[str, Iterator[Run[Sequence[RawRecord]]]] = {}
    for stream in streams:
        for first in stream:
            runs[first.shard] = _runs_of_one(chain((first,), stream), frontier_us)
            break
    merged = RunMerge(runs)
    while taken := merged.take(1):
        yield from items_of(taken)


def _runs_of_one(
    records: Iterable[RawRecord], frontier_us: int
) -> Iterator[Run[Sequence[RawRecord]]]:
    before_us = 0
    for record in records:
        check_time(record, before_us, frontier_us)
        before_us = record.timestamp_us
        yield (record,), (before_us,)
