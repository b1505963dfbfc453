"""The merged order (timestamp_us, shard, offset), and the checks that it depends on."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from heapq import heappop, heappush, heapreplace
from typing import Generic, NamedTuple, TypeVar

from topics.errors import LogGap, LogRepeat, ProgressBroken


class RawRecord(NamedTuple):
    """A raw record of a shard log, with the part of its envelope that orders it.

    The first three fields are the merged order, so records compare as tuples.
    """

    timestamp_us: int
    shard: str
    offset: int
    seq: int
    last: bool  # ends its MySQL transaction
    timestamp_ms: int  # of the Kafka record
    key: bytes | None
    value: bytes


class SeqChecker:
    """Checks that the records of one shard log come without gap or repeat."""

    def __init__(self, topic: str, next_seq: int) -> None:
        """Expect `next_seq` first."""
        self.topic = topic
        self.next_seq = next_seq

    def check(self, seq: int, offset: int) -> None:
        """Take the next record's seq. LogGap or LogRepeat when it is not the one expected."""
        if seq != self.next_seq:
            raise seq_error(f"{self.topic}, offset {offset}", self.next_seq, seq)
        self.next_seq = seq + 1


def seq_error(where: str, expected: int, seq: int) -> LogGap | LogRepeat:
    """Return the error for a record whose seq is not the expected one."""
    found = f"{where}: seq {seq} where {expected} must be"
    if seq > expected:
        return LogGap(f"{found}: {seq - expected} records are missing from the log")
    return LogRepeat(f"{found}: the log repeats a record")


def check_time(record: RawRecord, before_us: int, frontier_us: int) -> None:
    """ProgressBroken unless a record is not older than the one before it, but than the batch's end.

    Otherwise the progress of its shard was wrong, and the order cannot be kept.
    """
    if not before_us <= record.timestamp_us < frontier_us:
        raise ProgressBroken(
            f"shard {record.shard}, offset {record.offset}, seq {record.seq}: time "
            f"{record.timestamp_us} us is not in [{before_us}, {frontier_us}), as "
            f"the previous record and the progress of the shard imply",
        )


Rows = TypeVar("Rows")
# Successive rows of one shard, and their times.
Run = tuple[Rows, Sequence[int]]
# Some rows of a run: the index of the first, and one past that of the last.
Stretch = tuple[Rows, int, int]


class RunMerge(Generic[Rows]):
    """Merges the runs of shards into the order (timestamp_us, shard, offset).

    Works on stretches of runs, not on single rows: shards rarely take turns row by row.
    """

    def __init__(self, streams: Mapping[str, Iterator[Run[Rows]]]) -> None:
        """Each stream yields the runs of one shard, in order; it is read when it is needed."""
        self._streams = [streams[shard] for shard in sorted(streams)]
        self._runs: list[Run[Rows] | None] = [None] * len(self._streams)
        self._at = [0] * len(self._streams)
        self._ended = list(range(len(self._streams)))  # those whose next run is to be read
        self._heads: list[tuple[int, int]] = []  # a heap of (time of the next row, stream)

    def take(self, rows_max: int) -> list[Stretch[Rows]]:
        """Return the next rows: none at the end, else at least one.

        An error of a stream is raised when all that comes before it has been taken.
        """
        self._read_on()
        taken: list[Stretch[Rows]] = []
        left = rows_max
        while self._heads and not self._ended and left > 0:
            left -= self._take_stretch(taken, left)
        return taken

    def _read_on(self) -> None:
        """Read the next runs of the streams whose runs are used up."""
        while self._ended:
            i = self._ended[-1]
            run = next(self._streams[i], None)
            self._ended.pop()
            if run is not None:
                self._runs[i], self._at[i] = run, 0
                heappush(self._heads, (run[1][0], i))

    def _take_stretch(self, taken: list[Stretch[Rows]], rows_max: int) -> int:
        """Take the rows of the least stream up to the head of the next one; return their number."""
        heads = self._heads
        _, i = heads[0]
        run = self._runs[i]
        if run is None:
            raise ValueError("a stream has a head, but no run")
        rows, times_us = run
        begin, end = self._at[i], len(times_us)
        if len(heads) > 1:
            next_us, other = min(heads[1:3])
            find = bisect_right if i < other else bisect_left
            end = find(times_us, next_us, begin)
        end = min(end, begin + rows_max)
        taken.append((rows, begin, end))
        self._at[i] = end
        if end < len(times_us):
            heapreplace(heads, (times_us[end], i))
        else:
            heappop(heads)
            self._ended.append(i)
        return end - begin
