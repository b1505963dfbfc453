"""Reads planned ranges of one shard log, up to the last planned seq.

Commit markers reach partitions one by one, so progress may be readable before its rows: at the end
of the partition, the reader waits for the rest of the range.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from event_token import StreamPosition
from topics.errors import (
    CorruptRecord,
    LogGap,
    LogShrank,
    PositionTooOld,
    ReaderClosed,
    RowsNotReadable,
)
from topics.kafka.client import ClientConfig, Deadline
from topics.kafka.consumer import OffsetOutOfRangeError
from topics.kafka.record_parts import JoinedMessage, Part, PartJoiner, part_of
from topics.names import ShardTopics
from topics.reading.merge import RawRecord, Run, SeqChecker, check_time
from topics.reading.planner import ShardRange
from topics.records.envelope import read_envelope, read_seq
from topics.records.event_decoder import ANY_TIME, EventDecoder, Expected, LogRows
from topics.records.vevent import VEvent
from topics.stream.log_fetcher import FETCHERS_MAX, Fetched, FetchedLog, LogFetcher

# Markers arrive within milliseconds of each other; a broker restart takes some seconds.
ROWS_WAIT_S: Final = 60.0
# How soon a reader notices `stop`.
POLL_S: Final = 0.1
# Messages per call to librdkafka: enough to amortise the call.
TAKE_MAX: Final = 1_000
# Events per run: those of a shard that wait for other shards are in memory.
RUN_ROWS_MAX: Final = 256
# The same of a run that is read for its records, which has no object for each row.
RECORD_RUN_ROWS_MAX: Final = TAKE_MAX
# Records of one shard log, and the offset of each.
Records = tuple[list[bytes], list[int]]


class ShardLogReader:
    """Reads ranges of one shard log. Consecutive ranges need no seek.

    No connection is made before the first read. Only `stop` may be called from other threads.
    LogGap or LogRepeat (Halt) when seqs are not consecutive, PositionTooOld (Halt) when retention
    has removed rows of the range, LogShrank (Halt) when the topic is gone or ends before them,
    RowsNotReadable (Retry) when they cannot be read within `rows_wait_s`; for records in parts what
    PartJoiner raises. Only a message that is not the row expected is asked whether it is a part.
    """

    def __init__(
        self,
        config: ClientConfig,
        keyspace: str,
        shard: str,
        *,
        fetcher: LogFetcher | None = None,
        rows_wait_s: float = ROWS_WAIT_S,
    ) -> None:
        """Name the shard. `fetcher`: of several logs, closed by its owner; None: one of its own."""
        self.shard = shard
        self.topic = ShardTopics(keyspace, shard).log
        self._config = config
        self._rows_wait_s = rows_wait_s
        self._owns_fetcher = fetcher is None
        self._fetcher = fetcher
        self._log = FetchedLog(self.topic)
        self._taken = self._log.messages
        self._seqs: SeqChecker | None = None
        self._next_offset = 0
        self._passed_retention = False
        self._stopped = False

    def seek(self, offset: int, next_seq: int) -> None:
        """Start prefetching at a position, so that a read there finds its rows.

        With a fetcher of several logs, from its next `start` on.
        """
        if self._fetcher is None:
            self._fetcher = LogFetcher(self._config)
        self._fetcher.follow(self._log, offset)
        if self._owns_fetcher:
            self._fetcher.start()
        self._taken.clear()
        self._seqs = SeqChecker(self.topic, next_seq)
        self._next_offset = offset
        self._passed_retention = False

    def read(self, part: ShardRange) -> Iterator[RawRecord]:
        """Yield the records of a range in order; the caller may stop at any record."""
        self._begin(part)
        for _ in range(part.rows):
            if not self._taken:
                self._take(part)
            self._join_first(part)
            yield self._checked(self._taken.popleft(), part)

    def runs(
        self,
        part: ShardRange,
        decoder: EventDecoder,
        frontier_us: int | None,
        *,
        as_records: bool = False,
    ) -> Iterator[Run[LogRows]]:
        """Yield the rows of a range in order, in runs of what can be read without waiting.

        `as_records`: as that of `EventDecoder.rows`. `frontier_us`: ProgressBroken when times
        decrease or reach it; None: of any time. An error is raised once the rows before it have
        been yielded.
        """
        self._begin(part)
        left, before_us = part.rows, 0
        to_us = ANY_TIME if frontier_us is None else frontier_us
        rows_max = RECORD_RUN_ROWS_MAX if as_records else RUN_ROWS_MAX
        while left > 0:
            if not self._taken:
                self._take(part)
            messages = list(islice(self._taken, min(left, rows_max)))
            rows = decoder.rows(
                self.shard,
                [message.value() or b"" for message in messages],
                [message.offset() or 0 for message in messages],
                Expected(part.last_seq - left + 1, part.end_offset, before_us, to_us),
                as_records=as_records,
            )
            count = len(rows.times_us)
            self._passed(messages[:count], part, left)
            left -= count
            if count == 0:
                if self._join_first(part):
                    continue
                rows = LogRows(self.shard, part.last_seq - left + 1, decoder, are_records=False)
                rows.add(self._odd_event(part, decoder, before_us, frontier_us))
                left -= 1
            before_us = rows.times_us[-1]
            yield rows, rows.times_us

    def _passed(self, messages: Sequence[Fetched], part: ShardRange, left: int) -> None:
        """Go past messages whose seqs and offsets are as expected."""
        if not messages:
            return
        self._pop(len(messages))
        self._open_seqs().next_seq = part.last_seq - left + 1 + len(messages)
        self._passed_retention = False
        self._next_offset = (messages[-1].offset() or 0) + 1

    def _odd_event(
        self,
        part: ShardRange,
        decoder: EventDecoder,
        before_us: int,
        frontier_us: int | None,
    ) -> VEvent:
        """Return the event of a record that is not a plain row, or raise what is wrong with it."""
        record = self._checked(self._taken.popleft(), part)
        if frontier_us is not None:
            check_time(record, before_us, frontier_us)
        return decoder.decode(record.value, self.shard, record.offset)

    def _checked(self, message: Fetched, part: ShardRange) -> RawRecord:
        """Return a record whose seq and offset are those expected."""
        value = message.value() or b""
        offset = message.offset() or 0
        _, seq, timestamp_us, last = read_envelope(value, self.topic, offset)
        self._check(seq, offset, part)
        return RawRecord(
            timestamp_us,
            self.shard,
            offset,
            seq,
            last,
            message.timestamp()[1],
            message.key(),
            value,
        )

    def ready(self, part: ShardRange) -> int:
        """Return how many records at the beginning of a range can be read without waiting."""
        self._begin(part)
        if not self._taken:
            self._take_more(part, 0)
        first = self._part_of(self._taken[0]) if self._taken else None
        if first is None:
            return min(len(self._taken), part.rows)
        # Of a record in parts all have to be there, unless it is refused.
        wanted = 1 if first.size > self._config.record_bytes_max else first.parts - first.number + 1
        if len(self._taken) < wanted:
            self._take_more(part, 0)
        return min(1, len(self._taken) // wanted, part.rows)

    def read_many(self, part: ShardRange, rows_max: int, bytes_max: int) -> Iterator[Records]:
        """Yield the records of a range in lists of at most `rows_max` and `bytes_max`.

        A record that is larger makes a list of its own. Of each chunk that Kafka's client returns,
        the seqs of the first and the last message are checked here; the caller, which decodes all
        of them, checks the rest.
        """
        self._begin(part)
        left, size = part.rows, 0
        records: list[bytes] = []
        offsets: list[int] = []
        while left > 0:
            if not self._taken:
                self._take(part)
            messages = self._pop(min(left, rows_max - len(records)))
            if not self._are_records(messages):
                messages = self._joined(messages, part, bytes_max)
            self._check_ends(messages, part)
            left -= len(messages)
            values = [message.value() or b"" for message in messages]
            chunk_offsets = [message.offset() or 0 for message in messages]
            chunk_size = sum(map(len, values))
            if size + chunk_size <= bytes_max:
                records += values
                offsets += chunk_offsets
                size += chunk_size
            else:
                for value, offset in zip(values, chunk_offsets, strict=True):
                    if records and size + len(value) > bytes_max:
                        yield records, offsets
                        records, offsets, size = [], [], 0
                    records.append(value)
                    offsets.append(offset)
                    size += len(value)
            if left == 0 or len(records) >= rows_max:
                yield records, offsets
                records, offsets, size = [], [], 0

    def _are_records(self, messages: Sequence[Fetched]) -> bool:
        """Return whether none is a part: their seqs fit their number, as a record has two parts."""
        try:
            first, last = [
                read_seq(message.value() or b"", self.topic, message.offset())
                for message in (messages[0], messages[-1])
            ]
        except CorruptRecord:
            return False
        return last - first == len(messages) - 1

    def _joined(
        self, messages: Sequence[Fetched], part: ShardRange, bytes_max: int
    ) -> list[Fetched]:
        """Return the records that messages just removed are of, until they have `bytes_max`."""
        last = messages[-1].offset() or 0
        self._taken.extendleft(reversed(messages))
        found: list[Fetched] = []
        size = 0
        while self._taken and (self._taken[0].offset() or 0) <= last and size < bytes_max:
            self._join_first(part)
            found.append(self._taken.popleft())
            size += len(found[-1].value() or b"")
        return found

    def _join_first(self, part: ShardRange) -> bool:
        """Join the parts of the record that comes next; return whether it is in parts.

        Waits for them. Nothing is removed before all are there, so that it may be tried again.
        """
        first = self._part_of(self._taken[0])
        if first is None:
            return False
        if self._passed_retention and first.number > 1:
            raise self._too_old(f"the first parts of seq {self._open_seqs().next_seq}")
        try:
            last, value = self._join_taken(part)
        except LogGap:
            if self._passed_retention:
                raise self._too_old(f"parts of seq {self._open_seqs().next_seq}") from None
            raise
        self._taken.appendleft(JoinedMessage(last, value))
        return True

    def _join_taken(self, part: ShardRange) -> tuple[Fetched, bytes]:
        """Remove the parts of a record; return the last one and the record. LogGap if one lacks."""
        joiner = PartJoiner(self.topic, self._config.record_bytes_max)
        value: bytes | None = None
        count = 0
        while value is None:
            if count == len(self._taken):
                self._take(part, count)
            message = self._taken[count]
            offset = message.offset() or 0
            found = self._part_of(message)
            if found is None:
                joiner.check_closed(offset)
            else:
                value = joiner.add(found, offset, message.key(), message.value() or b"")
            count += 1
        return self._pop(count)[-1], value

    def _part_of(self, message: Fetched) -> Part | None:
        headers = message.headers()
        if not headers:
            return None
        return part_of(headers, f"{self.topic}, offset {message.offset()}")

    def _too_old(self, removed: str) -> PositionTooOld:
        return PositionTooOld(
            f"{self.topic}: retention has removed {removed}. Start again from earliest"
        )

    def _pop(self, count: int) -> list[Fetched]:
        """Remove and return up to `count` of the messages at hand."""
        taken = self._taken
        if count >= len(taken):
            messages = list(taken)
            taken.clear()
            return messages
        return [taken.popleft() for _ in range(count)]

    def _check_ends(self, messages: Sequence[Fetched], part: ShardRange) -> None:
        self._check_one(messages[0], part)
        if len(messages) > 1:
            self._check_one(messages[-1], part, passed=len(messages) - 2)

    def _check_one(self, message: Fetched, part: ShardRange, *, passed: int = 0) -> None:
        seq = read_seq(message.value() or b"", self.topic, message.offset())
        self._check(seq, message.offset() or 0, part, passed)

    def _begin(self, part: ShardRange) -> None:
        if part.rows > 0 and (self._seqs is None or self._seqs.next_seq != part.first_seq):
            self.seek(part.start_offset, part.first_seq)

    def _check(self, seq: int, offset: int, part: ShardRange, passed: int = 0) -> None:
        """Check a record that follows `passed` others, which the caller checks."""
        seqs = self._open_seqs()
        if self._passed_retention and seq > seqs.next_seq:
            raise self._too_old(
                f"seq {seqs.next_seq} to {seq - 1}; the log begins with seq {seq} at offset "
                f"{offset}"
            )
        self._passed_retention = False
        seqs.next_seq += passed
        seqs.check(seq, offset)
        if offset >= part.end_offset:
            raise LogGap(
                f"{self.topic}: seq {seq} is at offset {offset}, but according to its progress "
                f"below {part.end_offset}: progress describes another log",
            )
        self._next_offset = offset + 1

    def _open_seqs(self) -> SeqChecker:
        if self._seqs is None:
            raise ReaderClosed(f"{self.topic}: the reader was closed")
        return self._seqs

    def _take_more(self, part: ShardRange, wait_s: float) -> None:
        """Take the messages that have come; wait for one up to `wait_s`."""
        if self._fetcher is None:
            raise ReaderClosed(f"{self.topic}: the reader was closed")
        try:
            self._fetcher.take(self._log, wait_s, TAKE_MAX)
        except OffsetOutOfRangeError as error:
            self._pass_retention(self._fetcher, part, error)

    def _take(self, part: ShardRange, at_hand: int = 0) -> None:
        """Wait for more messages than those at hand."""
        deadline = Deadline(self._rows_wait_s)
        while len(self._taken) <= at_hand:
            if self._stopped:
                raise ReaderClosed(f"{self.topic}: the reader was closed")
            self._take_more(part, POLL_S)
            if deadline.passed and len(self._taken) <= at_hand:
                raise RowsNotReadable(
                    f"{self.topic}: progress announces seq {part.last_seq} below offset "
                    f"{part.end_offset}, but nothing from offset {self._next_offset} on became "
                    f"readable within {self._rows_wait_s:g} s. {self._why_unreadable()}",
                )

    def _why_unreadable(self) -> str:
        throttle_s = 0.0 if self._fetcher is None else self._fetcher.throttle_s
        if throttle_s == 0:
            return "Is a broker down?"
        return (
            f"Brokers throttle this client (for {throttle_s:g} s): they never send "
            "what is larger than ten seconds of its quota. Raise its consumer_byte_rate, or have "
            "producers write less at a time (docs/operations.md, Quotas)"
        )

    def _pass_retention(
        self, fetcher: LogFetcher, part: ShardRange, error: OffsetOutOfRangeError
    ) -> None:
        """Continue at the log start; the next seq shows whether only markers were removed.

        Never before what has come: the error may be of an earlier place.
        """
        start, end = fetcher.bounds(self._log)
        if self._next_offset > end:
            raise LogShrank(
                f"{self.topic}: offset {self._next_offset} (seq {part.first_seq} to "
                f"{part.last_seq}) is beyond the log's end {end}: the log was truncated or "
                f"recreated. Start again from earliest, and treat the records between as lost",
            ) from error
        self._passed_retention |= start > self._log.next_offset
        fetcher.follow(self._log, max(start, self._log.next_offset))
        self._next_offset = max(start, self._next_offset)

    def stop(self) -> None:
        """End a waiting read, from any thread: it raises ReaderClosed."""
        self._stopped = True

    def close(self) -> None:
        """Fetch nothing more; nothing can be read afterwards."""
        self._stopped = True
        self._seqs = None
        self._taken.clear()
        fetcher, self._fetcher = self._fetcher, None
        if fetcher is not None:
            fetcher.leave(self._log)
            if self._owns_fetcher:
                fetcher.close()


class ShardLogs:
    """A reader per shard, and a few consumers for all; a hop replaces some readers."""

    def __init__(
        self, config: ClientConfig, keyspace: str, decoder: EventDecoder, *, as_records: bool
    ) -> None:
        """Read nothing before `follow`. `as_records`: as that of `EventDecoder.rows`."""
        self._config = config
        self._keyspace = keyspace
        self._as_records = as_records
        self.readers: dict[str, ShardLogReader] = {}
        self._fetchers: list[LogFetcher] = []
        self._decoder = decoder

    def follow(self, position: StreamPosition) -> None:
        """Read the logs of a position: at the start and after each hop."""
        for shard in self.readers.keys() - position.shards.keys():
            self.readers.pop(shard).close()
        for shard in position.shards.keys() - self.readers.keys():
            at = position.shards[shard]
            reader = ShardLogReader(self._config, self._keyspace, shard, fetcher=self._fetcher())
            self.readers[shard] = reader
            reader.seek(at.offset, at.seq + 1)
        for fetcher in self._fetchers:
            fetcher.start()  # fetch rows while their progress is still arriving

    def _fetcher(self) -> LogFetcher:
        """Return the fetcher of the fewest logs: one of none while there may be more fetchers."""
        fewest = min(self._fetchers, key=lambda fetcher: fetcher.logs, default=None)
        if fewest is not None and (fewest.logs == 0 or len(self._fetchers) == FETCHERS_MAX):
            return fewest
        self._fetchers.append(LogFetcher(self._config))
        return self._fetchers[-1]

    def runs(self, part: ShardRange, frontier_us: int | None) -> Iterator[Run[LogRows]]:
        """Yield the rows of a range of one shard, as `ShardLogReader.runs` does."""
        reader = self.readers[part.shard]
        return reader.runs(part, self._decoder, frontier_us, as_records=self._as_records)

    def stop(self) -> None:
        """End a wait, from any thread."""
        for reader in list(self.readers.values()):
            reader.stop()

    def close(self) -> None:
        """Close all consumers."""
        for fetcher in self._fetchers:
            fetcher.close()
        for reader in self.readers.values():
            reader.close()
