"""The merged order (timestamp_us, shard, offset), and the checks that it depends on."""

import heapq
from collections.abc import Iterable, Iterator
from typing import NamedTuple

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


def merge(streams: Iterable[Iterator[RawRecord]], frontier_us: int) -> Iterator[RawRecord]:
    """Yield the records of a batch in the merged order; each stream is the range of one shard.

    ProgressBroken when the times of a shard decrease, or a record is not older than the frontier
    of the batch: its progress was wrong, and the order cannot be kept.
    """
    checked = [_checked(stream, frontier_us) for stream in streams]
    return checked[0] if len(checked) == 1 else heapq.merge(*checked)


def _checked(stream: Iterator[RawRecord], frontier_us: int) -> Iterator[RawRecord]:
    before_us = 0
    for record in stream:
        if not before_us <= record.timestamp_us < frontier_us:
            raise ProgressBroken(
                f"shard {record.shard}, offset {record.offset}, seq {record.seq}: time "
                f"{record.timestamp_us} us is not in [{before_us}, {frontier_us}), as "
                f"the previous record and the progress of the shard imply",
            )
        before_us = record.timestamp_us
        yield record
