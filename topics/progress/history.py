"""Searches the progress topic of a shard: by time, by position, and at its ends."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from event_token import ShardPosition
from topics.errors import LogShrank
from topics.kafka.lookups import (
    Exists,
    Lookup,
    OffsetAt,
    RecordRange,
    bounds,
    first_between,
    last_between,
    next_of,
)
from topics.kafka.partition_reader import GONE_S, StoredRecord
from topics.names import ShardTopics
from topics.progress.codec import decode_progress
from topics.progress.record import (
    CLOCK_AHEAD_US_MAX,
    MarkKind,
    Progress,
    begins_us,
    ordered_from_seq,
)
from topics.records.envelope import read_envelope
from topics.records.table_shape import SchemaIds
from topics.records.vevent import TYPES_BY_INDEX, EventType

# Steps back grow, so that a position far behind costs a handful of reads.
_STEP_FIRST: Final = 64
_STEP_GROWTH: Final = 8

_START_AGAIN: Final = "Start again from earliest, and treat the records between as lost"


@dataclass(frozen=True, slots=True)
class ProgressAt:
    """A progress record and its offset in the progress topic."""

    offset: int
    progress: Progress


# Looks up the next progress record; None at the end.
NextProgress = Callable[[], Lookup[ProgressAt | None]]


class ProgressHistory:
    """Look-ups in the progress topic and the log of one shard, as they are on Kafka now.

    `Lookups` answers them: those of many shards at once.
    """

    def __init__(self, keyspace: str, shard: str, schema_ids: SchemaIds) -> None:
        """Name the shard."""
        self.topics = ShardTopics(keyspace, shard)
        self._schema_ids = schema_ids

    def exists(self, gone_s: float = GONE_S) -> Lookup[bool]:
        """Return whether the progress topic exists: not, if brokers have said so for `gone_s`."""
        found: bool = yield Exists(self.topics.progress, gone_s)
        return found

    def log_start(self) -> Lookup[int]:
        """Return the first offset that the shard log still has."""
        start, _ = yield from bounds(self.topics.log)
        return start

    def last(self) -> Lookup[ProgressAt | None]:
        """Return the newest record."""
        topic = self.topics.progress
        start, end = yield from bounds(topic)
        record = yield from last_between(topic, start, end)
        return None if record is None else self._decoded(record)

    def last_if_any(self) -> Lookup[ProgressAt | None]:
        """Return the newest record; None, too, where the topic does not exist."""
        exists = yield from self.exists()
        return (yield from self.last()) if exists else None

    def records(self, start_offset: int = 0) -> Lookup[NextProgress]:
        """Return what looks up the records from an offset of the topic to its current end."""
        topic = self.topics.progress
        start, end = yield from bounds(topic)
        records = RecordRange(topic, max(start, start_offset), end)

        def next_progress() -> Lookup[ProgressAt | None]:
            record = yield from next_of(records)
            return None if record is None else self._decoded(record)

        return next_progress

    def first(self, start_offset: int = 0) -> Lookup[ProgressAt | None]:
        """Return the first record from an offset of the topic on."""
        next_progress = yield from self.records(start_offset)
        return (yield from next_progress())

    def offset_for_time(self, time_us: int) -> Lookup[int]:
        """Return an offset from which all progress of records of that time or later follows.

        The head (watermark) of the record there is so much older that everything below is older
        than the time, unless it is the first record of the topic.
        """
        wanted_us = max(0, time_us - CLOCK_AHEAD_US_MAX)
        return (
            yield from self._step_back(wanted_us, lambda progress: progress.head_us <= wanted_us)
        )

    def offset_for_position(self, at: ShardPosition, frontier_us: int) -> Lookup[int]:
        """Return the offset from which a planner at a position with this frontier can continue.

        A reader positioned right after a mark must see that mark again, no matter how old it is:
        after an END nothing else shows that the shard has ended.
        """
        wanted_us = max(0, frontier_us - CLOCK_AHEAD_US_MAX)
        is_behind_mark = yield from self._is_behind_mark(at)
        first_seq_max = at.seq + (not is_behind_mark)

        def is_early(progress: Progress) -> bool:
            known_from = ordered_from_seq(progress)
            return known_from <= at.seq + 1 and progress.first_seq <= first_seq_max

        return (yield from self._step_back(wanted_us, is_early))

    def check_same_log(self, at: ShardPosition, frontier_us: int) -> Lookup[None]:
        """Raise LogShrank when the log is another one than that of a position, or ends before it.

        A topic that was deleted and filled again may have other records under the same seqs and
        offsets: then the time of its first record shows it, unless retention removed that, or the
        position has no token. A log that `topics reset` has emptied never takes an offset again.
        """
        if at.seq == 0:
            yield from self._check_unread(at, frontier_us)
            return
        topic = self.topics.log
        start, end = yield from bounds(topic)
        first = yield from first_between(topic, start, end)
        # Progress may be readable before its rows. The log's reader waits for them, or stops.
        is_readable = at.offset <= end
        below = (yield from last_between(topic, start, at.offset)) if is_readable else None
        last = yield from self.last()
        ends_at = 0 if last is None else last.progress.last_seq
        if ends_at < at.seq:
            found = f"it ends with seq {ends_at}"
        elif below is not None and self._seq_and_time(below)[0] != at.seq:
            found = f"seq {self._seq_and_time(below)[0]} is the last one below that offset"
        elif is_readable and not below and first and self._seq_and_time(first)[0] <= at.seq:
            found = f"it begins with seq {self._seq_and_time(first)[0]} at offset {first.offset}"
        else:
            self._check_first(at, first)
            return
        raise LogShrank(
            f"{topic}: the position has read seq {at.seq} below offset {at.offset}, but {found}: "
            f"the log was recreated. {_START_AGAIN}"
        )

    def _check_unread(self, at: ShardPosition, frontier_us: int) -> Lookup[None]:
        """Raise LogShrank when a log of which nothing was read was started over since.

        A position at a log's beginning has a frontier that is not older than the log.
        """
        log_start = yield from self.log_start()
        if at.offset >= log_start:
            return
        first = yield from self.first()
        first_us = None if first is None else begins_us(first.progress)
        if first_us is not None and first_us > frontier_us:
            raise LogShrank(
                f"{self.topics.log}: the position has read nothing of it up to {frontier_us} us, "
                f"and it begins at {first_us} us: the log was recreated. {_START_AGAIN}"
            )

    def _check_first(self, at: ShardPosition, first: StoredRecord | None) -> None:
        read_us = None if at.token is None else at.token.timestamp_us
        if first is None or read_us is None:
            return  # the reader of the log reports a log without records
        seq, timestamp_us = self._seq_and_time(first)
        if seq == 1 and timestamp_us > read_us:
            raise LogShrank(
                f"{self.topics.log}: its first record, of {timestamp_us} us, is newer than what "
                f"the position has read, up to {read_us} us: the log was recreated. {_START_AGAIN}"
            )

    def _seq_and_time(self, record: StoredRecord) -> tuple[int, int]:
        value = record.value or b""
        _, seq, timestamp_us, _ = read_envelope(value, self.topics.log, record.offset)
        return seq, timestamp_us

    def _is_behind_mark(self, at: ShardPosition) -> Lookup[bool]:
        """Return whether the last record below a position is a mark; True where it is not readable.

        Commit markers and aborted transactions may lie between that record and the position: a cut
        is at the record that follows.
        """
        if at.seq == 0:
            return False
        start, end = yield from bounds(self.topics.log)
        below = yield from last_between(self.topics.log, start, min(at.offset, end))
        if below is None:
            return True  # retention has removed it
        type_index, seq, _, _ = read_envelope(below.value or b"", self.topics.log, below.offset)
        # Progress may be readable before its rows: then an earlier record is the last one.
        return seq != at.seq or TYPES_BY_INDEX[type_index] is EventType.JOURNAL

    def mark_of(
        self, kind: MarkKind, reshard_id: str, hop_time_us: int
    ) -> Lookup[ProgressAt | None]:
        """Return the record with the END or BEGIN of a switched reshard, None if there is none.

        END may lie long before the hop time if that of another source came much later.
        """
        offset, upper = (yield from self.offset_for_time(hop_time_us)), None
        step = _STEP_FIRST
        while True:
            next_progress = yield from self.records(offset)
            while (found := (yield from next_progress())) is not None:
                if upper is not None and found.offset >= upper:
                    break
                mark = found.progress.mark
                if mark is not None and (mark.kind, mark.reshard_id) == (kind, reshard_id):
                    return found
                if kind is MarkKind.END and found.progress.head_us > hop_time_us:
                    break
            if kind is MarkKind.BEGIN or offset == 0:
                return None
            upper, offset = offset, max(0, offset - step)
            step *= _STEP_GROWTH

    def reaches_back_to(self, time_us: int) -> Lookup[bool]:
        """Return whether all progress of records of that time or later is still there."""
        offset = yield from self.offset_for_time(time_us)
        first = yield from self.first(offset)
        long_ago_us = time_us - CLOCK_AHEAD_US_MAX
        if first is None or first.progress.head_us <= long_ago_us:
            return True
        first_us = begins_us(first.progress)
        return first_us is not None and first_us <= time_us

    def _step_back(self, wanted_us: int, is_early: Callable[[Progress], bool]) -> Lookup[int]:
        """Step back from the first record with that head until one is early enough."""
        topic = self.topics.progress
        start, end = yield from bounds(topic)
        # Kafka matches commit markers too, which carry the broker's clock: it may be early.
        found: int = yield OffsetAt(topic, wanted_us // 1_000)
        offset = max(start, min(end, found if found >= 0 else end))
        step = _STEP_FIRST
        while offset > start:
            first = yield from self.first(offset)
            if first is not None and is_early(first.progress):
                break
            offset = max(start, offset - step)
            step *= _STEP_GROWTH
        return offset

    def _decoded(self, record: StoredRecord) -> ProgressAt:
        where = f"{self.topics.progress}, offset {record.offset}"
        return ProgressAt(record.offset, decode_progress(record.value, self._schema_ids, where))
